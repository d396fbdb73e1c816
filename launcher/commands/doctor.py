"""``shardrun doctor``: whether this machine can do the work, and what to do where it cannot."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.commands.options import add_option
from launcher.errors import ConfigError
from launcher.job.options import RANKS, grouped

if TYPE_CHECKING:
    from launcher.checkup.base import Finding
    from launcher.job.start_arguments import StartArguments

DESCRIPTION = """\
Looks at Python, ONNX Runtime, MPI, torch, GPUs, cores, memory, limits, network, Slurm and the cache, and says
of each what it found and what to do. With --rank-table it also looks at the table's hosts: ssh, clocks,
versions, and what they lack. With --ranks or --rank-table ranks are started: they meet, sum numbers, and are
timed."""
EPILOG = """\
examples:
  shardrun doctor
  shardrun doctor --ranks 2 --launcher mpirun
  shardrun doctor --rank-table hosts.json

exit codes:
  0 nothing fails (there may be warnings); 1 something fails; 2 wrong usage
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    where = parser.add_mutually_exclusive_group()
    add_option(where, "ranks", "start so many ranks, and try them")
    add_option(where, "rank_table", "look at these hosts, start their ranks, and try them")
    for name in ("launcher", "collectives", "timeout"):
        add_option(
            parser, name, "how long ranks wait for each other (default: 60)" if name == "timeout" else None
        )
    parser.add_argument(
        "--save-link", metavar="FILE", type=Path,
        help="with --rank-table of several hosts: write how fast they are joined, for --link",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 where something fails."""
    from launcher.checkup.base import Asked, examine

    given = vars(args)
    if given.get("launcher") == "external":
        raise ConfigError("--launcher external: doctor starts its ranks itself; name what starts them")
    if args.save_link is not None:
        from launcher.common.files import check_target

        if given.get("rank_table") is None:
            raise ConfigError("--save-link measures between hosts: give their table with --rank-table")
        check_target("--save-link", args.save_link, "link")
    table = None
    if given.get("rank_table") is not None:
        from launcher.job.rank_table import load_rank_table

        table = load_rank_table(given["rank_table"])
    found = examine(Asked(table))
    if not args.json:
        _show(found)
    if table is not None or "ranks" in given:
        from launcher.checkup.handshake import TITLE, try_ranks

        options = {option.name: given[option.name] for option in grouped(RANKS) if option.name in given}
        findings = try_ranks(cast("StartArguments", options), args.save_link)  # by the same names
        tried = [(TITLE, finding) for finding in findings]
        found += tried
        if not args.json:
            _show(tried)
    if args.json:
        items = [
            {"check": title, "level": item.level, "found": item.what, "advice": item.advice}
            for title, item in found
        ]
        json.dump(items, sys.stdout, indent=1)
        print()
    return int(any(finding.level == "fail" for _, finding in found))


def _show(found: list[tuple[str, Finding]]) -> None:
    from launcher.common.report import say

    for title, finding in found:
        say(f"{finding.level:<4}  {title:<12}  {finding.what}")
        if finding.advice and finding.level != "ok":
            say(f"{'':<4}  {'':<12}  -> {finding.advice}")
    sys.stdout.flush()
