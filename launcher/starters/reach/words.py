"""What is said where ranks cannot be started on another host: by ssh, by a shell there, and then by us.

A line may be as long as a program likes: only its beginning is looked at, by patterns whose work grows as it
does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOOKED_AT = 500
"""Characters of a line."""
_SSH = tuple(map(re.compile, (
    r"ssh: (?P<said>connect to host (?P<host>\S+) port \d+: .+)",
    r"ssh: (?P<said>Could not resolve hostname (?P<host>[^\s:]+): .+)",
    r"(?P<said>Connection timed out during banner exchange)",
    r"(?P<said>Connection to (?P<host>\S+) port \d+ timed out)",
    r"(?P<said>Timeout, server (?P<host>\S+) not responding\.?)",
    r"(?P<said>(ssh|kex)_(exchange_identification|dispatch_run_fatal): .+)",
    r"(?P<said>Connection (closed|reset) by (?P<host>\S+) port \d+)",
    r"(?P<said>Unable to negotiate with (?P<host>\S+) port \d+: .+)",
    r"(?P<said>(Received disconnect|Disconnected) from (?P<host>\S+) port \d+:.+)",
    r"(?P<said>Too many authentication failures)",
    r"(?P<said>Host key verification failed\.?)",
    # In brackets are ways to log in: other programs say there why they may not open a file.
    r"^(?P<said>(\S+@(?P<host>[\w.:-]+): )?Permission denied \([a-z,-]+\)\.?)",
)))  # fmt: skip
_HOSTS = (
    re.compile(r"Remote host: +(?P<host>\S+)"),  # Open MPI
    re.compile(r"[Uu]nable to run bstrap_proxy on (?P<host>\S+)"),  # Intel MPI, which keeps what ssh says
)
_FAILED = re.compile(
    r"Daemon exit status: +255\b|\(pid \d+, exit code 65280\)|Launch proxy failed|NO PATH TO TARGET"
)
"""That what should have begun a daemon ended with 255, as ssh does where it fails itself (MPICH does not say
with what), or that Open MPI cannot talk to the daemon any more that it has begun."""
_GONE = r"(?:no such file or directory|(?:command )?not found|unknown command)"
_LACKS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in (
    # Shells: bash, dash; zsh and fish, which name the program last; csh, which says no name of its own.
    r"-?\w*sh: (?:(?:line )?\d+: )?(?:exec: )?"
    rf"(?P<what>[^:]+: (?:[^:]+: bad interpreter: |cannot execute: (?:required file )?)?"
    rf"(?:{_GONE}|permission denied))$",
    rf"-?\w*sh:(?:\d+:)? (?P<what>(?:{_GONE}|permission denied): [^:]+)$",
    r"(?P<what>[^\s:]+: command not found)\.$",
    # What a shell has started to find the program, and Slurm.
    rf"(?:\w+|(?:\d+: )?slurmstepd-\S+: error: execve\(\)): (?P<what>[^:]+: {_GONE})$",
))  # fmt: skip
_DAEMON = re.compile(r"Daemon exit status: +(?P<code>\d{1,9})\b")
_SSH_FAILED, _NOT_FOUND = 255, 127
_SAID_ALREADY = 213
"""With which Open MPI's daemon ends where it has said why, but to nobody: it has not connected."""
INSTALL = "install the same at the same place on all hosts"
_SHOWN = 8


def unreached(tail: Sequence[str], far: Sequence[str]) -> tuple[str, str] | None:
    """The host of ``far`` that ssh has not reached, and what ssh says of it, each "" where that is not known;
    None where the lines of the launching program speak of no such thing."""
    host = words = ""
    failed = False
    for line in _beginnings(tail):
        failed = failed or _FAILED.search(line) is not None
        if not words and (found := next(filter(None, (one.search(line) for one in _SSH)), None)):
            words = found["said"].rstrip(". ")
            named = found.groupdict().get("host")
            host = host or (named if named in far else None) or ""
        for pattern in _HOSTS:
            if not host and (found := pattern.search(line)) and found["host"] in far:
                host = found["host"]
    if not words and (not failed or lacking(tail)):
        return None
    return host or (far[0] if len(far) == 1 else ""), words


def lacking(tail: Sequence[str]) -> str:
    """The program that a shell of another host does not find, or may not run, and how it says so; "" for
    none."""
    found = (one.match(line) for line in _beginnings(tail) for one in _LACKS)
    return next((one["what"] for one in found if one), "")


def _beginnings(lines: Sequence[str]) -> list[str]:
    return [line[:_LOOKED_AT].strip() for line in lines]


def not_begun(name: str, tail: Sequence[str], far: Sequence[str], code: int | None = None) -> str:
    """Why nothing has begun on hosts that are reached over ssh, as far as the lines of the launching program
    say it, or its exit ``code`` where it is ssh itself; else ""."""
    if (found := unreached(tail, far)) is not None:
        return sentence(name, [found[0]] if found[0] else far, found[1])
    if lacks := lacking(tail):
        return f"{name} cannot start on {_listed(far)} what it needs there ({lacks}): {INSTALL}."
    if (daemon := daemon_ended(tail, far)) is not None:
        return daemon_sentence(name, *daemon)
    return sentence(name, far) if name == "ssh" and code == _SSH_FAILED and not tail else ""


def to_look_at(tail: Sequence[str], far: Sequence[str]) -> str:
    """What to see to, where the lines say no more than a host's name at most."""
    failed = [host for host in far if any(host in line.split() for line in _beginnings(tail))] or list(far)
    return (
        f" It starts ranks over ssh on {', '.join(failed[:_SHOWN])}: see that ssh is installed here, "
        f"that `ssh {failed[0]}` connects without a question, and that this program is installed there."
    )


def not_started(what: str, why: str) -> str:
    """Why a rank is gone whose program cannot be started on its host."""
    return f"{what} cannot be started there ({why}): {INSTALL}"


def daemon_ended(tail: Sequence[str], far: Sequence[str]) -> tuple[str, int] | None:
    """The host of ``far`` on which Open MPI's daemon was started and ended at once, and its exit code."""
    said = "\n".join(_beginnings(tail))
    found, where = _DAEMON.search(said), _HOSTS[0].search(said)
    code = int(found["code"]) if found is not None else 0
    if where is None or where["host"] not in far or code in {0, _SSH_FAILED, _NOT_FOUND}:
        return None
    return where["host"], code


def daemon_sentence(name: str, host: str, code: int) -> str:
    """That Open MPI's daemon ended on a host that ssh does reach."""
    what = f"{name} starts no ranks on host {host}: its daemon there ended with exit code {code}"
    if code != _SAID_ALREADY:
        return f"{what}: see that its MPI works there, and {INSTALL}."
    return (
        f"{what}, as where its folder for temporary files (TMPDIR, else /tmp) is full or cannot be written: "
        "make room there, or name another folder with --mpi-args '--prtemca prte_remote_tmpdir_base FOLDER'."
    )


def sentence(name: str, hosts: Sequence[str], said: str = "") -> str:
    """That one of these hosts is not reached by what starts ranks there, and what ssh ``said`` of it."""
    lost = "" if said else ", or the connection to it was lost"
    return (
        f"{_listed(hosts)} cannot be reached over ssh{f' ({said})' if said else lost}, so {name} starts no "
        f"ranks there: see that the host is up, and that `ssh {hosts[0]}` connects without a question."
    )


def lost(name: str, host: str, *, ssh: bool) -> str:
    """That a host is lost on which ranks were to be started."""
    if ssh:
        return sentence(name, [host])
    return (
        f"host {host}, where {name} starts ranks, does not answer: it is down, or the network to it is cut. "
        "See to it, or leave it out."
    )


def _listed(hosts: Sequence[str]) -> str:
    return f"host {hosts[0]}" if len(hosts) == 1 else f"one of the hosts {', '.join(hosts[:_SHOWN])}"
