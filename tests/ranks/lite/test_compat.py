"""Scripts written for mindspore_lite: the import, and running them as Python does."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ranks
from ranks import compat
from ranks.errors import ShardrunError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No choice in the environment, and nothing installed before or after."""
    monkeypatch.delenv("SHARDRUN_MINDSPORE_LITE", raising=False)
    monkeypatch.delenv("SHARDRUN_TARGET", raising=False)
    compat.uninstall()
    yield
    compat.uninstall()


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_import_resolves_to_ranks() -> None:
    assert compat.install()
    assert compat.install()  # twice is no error
    import mindspore_lite
    import mindspore_lite as mslite
    from mindspore_lite import Context, ModelType, context, tensor

    assert mindspore_lite is mslite
    assert mslite.Context is Context is ranks.Context is context.Context
    assert tensor.DataType is mslite.DataType is ranks.DataType
    assert ModelType is ranks.ModelType
    assert mslite.__version__ == ranks.version.__version__ == mslite.version.__version__
    assert {"Context", "Model", "Tensor"} <= set(dir(mslite))
    namespace: dict[str, object] = {}
    exec("from mindspore_lite import *", namespace)
    assert set(ranks.__all__) <= set(namespace)
    import mindspore_lite.model

    assert mindspore_lite.model.Model is ranks.Model


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("context", ["Context"]),
        ("model", ["Model", "ModelGroup", "ModelGroupFlag", "ModelParallelRunner", "ModelType"]),
        ("tensor", ["DataType", "Format", "Tensor", "TensorMeta"]),
    ],
)
@pytest.mark.parametrize("package", ["ranks", "mindspore_lite"])
def test_modules_of_the_package(package: str, module: str, names: list[str]) -> None:
    """Imported by their own name, and as attributes of a package that was only imported itself."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from ranks import compat
compat.install()
import {package} as package
assert {module!r} in dir(package)
module = package.{module}
import {package}.{module}
from {package} import {module} as again
assert set({names!r}) <= set(dir(module))
for name in {names!r}:
    assert getattr(module, name) is getattr(again, name) is getattr(package, name), name
    exec(f"from {package}.{module} import {{name}} as imported")
    assert imported is getattr(package, name)
print(len(dir(module)) > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_parts_that_are_not_here_are_named() -> None:
    compat.install()
    import mindspore_lite as mslite

    with pytest.raises(AttributeError, match="'mindspore_lite' has no attribute 'LLMEngine': shardrun"):
        _ = mslite.LLMEngine
    with pytest.raises(ImportError, match="LLMEngine"):
        exec("from mindspore_lite import LLMEngine")
    with pytest.raises(
        ModuleNotFoundError,
        match=r"^No module named 'mindspore_lite\.llm_engine': shardrun, .* has mindspore_lite\.co.* it\.$",
    ) as caught:
        exec("import mindspore_lite.llm_engine")
    assert caught.value.name == "mindspore_lite.llm_engine"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mindspore_liter'$"):
        exec("import mindspore_liter")


def test_uninstall_takes_it_back() -> None:
    compat.install()
    import mindspore_lite  # noqa: F401 - what is tested

    compat.uninstall()
    assert "mindspore_lite" not in sys.modules
    assert not any(type(finder).__module__ == compat.__name__ for finder in sys.meta_path)


def test_left_to_the_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not compat.install(enabled=False)
    monkeypatch.setenv("SHARDRUN_MINDSPORE_LITE", "real")
    assert not compat.install()
    monkeypatch.setenv("SHARDRUN_MINDSPORE_LITE", "maybe")
    with pytest.raises(
        ShardrunError, match="SHARDRUN_MINDSPORE_LITE must be 'ranks' or 'real', but is 'maybe'"
    ):
        compat.install()
    monkeypatch.delenv("SHARDRUN_MINDSPORE_LITE")
    monkeypatch.setitem(sys.modules, "mindspore_lite", ModuleType("mindspore_lite"))
    with pytest.raises(ShardrunError, match="before it could resolve to shardrun"):
        compat.install()


def test_script_runs_as_python_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 42\n")
    path = script(
        tmp_path,
        """
        import sys
        import beside
        import mindspore_lite as mslite
        print(__name__, sys.argv, sys.path[0], __file__, beside.VALUE, mslite.Context())
        """,
    )
    argv, search = sys.argv[:], sys.path[:]
    try:
        compat.run_script(path, ["--a", "b c"])
    finally:
        sys.modules.pop("beside", None)
    expected = f"__main__ ['{path}', '--a', 'b c'] {tmp_path} {path} 42 target: ['cpu'].\n"
    assert capsys.readouterr().out == expected
    assert (sys.argv, sys.path) == (argv, search)


def test_folder_with_main(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "__main__.py").write_text("import sys; print('main', sys.argv[1:])\n")
    compat.run_script(tmp_path, ["x"])
    assert capsys.readouterr().out == "main ['x']\n"


@pytest.mark.parametrize("code", ["7", "0", "'message'", "None", ""])
def test_exit_codes_come_through(tmp_path: Path, code: str) -> None:
    path = script(tmp_path, f"import sys\nsys.exit({code})\n")
    with pytest.raises(SystemExit) as caught:
        compat.run_script(path)
    assert caught.value.code == (eval(code) if code else None)


def test_traceback_is_the_scripts_own(tmp_path: Path) -> None:
    path = script(tmp_path, "def f():\n    raise ValueError('a reason')\n\nf()\n")
    with pytest.raises(ValueError, match="a reason") as caught:
        compat.run_script(path)
    text = compat.format_error(caught.value)
    real = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert text == real.stderr


def test_syntax_error_is_the_scripts_own(tmp_path: Path) -> None:
    path = script(tmp_path, "def f(:\n")
    with pytest.raises(SyntaxError) as caught:
        compat.run_script(path)
    real = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert compat.format_error(caught.value) == real.stderr


@pytest.mark.parametrize("archive", [False, True])
def test_syntax_error_of_a_folder_or_an_archive_shows_nothing_of_what_reads_it(
    tmp_path: Path, archive: bool
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("def f(:\n")
    app = shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "app") if archive else tmp_path / "app"
    with pytest.raises(SyntaxError) as caught:
        compat.run_script(app)
    lines = compat.format_error(caught.value).splitlines()
    assert lines[0].endswith('__main__.py", line 1') and "frozen" not in "".join(lines)


def test_error_from_elsewhere_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    assert "test_error_from_elsewhere_keeps_its_traceback" in compat.format_error(caught.value)


def test_target_cpu_is_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "")
    path = script(tmp_path, "import os\nassert os.environ['SHARDRUN_TARGET'] == 'cpu'\n")
    compat.run_script(path, target="cpu")
    with pytest.raises(ShardrunError, match="target 'cpu' only, not to 'gpu'"):
        compat.run_script(path, target="gpu")


def test_no_such_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ShardrunError, match=r"There is no script '.*nothing.py'"):
        compat.run_script(tmp_path / "nothing.py")
    with pytest.raises(ShardrunError, match=r"There is no script 'a\\x00b'"):
        compat.run_script("a\0b")
    with pytest.raises(ShardrunError, match=r"is a folder without a __main__.py"):
        compat.run_script(tmp_path)
    path = script(tmp_path, "")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read every file
    with pytest.raises(ShardrunError, match="may not be read by this user"):
        compat.run_script(path)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import ranks", ["numpy", "onnx", "onnxruntime", "ranks.lite"]),
        ("import ranks.compat; ranks.compat.install()", ["numpy", "onnx", "onnxruntime"]),
        (
            "import ranks; ranks.Context; ranks.Model; ranks.Tensor",
            ["onnx", "onnxruntime", "torch", "mpi4py"],
        ),
        (
            # What every process that shares weights would hold.
            "import ranks; ranks.attach",
            [
                *("onnx", "configparser", "difflib", "subprocess", "tempfile", "ranks.lite.converter"),
                *("ranks.lite.runner", "ranks.lite.group", "ranks.weights.shared.server"),
            ],
        ),
    ],
)
def test_imports_only_what_is_needed(statement: str, absent: list[str]) -> None:
    code = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout == "[]\n"


def test_package_has_its_names_only() -> None:
    assert set(ranks.__all__) <= set(dir(ranks))
    with pytest.raises(AttributeError, match="module 'ranks' has no attribute 'NoSuchName'"):
        _ = ranks.NoSuchName
