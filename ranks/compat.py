"""Runs scripts written for mindspore_lite: their import resolves to `ranks`."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

import ranks
from ranks.common import settings
from ranks.errors import ShardrunError
from ranks.version import __version__

NAME = "mindspore_lite"

# The modules of mindspore_lite that scripts import from, and where their names are here.
SUBMODULES = {f"{NAME}.{module}": f"ranks.{module}" for module in ranks.MODULES}


def install(enabled: bool | None = None) -> bool:
    """Makes ``import mindspore_lite`` resolve to `ranks` in this process; says whether it does.

    ``enabled`` None: unless the environment's SHARDRUN_MINDSPORE_LITE is "real", which leaves the import to
    a mindspore_lite that is installed. Raises `ShardrunError` for another value of it, and where the real
    package has been imported already.
    """
    if enabled is None:
        enabled = settings.stand_in()
    if not enabled:
        return False
    present = sys.modules.get(NAME)
    if present is not None and not isinstance(present, _Stand):
        where = getattr(present, "__file__", None) or "elsewhere"
        raise ShardrunError(f"{NAME} was imported from {where} before it could resolve to shardrun.")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return True


def uninstall() -> None:
    """Undoes `install`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in (NAME, *SUBMODULES):
        if isinstance(sys.modules.get(name), _Stand):
            del sys.modules[name]


class _Stand(ModuleType):
    """Stands for a module of mindspore_lite; its names are those of a module here."""

    def __init__(self, name: str, stands_for: str) -> None:
        super().__init__(name, f"{name} as shardrun provides it.")
        self.stands_for = stands_for
        if name == NAME:
            self.__path__: list[str] = []
            self.__version__ = __version__
            self.__file__ = ranks.__file__

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in {"__all__", "__version__"}:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in SUBMODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        module = importlib.import_module(self.stands_for)
        try:
            return getattr(module, name)
        except AttributeError:
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}: shardrun, to which the import "
                f"resolves, does not have this part of {NAME}."
            ) from None

    def __dir__(self) -> list[str]:
        here = {*super().__dir__(), *importlib.import_module(self.stands_for).__all__}
        return sorted({*here, *ranks.MODULES} if self.__name__ == NAME else here)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != NAME and fullname not in SUBMODULES:
            if fullname.startswith(f"{NAME}."):
                raise ModuleNotFoundError(
                    f"No module named {fullname!r}: shardrun, to which the import resolves, has "
                    f"{', '.join(sorted(SUBMODULES))} of it.",
                    name=fullname,
                )
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == NAME)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Stand(spec.name, SUBMODULES.get(spec.name, "ranks"))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names are looked up when used."""


def run_script(path: str | os.PathLike[str], argv: Sequence[str] = (), target: str | None = None) -> None:
    """Runs the Python script at ``path`` as ``python path argv...`` does, with `install` in force.

    ``target`` "cpu" runs scripts that name "gpu" or "ascend" on the CPU, None leaves that to the environment.
    What the script raises, `SystemExit` included, comes through; `format_error` prints it without the frames
    of this module. Raises `ShardrunError` where there is no such script, or where it imports
    MindSpore, which is not installed.
    """
    script = os.fspath(path)
    check_script(script)
    if target is not None:
        if target != "cpu":
            raise ShardrunError(
                f"A script can be redirected to the target 'cpu' only, not to {target[:80]!r}."
            )
        os.environ[settings.TARGET.name] = target
    install()
    argv_before, path_before = sys.argv[:], sys.path[:]
    sys.argv[:] = [script, *argv]
    if Path(script).is_file():
        # A script's first entry is its own folder, in place of that of what started this process; a process
        # started with a safe path has none to replace.
        replaced = 0 if getattr(sys.flags, "safe_path", False) else 1
        sys.path[:replaced] = [str(Path(script).resolve().parent)]
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        missing = _of_mindspore(error)
        if missing is None:
            raise
        raise ShardrunError(_without_mindspore(missing, script, error)) from error
    finally:
        sys.argv[:], sys.path[:] = argv_before, path_before


_BUILT_ON = ("mindcv", "mindformers", "mindnlp", "mindocr", "mindone", "mindyolo")


def _of_mindspore(error: ModuleNotFoundError) -> str | None:
    """The package that an import did not find, if it is MindSpore or built on it."""
    package = (error.name or "").partition(".")[0]
    ours = package != NAME and (package == "mindspore" or package.startswith("mindspore_"))
    found = error.name == package and (ours or package in _BUILT_ON)
    return package if found else None


def _without_mindspore(package: str, script: str, error: BaseException) -> str:
    """What to do with a script that needs a package of MindSpore's which is not installed."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [frame.f_lineno for frame in frames if frame.f_code.co_filename == script]
    where = f"{script}, line {lines[-1]}" if lines else script
    return (
        f"{where}: {package} is not installed, and shardrun stands in for {NAME} alone. Install it beside "
        f"shardrun (pip install {package}) and the script runs as it is; or make a model of the network and "
        "its checkpoint, `shardrun convert --network package.module:FACTORY --weights FILE.ckpt model.onnx` "
        "(a MindIR file that MindSpore exported elsewhere needs none of this), run it with `shardrun run "
        "model.onnx`, and measure it with `shardrun eval model.onnx --data DATA --metric accuracy`."
    )


def format_error(error: BaseException) -> str:
    """The traceback of what a script raised, from the script's first line on, as Python prints it."""
    return "".join(traceback.format_exception(type(error), error, _below_this_module(error.__traceback__)))


def _below_this_module(frames: TracebackType | None) -> TracebackType | None:
    """``frames`` after those of `run_script` and what is above it, and of what reads the script."""
    below = frames
    while frames is not None:
        frames_before, frames = frames, frames.tb_next
        if frames_before.tb_frame.f_code is run_script.__code__:
            below = frames
            while below is not None and _reads_scripts(below.tb_frame.f_globals.get("__name__", "")):
                below = below.tb_next
    return below


def _reads_scripts(module: str) -> bool:
    """Whether Python reads scripts, folders or archives with it."""
    return module in {"runpy", "zipimport"} or module.split(".", maxsplit=1)[0] == "importlib"


def check_script(script: str) -> None:
    """Raises `ShardrunError` unless Python can run it: a file, or a folder or archive with a __main__.py.

    A device may never end, and of a pipe each rank would read a part.
    """
    if not script or "\0" in script or not Path(script).exists():
        from sharding.common.nearby import hint

        raise ShardrunError(f"There is no script {script!r}{hint(script)}.")
    if Path(script).is_dir() and not (Path(script) / "__main__.py").is_file():
        raise ShardrunError(f"{script} is a folder without a __main__.py, so there is no script to run.")
    if not Path(script).is_dir() and not Path(script).is_file():
        raise ShardrunError(f"{script} is a pipe or a device; expected a script in a regular file.")
    if Path(script).is_file() and not os.access(script, os.R_OK):
        raise ShardrunError(f"The script {script} may not be read by this user.")
