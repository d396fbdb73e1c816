"""The environment that started ranks get."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import ranks
from ranks.common.settings import SAFE_PATH, VARIABLES
from ranks.identity.sources import identifies

_OF_A_JOB = tuple(variable.name for variable in VARIABLES if variable.of_one_job)
_BOOT = "import sys; sys.path[0] = sys.prefix; from ranks.boot import main; main(sys.argv[1:])"


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` without what identifies a rank of another job.

    Left over from a launcher around us, it would tell a rank that it is another one. Variables of a
    `launcher.starters.base.Starter.identity` may stay: nobody reads them without ``SHARDRUN_IDENTITY``.
    """
    return {
        name: value
        for name, value in environ.items()
        if not identifies(name) and not name.startswith(_OF_A_JOB)
    }


def python_path(environ: Mapping[str, str]) -> str | None:
    """PYTHONPATH with which a fresh interpreter finds our packages; None where it does by itself."""
    root = str(Path(ranks.__file__).resolve().parent.parent)
    if root in {
        str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())
    }:
        return None
    present = environ.get("PYTHONPATH")
    return os.pathsep.join([root, present]) if present else root


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
