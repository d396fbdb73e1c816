"""What is said of a host on which no rank can be started, among all that a launching program prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORDS = re.compile(
    r"ssh: (?P<connect>connect to host (?P<a>\S+) port \d+: .+)"
    r"|ssh: (?P<resolve>Could not resolve hostname (?P<b>[^\s:]+): .+)"
    r"|(?P<banner>Connection timed out during banner exchange)"
    r"|(?P<timeout>Connection to (?P<c>\S+) port \d+ timed out)"
    r"|(?P<server>Timeout, server (?P<d>\S+) not responding\.?)"
    r"|(?P<exchange>(ssh|kex)_(exchange_identification|dispatch_run_fatal): .+)"
    r"|(?P<closed>Connection (closed|reset) by (?P<e>\S+) port \d+)"
    r"|(?P<key>Host key verification failed\.?)"
    r"|(?P<denied>(?:(\S+)@)?(?P<f>[\w.:-]+): Permission denied \([^)]*\)\.?)"
)
_HOSTS = (
    re.compile(r"Remote host: +(?P<host>\S+)"),  # Open MPI
    re.compile(r"[Uu]nable to run bstrap_proxy on (?P<host>\S+)"),  # Intel MPI, which keeps what ssh says
)
_FAILED = re.compile(r"Daemon exit status: +255\b|\(pid \d+, exit code 65280\)|Launch proxy failed")
"""That what should have begun a daemon ended with 255, as ssh does where it fails itself; MPICH does not say
with what."""
_LACKS = re.compile(
    r"^(?:\w+|(?:\d+: )?slurmstepd-\S+: error: execve\(\)): (?:line \d+: )?"
    r"(?P<what>[^:]+: (?:No such file or directory|(?:command )?not found))\s*$"
)
"""What a shell says there, or Slurm."""
_DAEMON = re.compile(r"Daemon exit status: +(?P<code>\d+)\b")
_SSH_FAILED, _NOT_FOUND = 255, 127
_SAID_ALREADY = 213
"""With which Open MPI's daemon ends where it has said why, but to nobody: it has not connected."""
INSTALL = "install the same at the same place on all hosts"
_SHOWN = 8
_KINDS = ("connect", "resolve", "banner", "timeout", "server", "exchange", "closed", "key", "denied")
_NAMES = "abcdef"


def unreached(tail: Sequence[str], far: Sequence[str]) -> tuple[str, str] | None:
    """The host of ``far`` that ssh has not reached, and what ssh says of it, each "" where that is not known;
    None where the lines of the launching program speak of no such thing."""
    host = words = ""
    failed = False
    for line in tail:
        failed = failed or _FAILED.search(line) is not None
        if not words and (found := _WORDS.search(line)):
            words = next(filter(None, (found[kind] for kind in _KINDS)), "").rstrip(". \r")
            host = host or next((found[name] for name in _NAMES if found[name] in far), "")
        for pattern in _HOSTS:
            if not host and (found := pattern.search(line)) and found["host"] in far:
                host = found["host"]
    if not words and (not failed or lacking(tail)):
        return None
    return host or (far[0] if len(far) == 1 else ""), words


def lacking(tail: Sequence[str]) -> str:
    """The program that a shell of another host does not find, and how it says so; "" for none."""
    return next((found["what"] for line in tail if (found := _LACKS.match(line.strip()))), "")


def not_started(what: str, why: str) -> str:
    """Why a rank is gone whose program cannot be started on its host."""
    return f"{what} cannot be started there ({why}): {INSTALL}"


def daemon_ended(tail: Sequence[str], far: Sequence[str]) -> tuple[str, int] | None:
    """The host of ``far`` on which Open MPI's daemon was started and ended at once, and its exit code."""
    said = "\n".join(tail)
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
    where = f"host {hosts[0]}" if len(hosts) == 1 else f"one of the hosts {', '.join(hosts[:_SHOWN])}"
    return (
        f"{where} cannot be reached over ssh{f' ({said})' if said else lost}, so {name} starts no ranks "
        f"there: see that the host is up, and that `ssh {hosts[0]}` connects without a question."
    )
