"""Which of ssh's settings the user's and the system's files say, that ours do not override."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_SECONDS = 5.0
_BATCH = "batchmode"
_READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)


def set_for(
    command: Sequence[str],
    hosts: Sequence[str],
    names: Collection[str],
    environ: Mapping[str, str] | None = None,
) -> dict[str, frozenset[str]]:
    """For each host which of these settings, in ssh's own words (`ssh -G`), its files say something of that
    is no default of ``command``, an ssh with its options. Nothing is connected to. Of an ssh that cannot say
    it, none."""
    if not hosts:
        return {}
    asked = {*names, _BATCH}
    found, files = _asked([*command, "-v"], hosts[0], asked, environ)
    said = {hosts[0]: found}
    # One more process for each host only where they may differ.
    differ = any(_speaks_of(Path(file), asked) for file in files)
    for host in hosts[1:]:
        said[host] = _asked(command, host, asked, environ)[0] if differ else found
    # Asked for, since a default may hang on another option: Debian's ssh has one with BatchMode, which may
    # stand in the files too.
    without = [*command, "-F", "none"]
    defaults = {}
    for batch in {one.get(_BATCH, "") for one in said.values()}:
        more = ("-o", f"{_BATCH}={batch}") if batch else ()
        defaults[batch] = _asked([*without, *more], hosts[0], names, environ)[0]
    return {
        host: frozenset(
            name for name in names if name in one and one[name] != defaults[one.get(_BATCH, "")].get(name)
        )
        for host, one in said.items()
    }


def _asked(
    command: Sequence[str], host: str, names: Collection[str], environ: Mapping[str, str] | None
) -> tuple[dict[str, str], list[str]]:
    """The settings of one host, and the files that ssh has read where it was to say so."""
    import subprocess  # no part of what most starts need

    try:
        done = subprocess.run(
            [*command, "-G", "--", host], env=environ, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_SECONDS, check=True, encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}, []
    said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    return {name: said[name] for name in names if name in said}, _READ.findall(done.stderr)


def _speaks_of(file: Path, names: Collection[str]) -> bool:
    try:
        text = file.read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False
    return any(name in text for name in names)
