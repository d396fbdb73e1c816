"""The environment that started ranks get."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

import ranks

# Left over from a launcher around us, these would tell a rank that it is another one. OMPI_MCA_*, PRTE_MCA_*,
# PMIX_MCA_* and I_MPI_* are a user's settings and stay.
_IDENTITY = frozenset(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("RANK_ID", "RANK_SIZE", "DEVICE_ID", "TORCHELASTIC_RUN_ID"),
        *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMI_ID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ]
)
_IDENTITY_PREFIXES = ("OMPI_COMM_WORLD_", "SHARDRUN_JOB", "SHARDRUN_CONTROL", "SHARDRUN_SCRATCH")
_BOOT = "import sys; sys.path[0] = sys.prefix; from ranks.boot import main; main(sys.argv[1:])"
_PMIX_SETTINGS = ("PMIX_MCA_",)


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` without what identifies a rank of another job."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _IDENTITY
        and not name.startswith(_IDENTITY_PREFIXES)
        and not (name.startswith("PMIX_") and not name.startswith(_PMIX_SETTINGS))
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
    return {"PYTHONSAFEPATH": "1", "SHARDRUN_SAFE_PATH": "1"}
