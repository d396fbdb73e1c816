"""An mpirun in a job: its arguments, for whichever MPI the job finds, and its marks before lines."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.starters import marks
from ranks.common import sources

_PASSED = (sources.MASTER_ADDR, sources.MASTER_PORT)
"""What NCCL needs, which Open MPI gives to no other host by itself."""

CHOICE = """\
# Whichever MPI is there: each has its own words.
case $(mpirun --version 2>&1) in
  *"(Open MPI) 4."*) set -- --tag-output {open_mpi} ;;
  *"Open MPI"*) set -- --output tag {open_mpi} ;;
  *) set -- -prepend-rank -f {hosts} ;;
esac"""


def choice(hosts: str, variables: Iterable[str]) -> str:
    """Lines of a script that set its parameters to the arguments of the mpirun that is there; ``hosts`` is
    the file with the hosts, as a word for the shell, ``variables`` are names of those for all ranks."""
    passed = " ".join(f"-x {name}" for name in (*_PASSED, *variables))
    return CHOICE.format(
        hosts=hosts, open_mpi=f"--bind-to none --map-by slot:OVERSUBSCRIBE --hostfile {hosts} {passed}"
    )


def marked(line: str) -> str:
    """A line of the log, with the rank that mpirun says as elsewhere."""
    return marks.in_words(line, *marks.OF_MPIRUN)
