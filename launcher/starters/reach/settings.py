"""Which of ssh's settings the user's and the system's files say, that ours do not override."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_SECONDS = 5.0
_READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)


def set_for(
    command: Sequence[str],
    hosts: Sequence[str],
    defaults: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
) -> dict[str, frozenset[str]]:
    """For each host the settings that are other than ssh's ``defaults``, by ``command``, an ssh with its
    options. Nothing is connected to. Of an ssh that cannot say it, none."""
    if not hosts:
        return {}
    found, files = _asked([*command, "-v"], hosts[0], defaults, environ)
    # One more process for each host only where they may differ.
    differ = any(_speaks_of(Path(file), defaults) for file in files)
    others = {host: _asked(command, host, defaults, environ)[0] for host in hosts[1:]} if differ else {}
    return {**dict.fromkeys(hosts, found), **others}


def _asked(
    command: Sequence[str], host: str, defaults: Mapping[str, str], environ: Mapping[str, str] | None
) -> tuple[frozenset[str], list[str]]:
    """The settings of one host, and the files that ssh has read where it was to say so."""
    try:
        done = subprocess.run(
            [*command, "-G", "--", host], env=environ, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_SECONDS, check=True, encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return frozenset(), []
    said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    other = (name for name, default in defaults.items() if said.get(name, default) != default)
    return frozenset(other), _READ.findall(done.stderr)


def _speaks_of(file: Path, names: Collection[str]) -> bool:
    try:
        text = file.read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False
    return any(name in text for name in names)
