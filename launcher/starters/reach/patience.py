"""When ssh gives up on a host: ours, and the ssh by which an mpirun starts its daemons.

By itself an mpirun waits for ever for a host that answers nothing, or whose cable is cut before its daemon
has begun. What the user has set comes first: of two values of one option ssh takes the first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CONNECT_SECONDS = 15
OPTIONS = (
    *("-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    # A host that is gone is noticed in about the time in which the control channel does.
    *("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2"),
)
_IDLE = {"time": 9, "intvl": 2, "probes": 3}
"""Seconds, and how often: after 15 s of silence Open MPI's daemon on a host that is cut off ends, where no
rank of ours is there that ends it. The job has ended before: nothing in it waits for this."""
_BY_OTHERS = ("SLURM_", "LSB_", "PBS_", "PE_HOSTFILE", "COBALT_", "LOADL_")
"""The beginnings of variables of batch systems, whose own programs MPICH and Intel MPI may start daemons by:
these would be given the same arguments."""


class _OpenMpi(NamedTuple):
    prefix: str
    agent: str
    named: str
    """A pattern of what the agent is called on a command line."""
    folder: str
    file: str


_OPEN_MPIS = {
    "openmpi": _OpenMpi(
        "PRTE_MCA_", "plm_ssh_agent", r"(prte|plm_ssh|plm_rsh)_(ssh_|rsh_)?agent", ".prte", "prte"
    ),
    "openmpi4": _OpenMpi(
        "OMPI_MCA_", "plm_rsh_agent", r"(orte|pls|plm)_(ssh|rsh)_agent", ".openmpi", "openmpi"
    ),
}


class _Hydra(NamedTuple):
    launcher: tuple[str, ...]
    program: tuple[str, ...]
    more: str


_HYDRAS = {
    "mpich": _Hydra(
        ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "-launcher", "-bootstrap"),
        ("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC", "-launcher-exec", "-bootstrap-exec"),
        "HYDRA_LAUNCHER_EXTRA_ARGS",
    ),
    "intel": _Hydra(
        ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_RMK", "HYDRA_BOOTSTRAP", "-launcher", "-bootstrap", "-rmk"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_BOOTSTRAP_EXEC", "-launcher-exec", "-bootstrap-exec"),
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
    ),
}


def limited(
    flavour: str, mpirun: Path, environ: Mapping[str, str], arguments: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Variables for an ``mpirun`` that is to reach other hosts, and the user's ``arguments`` as it is to get
    them, so that its ssh gives up. Where another program is to be used, nothing is changed."""
    given = list(arguments)
    if (open_mpi := _OPEN_MPIS.get(flavour)) is not None:
        return _of_open_mpi(open_mpi, mpirun, environ, given), given
    return _of_hydra(_HYDRAS[flavour], environ, given), given


def _of_open_mpi(
    known: _OpenMpi, mpirun: Path, environ: Mapping[str, str], arguments: list[str]
) -> dict[str, str]:
    """Amends an agent in ``arguments``, which wins over variables, as these do over files."""
    said = _in_files(known, mpirun, environ)
    idle = {f"oob_tcp_keepalive_{name}": str(value) for name, value in _IDLE.items()}
    if any(name in said or known.prefix + name in environ for name in idle):
        idle = {}
    found = {known.prefix + name: value for name, value in idle.items()}
    places = [
        at + 2 for at, (option, name) in enumerate(itertools.pairwise(arguments[:-1]))
        if re.fullmatch(r"--?g?(prte)?mca", option) and re.fullmatch(known.named, name)
    ]  # fmt: skip
    for at in places:
        arguments[at] = _with_our_options(arguments[at])
    if not places:
        name = known.prefix + known.agent
        found[name] = _with_our_options(environ.get(name) or said.get(known.agent) or "ssh : rsh")
    return found


def _in_files(known: _OpenMpi, mpirun: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What the user's and the installation's files say, the user's first."""
    said: dict[str, str] = {}
    for path in (
        mpirun.resolve().parent.parent / "etc" / f"{known.file}-mca-params.conf",
        Path(environ.get("HOME") or "/", known.folder, "mca-params.conf"),
    ):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, mark, value = line.partition("#")[0].partition("=")
                if mark:
                    said[name.strip()] = value.strip()
    return said


def _with_our_options(agents: str) -> str:
    """A list of agents, of which Open MPI takes the first that is there: of each ssh with our options."""
    return " : ".join(
        " ".join([one.strip(), *OPTIONS]) if _is_ssh(one) else one.strip() for one in agents.split(":")
    )


def _is_ssh(command: str) -> bool:
    return os.path.basename((command.split() or [""])[0]) == "ssh"  # noqa: PTH119 - of a command


def _of_hydra(known: _Hydra, environ: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    launcher = _asked_for(known.launcher, environ, arguments)
    if any(one != "ssh" for one in launcher):
        return {}
    if not launcher and any(name.startswith(_BY_OTHERS) for name in environ):
        return {}
    if not all(_is_ssh(one) for one in _asked_for(known.program, environ, arguments)):
        return {}
    return {known.more: " ".join(filter(None, [environ.get(known.more), *OPTIONS]))}


def _asked_for(names: Iterable[str], environ: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The values of some variables and options, as far as they are given."""
    found = [environ[name] for name in names if environ.get(name)]
    for word, value in itertools.pairwise(arguments):
        if "-" + word.lstrip("-") in names:
            found.append(value)
    return found
