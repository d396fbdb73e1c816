"""``shardrun cache``: what is kept between runs, and emptying it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.job.cache_contents import Item

DESCRIPTION = """\
Lists and clears the cache: sliced models (slices), models converted to ONNX (converted), rank models that
`--stage` copied (staged), hashes of model files (hashes), optimised models with packed weights, which several
processes hold once (weights), models optimised for a GPU whose weights processes share (device), models that
the example of the source tree exported (minilm), and those of its benchmarks in versions before (benchmarks).
All of it is made again when it is needed. The cache is $SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else
~/.cache/shardrun. When something is added that makes it larger than $SHARDRUN_CACHE_LIMIT, what was not used
for longest and is not in use goes."""
EPILOG = """\
examples:
  shardrun cache list
  shardrun cache list weights
  shardrun cache clear
  shardrun cache clear weights hashes
"""
_KINDS = ("slices", "converted", "staged", "hashes", "weights", "device", "minilm", "benchmarks")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``list`` and ``clear``."""
    actions = parser.add_subparsers(dest="action", metavar="list|clear", required=True)
    show = actions.add_parser(
        "list", help="show size, last use and origin of everything in the cache, or of some kinds"
    )
    clear = actions.add_parser("clear", help="remove everything, or some kinds; what is in use stays")
    for action in (show, clear):
        action.add_argument("kinds", metavar="|".join(_KINDS), nargs="*", help="default: all of them")
        action.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs the chosen action."""
    if unknown := [kind for kind in args.kinds if kind not in _KINDS]:
        from launcher.errors import ConfigError

        raise ConfigError(f"cache {args.action}: expected any of {', '.join(_KINDS)}, found {unknown[0]!r}")
    return _list(args) if args.action == "list" else _clear(args)


def _list(args: argparse.Namespace) -> int:
    from launcher.common.report import human_bytes, print_table, say
    from launcher.job.cache_contents import contents

    found = contents(args.kinds or _KINDS)
    if args.json:
        data = {
            "folder": str(found.folder),
            "items": [_told(item) for item in found.items],
            "bytes": found.occupied,
            "limit": found.limit,
        }
        json.dump(data, sys.stdout, indent=1)
        print()
        return 0
    if found.items:
        rows = [
            [item.kind, human_bytes(item.bytes), _minute(item.used), item.what, item.name[:16]]
            if item.kind == "weights"
            else [item.kind, human_bytes(item.bytes), _minute(item.used), item.what, item.name]
            for item in found.items
        ]
        print_table(["kind", "size", "last use", "what", "name"], rows, "lrlll")
    total = human_bytes(sum(found.occupied.values()))
    which = f" of {', '.join(found.occupied)}," if args.kinds else ""
    say(f"{found.folder}: {total}{which} of at most {human_bytes(found.limit)}")
    return 0


def _clear(args: argparse.Namespace) -> int:
    from launcher.common.report import human_bytes
    from launcher.job.cache_contents import clear
    from sharding.common.text import one_line

    removed, busy = clear(args.kinds or _KINDS)
    if args.json:
        json.dump({"removed": [*map(_told, removed)], "in_use": [*map(_told, busy)]}, sys.stdout, indent=1)
        print()
        return 0
    for item in busy:
        print(one_line(f"{item.kind} {item.name} ({item.what}) is in use and stays"), file=sys.stderr)
    size = human_bytes(sum(item.bytes for item in removed))
    print(f"{len(removed)} {'entry' if len(removed) == 1 else 'entries'} removed ({size})")
    return 0


def _told(item: Item) -> dict[str, object]:
    used = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(item.used))
    return {**asdict(item), "used": used}


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
