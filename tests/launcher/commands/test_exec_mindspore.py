"""``shardrun exec`` of scripts that import MindSpore itself, where it is installed and where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.launcher.cli_tools import environment, mpirun, save_mlp, shardrun

pytestmark = pytest.mark.timeout(120)

IMPORTS = {
    "nn": "import mindspore.nn as nn",
    "ms": "import mindspore as ms\nms.load_checkpoint('a.ckpt')",
    "from": "from mindspore import load_checkpoint, load_param_into_net",
    "hub": "import mindspore_hub as hub\nhub.load_weights(None, network_name='lenet')",
    "dataset": "from mindspore.dataset import NumpySlicesDataset",
    "zoo": "import mindcv",
    "late": "def load():\n    from mindspore.train import Model\n\nload()",
}
PACKAGES = {"hub": "mindspore_hub", "zoo": "mindcv"}


def sentence(text: str, script: str, line: int, package: str) -> None:
    """That standard error holds one sentence, which says where, what is missing and what to do."""
    said = [part for part in text.splitlines() if "shardrun: error: " in part]
    assert len(said) == 1, text
    assert f"{script}, line {line}: {package} is not installed" in said[0]
    for way in ("shardrun convert --network", "shardrun eval", f"pip install {package}"):
        assert way in said[0]
    assert "Traceback" not in text


@pytest.mark.parametrize("name", IMPORTS)
def test_without_mindspore(name: str, tmp_path: Path) -> None:
    package = PACKAGES.get(name, "mindspore")
    assert importlib.util.find_spec(package) is None
    (tmp_path / "script.py").write_text(f"import mindspore_lite\n{IMPORTS[name]}\nprint('never')\n")
    done = shardrun("exec", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    sentence(done.stderr, "script.py", 3 if name == "late" else 2, package)


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_without_mindspore_on_ranks(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import numpy\nimport mindspore\n")
    done = shardrun("exec", "--ranks", 2, "--launcher", launcher, "script.py", cwd=tmp_path)
    assert done.returncode == 1
    sentence(done.stderr, "script.py", 2, "mindspore")


def test_without_mindspore_under_mpirun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import mindspore\n")
    done = shardrun("exec", "script.py", cwd=tmp_path, before=mpirun(2))
    assert done.returncode != 0
    assert "script.py, line 1: mindspore is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_imports_fail_as_python_has_it(tmp_path: Path) -> None:
    """Of another package; of a module that MindSpore has not; and one that the script expects to fail."""
    (tmp_path / "mindspore").mkdir()
    (tmp_path / "mindspore" / "__init__.py").touch()
    for text, said in (
        ("import nosuchpackage", "No module named 'nosuchpackage'"),
        ("import mindspore.nosuchmodule", "No module named 'mindspore.nosuchmodule'"),
        ("import mindspore_lite.llm_engine", "No module named 'mindspore_lite.llm_engine': shardrun"),
    ):
        (tmp_path / "script.py").write_text(text + "\n")
        done = shardrun("exec", "script.py", cwd=tmp_path)
        assert done.returncode == 1
        assert said in done.stderr and done.stderr.startswith("Traceback")
    (tmp_path / "script.py").write_text(
        "try:\n    import mindcv\nexcept ImportError:\n    print('without')\n"
    )
    done = shardrun("exec", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "without\n", "")


# Stands for MindSpore, which is no package of the tests' environment: what the script takes from it.
PACKAGE = {
    "__init__.py": """
import numpy as np
from mindspore.train import Model

def load_checkpoint(path):
    return dict(np.load(path))

def load_param_into_net(net, parameters):
    net.parameters.update(parameters)
    return [], []
""",
    "nn.py": """
class Cell:
    def __init__(self):
        self.parameters = {}

    def __call__(self, *inputs):
        return self.construct(*inputs)
""",
    "train.py": """
class Model:
    def __init__(self, network):
        self.network = network

    def predict(self, *data, backend=None):
        return self.network(*data)
""",
}
SCRIPT = """
import sys
import numpy as np
import mindspore as ms
import mindspore.nn as nn
import mindspore_lite as mslite
from mindspore import Model, load_checkpoint, load_param_into_net


class Net(nn.Cell):
    def construct(self, x):
        return x * self.parameters["scale"]


net = Net()
load_param_into_net(net, load_checkpoint("scale.npz"))
x = np.ones((1, 8), np.float32)
scaled = Model(net).predict(x)
model = mslite.Model()
model.build_from_file("m.onnx", mslite.ModelType.MINDIR)
found = model.predict(scaled)[0].get_data_to_numpy()
same = np.array_equal(found, model.predict([x * 3])[0].get_data_to_numpy())
print(ms.__name__, same, "ranks" in sys.modules, mslite.__version__)
"""


@pytest.mark.parametrize("options", [[], ["--ranks", 2, "--launcher", "local"]])
def test_with_mindspore(options: list[object], tmp_path: Path) -> None:
    import numpy as np

    from ranks.version import __version__

    (tmp_path / "site" / "mindspore").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (tmp_path / "site" / "mindspore" / name).write_text(text)
    save_mlp(tmp_path / "m.onnx")
    np.savez(tmp_path / "scale.npz", scale=np.float32(3))
    (tmp_path / "script.py").write_text(SCRIPT)
    path = {"PYTHONPATH": f"{tmp_path / 'site'}:{environment().get('PYTHONPATH', '')}"}
    done = shardrun("exec", *options, "script.py", cwd=tmp_path, **path)
    assert done.returncode == 0, done.stderr
    lines = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
    assert lines == [f"mindspore True True {__version__}"] * (2 if options else 1)
