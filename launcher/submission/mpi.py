"""By what ranks on several nodes find one another under Slurm: known before the job waits for hours."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.common.mpi_library import PLUGINS
from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.submission.base import Submission


def kind_of_mpi(submission: Submission) -> str:
    """The value of ``srun --mpi``. Raises `ConfigError` where the ranks could not find one another."""
    options, chosen = submission.options, submission.job.collectives or "auto"
    own = options.venv is None and options.image is None
    if options.mpi is not None:
        return options.mpi
    if chosen == "mpi":
        kind = PLUGINS.get(_flavour(), "") if own else ""
        if not kind:
            raise ConfigError(
                "--collectives mpi: say with --mpi by what srun tells the MPI there of the ranks: pmix for "
                "Open MPI, pmi2 for MPICH and Intel MPI"
            )
        return kind
    several = submission.nodes is None or submission.nodes > 1
    if (
        own
        and several
        and submission.ranks > 1
        and chosen in {"auto", "gloo", "hierarchical"}
        and find_spec("torch") is None
    ):
        raise ConfigError(
            "ranks on several nodes talk by Gloo, which comes with torch: `pip install torch`, give "
            "--collectives mpi, or keep them on one node with --nodes 1"
        )
    return "none"


@functools.cache
def _flavour() -> str:
    from launcher.common.mpi_library import flavour_of, library_version

    try:
        return flavour_of(library_version())
    except OSError:
        return ""
