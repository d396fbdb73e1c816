"""Where Slurm's daemons of some nodes listen, as `scontrol` says it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping

from launcher.starters.reach.answering import Place
from sharding.common.bounds import MAX_PORT
from sharding.common.text import parse_whole

_SECONDS = 3.0
_NODE = re.compile(r"^NodeName=(\S+) ", re.MULTILINE)
_ADDRESS, _PORT = re.compile(r" NodeAddr=(\S+)"), re.compile(r" Port=(\d{1,5})\b")
_COMMON_PORT = re.compile(r"^SlurmdPort\s*= (\d{1,5})$", re.MULTILINE)


def places(hosts: Collection[str], scontrol: str, environ: Mapping[str, str]) -> dict[str, Place]:
    """The daemon's place of each of these nodes that Slurm knows and has one for; a port of its own is said
    with the node, any other once for all."""
    known = _asked([scontrol, "--oneliner", "show", "node", ",".join(sorted(hosts))], environ)
    common = _COMMON_PORT.search(_asked([scontrol, "show", "config"], environ)) if known else None
    found = {}
    for line in known.splitlines():
        node, address = _NODE.match(line), _ADDRESS.search(line)
        port = _PORT.search(line) or common
        number = parse_whole(port[1], 1, MAX_PORT) if port else None
        if node and node[1] in hosts and address and number:
            found[node[1]] = (address[1], number)
    return found


def _asked(command: list[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
            check=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # then nothing is known
        return ""
    return done.stdout
