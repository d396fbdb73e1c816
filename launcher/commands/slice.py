"""``shardrun slice``: one model into one shard per rank."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.options import PLANNED, add_groups, add_hosts, add_option, key_of, whole
from launcher.common.files import check_folder, check_target, write_file
from launcher.errors import ConfigError
from launcher.job.options import ENCRYPTED, SLICING
from sharding.common.bounds import MAX_RANKS

if TYPE_CHECKING:
    from sharding.planning.plan import Plan

DESCRIPTION = """\
Slices an ONNX model into one rank model per rank and prints the plan: which weights are split, which
collectives join the ranks, and what stays whole."""
EPILOG = """\
examples:
  shardrun slice model.onnx --ranks 2 --output slices
  shardrun slice model.onnx --mesh pipeline=2,tensor=2 --micro-batches 4 --output slices
  shardrun slice model.onnx --ranks 4 --plan-only --json > plan.json
  shardrun slice model.onnx --ranks 4 --steer steer.yaml --save-plan plan.json --annotate annotated.onnx
  shardrun slice model.onnx --plan plan.json --rank 3 --output slices
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL.onnx", type=Path)
    add_option(parser, "ranks", "number of ranks; --mesh and --plan say it too")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="the slice folder to write; an earlier one is replaced"
    )
    parser.add_argument(
        "--rank", metavar="R", type=whole(0, MAX_RANKS - 1),
        help="write only what rank R runs, beside what other ranks wrote of the same plan",
    )  # fmt: skip
    what = "a likely length of a symbolic dimension"
    add_option(parser, "dims", f"{what}: the plan is right for all lengths and {PLANNED}")
    parser.add_argument("--plan-only", action="store_true", help="show the plan and write no slices")
    parser.add_argument(
        "--save-plan", metavar="FILE.json", type=Path, help="write the plan to a file, for --plan"
    )
    parser.add_argument(
        "--annotate", metavar="FILE.onnx", type=Path,
        help="write a copy of the model with the plan as multi-device annotations (ONNX IR 11)",
    )  # fmt: skip
    for flag in ("--precision-mode", "--execution-plan"):
        parser.add_argument(flag, dest="precision", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_groups(parser, SLICING, ENCRYPTED)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, writes and prints."""
    from launcher.inspection.model_kinds import check_sliceable
    from launcher.inspection.reference import refer
    from launcher.inspection.signature import declared_by
    from launcher.job.decryption import check_key
    from launcher.job.slicing import slicing_of

    slicing = slicing_of(vars(args))
    _check(args)
    slicing.check(getattr(args, "ranks", None))
    ranks = slicing.count(getattr(args, "ranks", None))
    if ranks is None:
        raise ConfigError(
            "slice: say over how many ranks, with --ranks N, --mesh AXIS=SIZE,... or --plan FILE"
        )
    model = refer(args.model)
    check_sliceable(args.model)
    key = key_of(args)
    check_key(key, model)
    if args.output is not None:
        declared_by(args.model, key)
    from launcher.common.report import counted, progress, say, warn_of
    from sharding.planning.plan import plan_model
    from sharding.writing.write import check_output, write_slices

    if args.output is not None and args.rank is None:
        check_output(args.output)
    if args.rank is not None and args.rank >= ranks:
        raise ConfigError(f"slice: --rank {args.rank} is none of the ranks 0..{ranks - 1}")
    plan = plan_model(args.model, ranks, options=slicing.options(), key=key)
    warn_of(plan.warning, args.model)
    written = []
    if args.output is not None:
        with progress(f"slicing {args.model.name}") as update:
            write_slices(plan, args.output, update, rank=args.rank)
        what = (
            counted(plan.world_size, "rank model") if args.rank is None else f"the model of rank {args.rank}"
        )
        them = "it" if plan.world_size == 1 or args.rank is not None else "them"
        written.append(f"wrote {args.output}: {what}; `shardrun run {args.output}` runs {them}")
    if args.save_plan is not None:
        from sharding.planning.saved_plan import plan_text

        write_file(args.save_plan, plan_text(plan).encode("utf-8", "surrogateescape"), "plan")
        written.append(f"wrote {args.save_plan}: the plan, for --plan")
    if args.annotate is not None:
        from sharding.writing.annotate import annotate

        annotate(plan, args.annotate)
        written.append(f"wrote {args.annotate}: the model with the plan as annotations")
    if args.json:
        json.dump(plan.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print_plan(plan, args.model, weights=args.verbose > 0)
        for line in written:
            say(line)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises `ConfigError` for what the command's own options do not allow."""
    if args.precision:
        raise ConfigError(
            "slice: slices keep the model's types; give --precision-mode and --execution-plan to `shardrun "
            "run` or `shardrun eval`, which run them"
        )
    if args.output is not None and args.plan_only:
        raise ConfigError("slice: --output and --plan-only exclude each other")
    if args.output is None and not (args.plan_only or args.save_plan or args.annotate):
        raise ConfigError("slice: expected --output DIR, or --plan-only to write nothing")
    if args.rank is not None and args.output is None:
        raise ConfigError("slice: --rank says what is written, so it needs --output DIR")
    if args.save_plan is not None:
        check_target("--save-plan", args.save_plan, "plan")
    if args.annotate is not None:
        check_folder("--annotate", args.annotate)
        if args.save_plan is not None and args.annotate.resolve() == args.save_plan.resolve():
            raise ConfigError(f"--annotate and --save-plan exclude each other's file {args.save_plan}")


def print_plan(plan: Plan, model: Path, *, weights: bool) -> None:
    """Prints a plan as a table and, if wanted, every weight's placement."""
    from launcher.common.report import counted, human_bytes, print_table

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
    if plan.tensor_size > 1 and not plan.split_weights:  # other strategies split no weight by design
        held = "the whole model" if plan.pipeline.count == 1 else "all of its stage"
        logging.getLogger(__name__).warning("nothing is split: every rank holds %s", held)
