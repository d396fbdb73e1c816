"""``shardrun slice``: one model into one shard per rank."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.options import add_slicing, whole
from launcher.errors import ConfigError
from launcher.job import MAX_RANKS

if TYPE_CHECKING:
    from sharding.plan import Plan

HELP = "slice a model into one shard per rank"
DESCRIPTION = """\
Slices an ONNX model into one rank model per rank (tensor parallelism) and prints the plan: which weights are
split, which collectives join the ranks, and what stays whole."""
EPILOG = """\
examples:
  shardrun slice model.onnx --ranks 2 --output slices
  shardrun slice model.onnx --ranks 4 --plan-only
  shardrun slice model.onnx --ranks 4 --plan-only --json > plan.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL.onnx", type=Path)
    parser.add_argument(
        "--ranks", metavar="N", type=whole(1, MAX_RANKS), required=True, help="number of ranks"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="the slice folder to write; an earlier one is replaced"
    )
    parser.add_argument("--plan-only", action="store_true", help="show the plan and write nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_slicing(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, writes and prints."""
    if args.output is None and not args.plan_only:
        raise ConfigError("slice: expected --output DIR, or --plan-only to write nothing")
    if args.output is not None and args.plan_only:
        raise ConfigError("slice: --output and --plan-only exclude each other")
    from launcher.report import counted, progress
    from sharding.plan import plan_model
    from sharding.write import check_output, write_slices

    if args.output is not None:
        check_output(args.output)
    plan = plan_model(args.model, args.ranks, allow_replicated=getattr(args, "allow_replicated", False))
    if args.output is not None:
        with progress(f"slicing {args.model.name}") as update:
            write_slices(plan, args.output, update)
    if args.json:
        json.dump(plan.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print_plan(plan, args.model, weights=args.verbose > 0)
        if args.output is not None:
            print(
                f"wrote {args.output}: {counted(plan.world_size, 'rank model')}; "
                f"`shardrun run {args.output}` runs {'it' if plan.world_size == 1 else 'them'}"
            )
    return 0


def print_plan(plan: Plan, model: Path, *, weights: bool) -> None:
    """Prints a plan as a table and, if wanted, every weight's placement."""
    from launcher.report import counted, human_bytes, print_table

    print_table(["", "plan"], plan.rows(), "ll", title=f"{model} on {counted(plan.world_size, 'rank')}")
    if weights:
        rows = [
            [
                name,
                ", ".join(map(str, held)),
                weight.dtype,
                str(list(weight.shape)),
                human_bytes(weight.nbytes),
            ]
            for name, held in plan.weights.items()
            for weight in [plan.source.weights[name]]
        ]
        print_table(["weight", "placement", "type", "shape", "bytes"], rows, "llllr")
    if plan.world_size > 1 and not plan.split_weights:
        logging.getLogger(__name__).warning("nothing is split: every rank holds the whole model")
