"""A real job of small sums, through the starter that is asked for."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.checkup import probe
from launcher.checkup.base import Finding
from launcher.common.report import human_bytes, human_seconds
from launcher.errors import ShardrunError
from sharding.common.text import counted, one_line

if TYPE_CHECKING:
    from launcher.job.start_arguments import StartArguments

TITLE = "ranks"
SECONDS = 60.0
"""How long ranks wait for each other, where ``--timeout`` does not say it."""


def try_ranks(options: StartArguments, save: Path | None = None) -> list[Finding]:
    """What came of it; ``options`` are those of `launcher.group.starting.run_program`. ``save``: the file
    for the speed of the link between hosts. Raises `ConfigError` where it cannot be written."""
    from launcher.group.starting import run_program

    options.setdefault("timeout", SECONDS)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            run_program(["exec", str(Path(probe.__file__).resolve())], **options)
    except ShardrunError as error:
        return [Finding("fail", one_line(str(error)), "the lines above say what is missing; `-v` says more")]
    try:
        said = printed.getvalue().strip().splitlines()[-1]
        found = json.loads(said[said.index("{") :])  # before it stand the rank and its host
    except (ValueError, IndexError):
        words = one_line(printed.getvalue())[:200] or "it said nothing"
        return [Finding("fail", f"rank 0 did not say what it found ({words})")]
    hosts = list(dict.fromkeys(found["hosts"]))
    where = hosts[0] if len(hosts) == 1 else f"{counted(len(hosts), 'host')} ({', '.join(hosts[:8])})"
    # Each rank sends and receives so much, whichever way round the sum is made.
    moved = 2 * found["bytes"] * (found["ranks"] - 1) / found["ranks"]
    findings = [
        Finding(
            "ok", f"{found['ranks']} on {where} met by {found['backend']} in {human_seconds(found['met'])}"
        ),
        Finding(
            "ok",
            f"a sum of 4 B takes {human_seconds(found['small'])}, of {human_bytes(found['bytes'])} "
            f"{human_seconds(found['large'])} ({human_bytes(int(moved / found['large']))}/s each way)",
        ),
    ]
    if save is not None:
        findings.append(_saved(save, len(hosts), found))
    return findings


def _saved(path: Path, hosts: int, found: dict[str, float]) -> Finding:
    """Writes what joins the hosts, as the times of sums say it: a ring of hosts takes so many rounds."""
    if hosts == 1:
        return Finding("fail", f"{path} is not written: all ranks are on one host", "give a table of several")
    from launcher.common.files import write_file
    from launcher.job.places.link import link_text
    from sharding.slices.topology import Link

    rounds = 2 * (hosts - 1)
    moving = found["large"] - found["small"]
    if moving <= 0:
        return Finding("fail", f"{path} is not written: the large sum took no longer than the small one",
                       "something else keeps the hosts or their network busy: try again")  # fmt: skip
    link = Link(rounds / hosts * found["bytes"] / moving, found["small"] / rounds)
    write_file(path, link_text(link).encode(), "link")
    return Finding("ok", f"{path}: {link} between hosts, for --link")
