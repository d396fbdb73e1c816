"""An mpirun in a job: its arguments, for whichever MPI the job finds."""

from __future__ import annotations

from collections.abc import Iterable

from ranks.common import settings, sources

_PASSED = (sources.MASTER_ADDR, sources.MASTER_PORT, settings.JOB.name)
"""What NCCL and Gloo need, which Open MPI gives to no other host by itself."""
NAMED = f"""\
{settings.JOB.name}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export {settings.JOB.name}"""
"""Lines of a script that give the job a name, which no other job knows."""

CHOICE = """\
# Whichever MPI is there: each has its own words.
case $(mpirun --version 2>&1) in
  *"(Open MPI) 4."*) set -- --tag-output {open_mpi} ;;
  *"Open MPI"*) set -- --output tag {open_mpi} ;;
  *) set -- -prepend-rank -f {slots} ;;
esac"""


def choice(hosts: str, variables: Iterable[str], *, slots: str = "") -> str:
    """Lines of a script that set its parameters to the arguments of the mpirun that is there; ``hosts`` is
    the file with the hosts, as a word for the shell, ``slots`` the same for others than Open MPI;
    ``variables`` are names of those for all ranks."""
    passed = " ".join(f"-x {name}" for name in (*_PASSED, *variables))
    return CHOICE.format(
        slots=slots or hosts,
        open_mpi=f"--bind-to none --map-by slot:OVERSUBSCRIBE --hostfile {hosts} {passed}",
    )
