"""When ssh gives up on a host: ours, and the ssh by which an mpirun starts its daemons.

By itself an mpirun waits for ever for a host that answers nothing, or whose cable is cut before its daemon
has begun. What the user has set comes first: of two values of one option ssh takes the first, and what stands
in ssh's files is asked for, since a command line overrides it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.starters.reach import CONNECT_SECONDS
from launcher.starters.reach.settings import set_for
from ranks.common import sources

_CONNECTING = ("-o", f"ConnectTimeout={CONNECT_SECONDS}")
# A host that is gone is noticed in about the time in which the control channel does.
_LIVING = ("-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2")
OPTIONS = (*_CONNECTING, *_LIVING)
_CONNECT, _LIVE = "connecttimeout", ("serveraliveinterval", "serveralivecountmax")
"""The same in ssh's own words (`ssh -G`)."""
_IDLE = {"time": 9, "intvl": 2, "probes": 3}
"""Seconds, and how often: after 15 s of silence Open MPI's daemon on a host that is cut off ends, where no
rank of ours is there that ends it. The job has ended before: nothing in it waits for this."""
_BY_OTHERS = (
    sources.SLURM_JOB_ID,
    sources.SLURM_JOB_NODELIST,
    sources.SLURM_NODELIST,
    sources.PBS_JOBID,
    sources.PBS_NODEFILE,
    sources.LSB_JOBID,
    sources.PE_HOSTFILE,
    sources.COBALT_JOBID,
    sources.LOADL_STEP_ID,
)
"""Variables of jobs of batch systems, whose own programs MPICH and Intel MPI may start daemons by: these
would be given the same arguments. Where such a system is, as by SLURM_CONF, is no job."""


def options(
    hosts: Sequence[str], command: Sequence[str] = ("ssh",), environ: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Our options for each host, without those of which ssh's files say something themselves."""
    said = set_for(command, hosts, (_CONNECT, *_LIVE), environ)
    return {
        host: (*(() if _CONNECT in found else _CONNECTING), *(_LIVING if found <= {_CONNECT} else ()))
        for host, found in said.items()
    }


def _ours(command: Sequence[str], asked: _Asked) -> str:
    """Our options behind an ssh with those of the user, for all hosts."""
    if not asked.hosts:
        return " ".join(OPTIONS)
    found = options(asked.hosts, command, asked.environ).values()
    kept = (part for part in (_CONNECTING, _LIVING) if all(set(part) <= set(one) for one in found))
    return " ".join(word for part in kept for word in part)


class _Asked(NamedTuple):
    """Who is to be reached, and with which variables ssh runs."""

    hosts: Sequence[str]
    environ: Mapping[str, str]


class _OpenMpi(NamedTuple):
    prefix: str
    agent: str
    named: str
    """A pattern of what the agent is called on a command line."""
    more: str
    """What holds more arguments for it, which come after those that stand beside its name."""
    flat: str
    """What has mpirun itself reach every host."""
    folder: str
    file: str


_OPEN_MPIS = {
    "openmpi": _OpenMpi(
        "PRTE_MCA_",
        "plm_ssh_agent",
        r"(prte|plm_ssh|plm_rsh)_(ssh_|rsh_)?agent",
        "plm_ssh_args",
        "plm_ssh_no_tree_spawn",
        ".prte",
        "prte",
    ),
    "openmpi4": _OpenMpi(
        "OMPI_MCA_",
        "plm_rsh_agent",
        r"(orte|pls|plm)_(ssh|rsh)_agent",
        "plm_rsh_args",
        "plm_rsh_no_tree_spawn",
        ".openmpi",
        "openmpi",
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
    flavour: str,
    mpirun: Path,
    environ: Mapping[str, str],
    arguments: Sequence[str],
    hosts: Sequence[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """Variables for an ``mpirun`` that is to reach other ``hosts``, and the user's ``arguments`` as it is to
    get them, so that its ssh gives up. Where another program is to be used, nothing is changed."""
    given, asked = list(arguments), _Asked(hosts, environ)
    if (open_mpi := _OPEN_MPIS.get(flavour)) is not None:
        return _of_open_mpi(open_mpi, mpirun, asked, given), given
    return _of_hydra(_HYDRAS[flavour], asked, given), given


def _of_open_mpi(known: _OpenMpi, mpirun: Path, asked: _Asked, arguments: list[str]) -> dict[str, str]:
    """Amends an agent in ``arguments``, which wins over variables, as these do over files; or what is said
    of its arguments, where something is."""
    environ, said = asked.environ, _in_files(known, mpirun, asked.environ)
    idle = {f"oob_tcp_keepalive_{name}": str(value) for name, value in _IDLE.items()}
    if any(name in said or known.prefix + name in environ for name in idle):
        idle = {}
    found = {known.prefix + name: value for name, value in idle.items()}
    found |= _amended(known, said, asked, arguments)
    # Of more than 64 hosts, daemons there would reach the others: Open MPI 5 tells them what its ssh is up to
    # the first "=" only.
    places = _places(known.named, arguments) + _places("plm_(ssh|rsh)_args", arguments)
    told = [found.get(known.prefix + name, "") for name in (known.agent, known.more)]
    cut = any("=" in words for words in (*told, *(arguments[at] for at in places)))
    if cut and known.flat not in said and known.prefix + known.flat not in environ:
        found[known.prefix + known.flat] = "1"
    return found


def _amended(known: _OpenMpi, said: Mapping[str, str], asked: _Asked, arguments: list[str]) -> dict[str, str]:
    """The variables by which its ssh gets our options, where it does not in ``arguments``."""
    environ = asked.environ
    agents, more = _places(known.named, arguments), _places("plm_(ssh|rsh)_args", arguments)
    agent_name, more_name = known.prefix + known.agent, known.prefix + known.more
    agent = environ.get(agent_name) or said.get(known.agent) or "ssh : rsh"
    if words := " ".join(arguments[at] for at in more) or environ.get(more_name) or said.get(known.more):
        first = (arguments[agents[-1]] if agents else agent).partition(":")[0]
        if not _is_ssh(first):
            return {}
        told = f"{words} {_ours([*first.split(), *words.split()], asked)}".rstrip()
        if not more:
            return {more_name: told}
        arguments[more[-1]] = told.removeprefix(" ".join(arguments[at] for at in more[:-1])).lstrip()
        return {}
    for at in agents:
        arguments[at] = _with_our_options(arguments[at], asked)
    return {} if agents else {agent_name: _with_our_options(agent, asked)}


def _places(named: str, arguments: Sequence[str]) -> list[int]:
    """Where the values of a parameter of such a name stand on the command line."""
    return [
        at + 2 for at, (option, name) in enumerate(itertools.pairwise(arguments[:-1]))
        if re.fullmatch(r"--?g?(prte)?mca", option) and re.fullmatch(named, name)
    ]  # fmt: skip


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


def _with_our_options(agents: str, asked: _Asked) -> str:
    """A list of agents, of which Open MPI takes the first that is there: of each ssh with our options."""
    return " : ".join(
        f"{one.strip()} {_ours(one.split(), asked)}".rstrip() if _is_ssh(one) else one.strip()
        for one in agents.split(":")
    )


def _is_ssh(command: str) -> bool:
    return os.path.basename((command.split() or [""])[0]) == "ssh"  # noqa: PTH119 - of a command


def _of_hydra(known: _Hydra, asked: _Asked, arguments: Sequence[str]) -> dict[str, str]:
    environ = asked.environ
    launcher = _asked_for(known.launcher, environ, arguments)
    if any(one != "ssh" for one in launcher):
        return {}
    if not launcher and any(name in environ for name in _BY_OTHERS):
        return {}
    programs = _asked_for(known.program, environ, arguments)
    if not all(_is_ssh(one) for one in programs):
        return {}
    more = environ.get(known.more) or ""
    ours = _ours([*(programs or ["ssh"])[:1], *more.split()], asked)
    return {known.more: " ".join(filter(None, [more, ours]))}


def _asked_for(names: Iterable[str], environ: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The values of some variables and options, as far as they are given; an option's value may stand in the
    same word."""
    found = [environ[name] for name in names if environ.get(name)]
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        option, mark, value = word.partition("=")
        if word.startswith("-") and "-" + option.lstrip("-") in names:
            found.append(value if mark else following)
    return found
