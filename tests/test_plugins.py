"""One of each thing that another package can bring, in a package that only its path makes known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from sharding.common import registry
from tests.launcher.cli_tools import ROOT, shardrun
from tests.sharding import graphs

ENTRY_POINTS = """\
[console_scripts]
shardrun-plug = plug:main

[shardrun.starters]
plug-starter = plug.starter:STARTER
broken = plug.missing:STARTER

[shardrun.collectives]
plug-backend = plug.backend
nothing = plug.metric:halves

[shardrun.rules]
plug = plug.rule

[shardrun.formats]
plug = plug.format:FORMAT

[shardrun.checkpoints]
plug-weights = plug.weights

[shardrun.metrics]
plug_halves = plug.metric:halves
"""
MODULES = {
    "__init__": "",
    "starter": '''
from launcher.starters.base import Launcher, Starter

class PlugLauncher(Launcher):
    name = "plug-starter"

    def start(self, program, world_size, environment, table=None):
        from launcher.starters.environment import clean
        from launcher.starters.local import LocalHandle

        shared = {**clean(), **environment, "PLUG_SIZE": str(world_size), "PLUG_LOCAL_SIZE": str(world_size)}
        places = [{"PLUG_RANK": str(rank), "PLUG_LOCAL_RANK": str(rank)} for rank in range(world_size)]
        return LocalHandle(program, [{**shared, **place} for place in places])

NAMES = ("PLUG_RANK", "PLUG_SIZE", "PLUG_LOCAL_RANK", "PLUG_LOCAL_SIZE")
STARTER = Starter(PlugLauncher, identity=NAMES, meaning="processes as the tests need them")
''',
    "backend": '''
from ranks.collectives.backend import Backend
from ranks.collectives.shm.communicator import ShmCommunicator, connect as by_memory

def connect(identity, timeout):
    assert identity.source == "PLUG_RANK, PLUG_SIZE", identity
    made = by_memory(identity, timeout)
    made.name = "plug-backend"
    return made

BACKEND = Backend(connect, spans_hosts=False)
''',
    "rule": '''
from sharding.rules.base import rule
from sharding.rules.common import option, splits

@rule("SampleOp", domain="com.microsoft", gives=[0])
def each_element(node):
    """Any axis may be split."""
    return [option(node, {0: split}, split) for split in splits(node, node.shapes[0])]
''',
    "format": '''
from sharding.importers.format import ModelFormat

def is_it(path, head):
    return head.startswith(b"PLUG")

def import_model(path, *, key=None, opset):
    import onnx

    return onnx.load_model_from_string(open(path, "rb").read()[4:])

FORMAT = ModelFormat(is_it, import_model)
''',
    "weights": '''
import numpy as np
from sharding.importers.checkpoints.base import Checkpoint, CheckpointFormat, Entry, bytes_of

def read(path):
    numbers = np.frombuffer(path.read_bytes()[4:], np.float32)
    parts = {"w0": numbers[: 8 * 64].reshape(8, 64), "w1": numbers[8 * 64 :].reshape(64, 6)}
    entries = {name: Entry(name, one.dtype, one.shape, (bytes_of(one),)) for name, one in parts.items()}
    return Checkpoint(path, "a checkpoint of plug", entries, [path])

FORMAT = CheckpointFormat(lambda path, head: head.startswith(b"WGHT"), read)
''',
    "metric": '''
def halves(prediction, labels):
    """The part of each sample's numbers that are above a half of the labels."""
    return (prediction > labels / 2).mean(axis=1)
''',
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "plug").mkdir()
    for name, text in MODULES.items():
        (folder / "plug" / f"{name}.py").write_text(text)
    (folder / "plug-1.0.dist-info").mkdir()
    (folder / "plug-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products with an operator between that no rule of ours knows."""
    random = np.random.default_rng(5)
    weights = {
        "w0": random.standard_normal((8, 64), np.float32),
        "w1": random.standard_normal((64, 6), np.float32),
    }
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    plugged (float[4, 8] x) => (float[4, 6] y) {
      h = MatMul(x, w0)
      s = com.microsoft.SampleOp(h)
      y = MatMul(s, w1)
    }"""
    return graphs.save(tmp_path_factory.mktemp("model") / "m.onnx", text, weights)


def expected(model: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def test_a_command_uses_what_another_package_brings(site: Path, model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 8), np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "m.plug").write_bytes(b"PLUG" + model.read_bytes())
    done = shardrun(
        *("run", "m.plug", "--ranks", 2, "--launcher", "plug-starter", "--collectives", "plug-backend"),
        *("--input", "x.npz", "--output", "y.npz"),
        cwd=tmp_path, PYTHONPATH=f"{ROOT}:{site}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "plug-backend" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected(model, x), rtol=1e-5, atol=1e-5)


def test_a_checkpoint_gives_a_model_its_weights(site: Path, model: Path, tmp_path: Path) -> None:
    numbers = np.random.default_rng(4).standard_normal(8 * 64 + 64 * 6, np.float32)
    (tmp_path / "w.bin").write_bytes(b"WGHT" + numbers.tobytes())
    command = ("convert", model, "--weights", "w.bin", "new.onnx")
    done = shardrun(*command, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{site}")
    assert done.returncode == 0, done.stderr
    x = np.random.default_rng(6).standard_normal((4, 8), np.float32)
    wanted = x @ numbers[: 8 * 64].reshape(8, 64) @ numbers[8 * 64 :].reshape(64, 6)
    np.testing.assert_allclose(expected(tmp_path / "new.onnx", x), wanted, rtol=1e-4, atol=1e-4)


def operators(folder: Path) -> list[str]:
    return [node.op_type for node in onnx.load(next(folder.glob("*.onnx"))).graph.node]


def test_a_rule_splits_what_was_whole(site: Path, model: Path, tmp_path: Path) -> None:
    for name, more in (("plain", ""), ("ruled", f":{site}")):
        done = shardrun(
            "slice", model, "--ranks", 2, "--output", name, cwd=tmp_path, PYTHONPATH=f"{ROOT}{more}"
        )
        assert done.returncode == 0, done.stderr
    assert operators(tmp_path / "ruled") == ["MatMul", "SampleOp", "MatMul", "AllReduce"]
    assert operators(tmp_path / "plain") != operators(tmp_path / "ruled")


def test_a_metric_is_a_function(site: Path, model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((4, 8), np.float32)
    labels = np.random.default_rng(3).standard_normal((4, 6), np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    done = shardrun(
        *("eval", model, "--data", "data.npz", "--metric", "plug_halves", "--output", "report.json"),
        cwd=tmp_path, PYTHONPATH=f"{ROOT}:{site}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = float((expected(model, x) > labels / 2).mean())
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["plug_halves"] == pytest.approx(
        wanted
    )


def test_help_lists_it_with_ours(site: Path, tmp_path: Path) -> None:
    """Also where something else that is brought is of no use."""
    done = shardrun("eval", "--help", cwd=tmp_path, PYTHONPATH=f"{ROOT}:{site}")
    text = " ".join(done.stdout.split()).replace("- ", "-")  # lines are broken at hyphens
    assert done.returncode == 0
    assert (
        "local: processes of this machine; mpirun: Open MPI, MPICH or Intel MPI; "
        "ray: actors of a Ray cluster; slurm: Slurm's srun, in an "
        "allocation or with --nodes; ssh: the system's ssh to each host, without MPI; "
        "plug-starter: processes as the tests need them; broken; "
        "external: this process is one rank that something else started (default: auto)"
    ) in text
    assert "mse, rmse, mae, max_error, cosine_similarity; plug_halves" in text


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--launcher", "slurmd"), 2, "'plug-starter', 'broken'"),
        (("--launcher", "broken"), 1, "broken of the group shardrun.starters (plug.missing:STARTER) can"),
        (("--collectives", "nothing"), 1, "cannot be used: it is no Backend"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(
    site: Path, model: Path, tmp_path: Path, options: tuple[str, str], code: int, said: str
) -> None:
    done = shardrun("run", model, "--ranks", 2, *options, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{site}")
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr


def test_our_own_names_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = registry.Names("ranks/collectives/backends", "shardrun.collectives", ("auto",))
    found = {"shm": "x", "auto": "y", "ring": "z"}
    monkeypatch.setattr(registry, "entry_points", lambda: {"shardrun.collectives": found})
    assert list(names) == ["auto", "gloo", "hccl", "hierarchical", "mpi", "nccl", "shm", "ring"]
    assert names.others == {"ring": "z"} and "ring" in names and "tree" not in names
