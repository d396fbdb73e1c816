"""By what srun tells ranks of one another, decided before the job waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.common import mpi_library
from launcher.common.mpi_library import PLUGINS, flavour_of, library_version
from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.submission import mpi
from launcher.submission.base import Submission
from launcher.submission.options import SubmitOptions

VENV = Path("venv")


@pytest.mark.parametrize(
    ("ranks", "collectives", "options", "flavour", "torch", "kind"),
    [
        (2, None, {"mpi": "pmi2"}, "openmpi", True, "pmi2"),  # the user knows
        (2, "mpi", {"mpi": "none"}, "openmpi", True, "none"),
        (2, "mpi", {}, "openmpi", True, "pmix"),
        (2, "mpi", {}, "mpich", True, "pmi2"),
        (2, "mpi", {}, "intel", False, "pmi2"),
        (2, "mpi", {}, "", True, "say with --mpi"),
        (2, "mpi", {"venv": VENV}, "openmpi", True, "say with --mpi"),  # nobody knows which is there
        (2, "mpi", {"image": "x"}, "openmpi", True, "say with --mpi"),
        (2, None, {}, "", True, "none"),
        (2, None, {}, "", False, "talk by Gloo"),
        (2, "gloo", {"nodes": 2}, "", False, "talk by Gloo"),
        (2, "hierarchical", {"tasks_per_node": 1}, "", False, "talk by Gloo"),
        (2, "shm", {}, "", False, "none"),
        (2, None, {"nodes": 1}, "", False, "none"),
        (2, None, {"tasks_per_node": 2}, "", False, "none"),  # which is one node
        (1, None, {}, "", False, "none"),
        (2, None, {"venv": VENV}, "", False, "none"),
        (2, None, {"image": "x"}, "", False, "none"),
    ],
)
def test_the_value_of_mpi(
    monkeypatch: pytest.MonkeyPatch, ranks: int, collectives: str | None, options: dict[str, Any],
    flavour: str, torch: bool, kind: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(mpi, "_flavour", lambda: flavour)
    monkeypatch.setattr(mpi, "find_spec", lambda name: name if torch and name == "torch" else None)
    asked = Submission(Job(collectives=collectives), ranks, SubmitOptions(**options))
    if " " not in kind:
        assert mpi.kind_of_mpi(asked) == kind
        return
    with pytest.raises(ConfigError, match=kind):
        mpi.kind_of_mpi(asked)


@pytest.mark.parametrize(
    ("said", "flavour"),
    [
        ("Open MPI v5.0.11, package: x", "openmpi"),
        ("Intel(R) MPI Library 2021.18", "intel"),
        ("MPICH Version:      4.0.2", "mpich"),
        ("MVAPICH2 2.3", ""),
        ("like Open MPI", ""),
        ("", ""),
    ],
)
def test_libraries_by_what_they_say(said: str, flavour: str) -> None:
    assert flavour_of(said) == flavour and (not flavour or PLUGINS[flavour])


@pytest.mark.parametrize(
    ("program", "found", "why"),
    [
        ("print('Open MPI v5\\0 \\nmore')", "Open MPI v5", ""),
        (
            "import os; print(os.environ['MPI4PY_LIBMPI'], os.getcwd(), 'RANK' in os.environ)",
            "lib / False",
            "",
        ),
        ("import sys; sys.exit('one\\ncannot load MPI library')", "", "^cannot load MPI library$"),
        ("import sys; sys.exit('x' * 400)", "", "^x{300}$"),
        ("import sys; sys.exit(3)", "", "^exit code 3$"),
        ("pass", "", "^exit code 0$"),
    ],
)
def test_the_library_is_asked_in_another_process(
    monkeypatch: pytest.MonkeyPatch, program: str, found: str, why: str
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(mpi_library, "_ASK", program)
    if found:
        assert library_version({"MPI4PY_LIBMPI": "lib"}) == found
        return
    with pytest.raises(OSError, match=why):
        library_version()


def test_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_library, "_ASK", "import time; time.sleep(60)")
    monkeypatch.setattr(mpi_library, "SECONDS", 0.2)
    with pytest.raises(OSError, match="mpi4py did not load its MPI within 0 s"):
        library_version()
