"""The environment that started ranks get."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import ranks
from ranks.common.settings import SAFE_PATH
from ranks.common.sources import clean

__all__ = ["boot_command", "clean", "python_path", "python_there", "safe_path"]

_BOOT = "import sys; sys.path[0] = sys.prefix; from ranks.boot import run; run(sys.argv[1:])"


def python_path(environ: Mapping[str, str]) -> str | None:
    """PYTHONPATH with which a fresh interpreter finds our packages; None where it does by itself."""
    root = str(Path(ranks.__file__).resolve().parent.parent)
    if root in {
        str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())
    }:
        return None
    present = environ.get("PYTHONPATH")
    return os.pathsep.join([root, present]) if present else root


def python_there(path: str | None, *arguments: str) -> list[str]:
    """The words by which a shell on another host starts this Python; ``path``: that of `python_path`."""
    found = [] if path is None else [f"PYTHONPATH={path}"]
    # It would take modules from the folder where the shell begins.
    return ["env", "PYTHONSAFEPATH=1", *found, sys.executable, *arguments]


def boot_command() -> list[str]:
    """The start of a rank's command line, with a Python that takes no module from the current folder.

    That folder is the user's and may hold a `ranks` or a `numpy.py`. ranks.boot takes the setting back for
    what it starts; Python 3.10 does not have it, and there its place goes to a folder without modules.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-m", "ranks.boot"]
    return [sys.executable, "-c", _BOOT]


def safe_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that belong to `boot_command`."""
    if "PYTHONSAFEPATH" in environ:
        return {}
    return {"PYTHONSAFEPATH": "1", SAFE_PATH.name: "1"}
