"""``shardrun inspect``: what a model or a slice folder holds, and what slicing would do."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.options import PLANNED, add_groups, add_hosts, add_option, key_of, whole
from launcher.errors import ConfigError
from launcher.job.options import ENCRYPTED, SLICING
from sharding.common.bounds import MAX_RANKS
from sharding.common.text import shortened

if TYPE_CHECKING:
    from launcher.inspection.forecast import Forecast
    from launcher.inspection.inspection import Inspection
    from launcher.inspection.model_summary import ModelSummary
    from launcher.inspection.reference import ModelReference
    from launcher.job.slicing import Slicing
    from sharding.common.encryption import Key
    from sharding.slices.state import Tensor

DESCRIPTION = """\
Shows what a model holds: inputs, outputs, weights, operators. Of a slice folder, or with --ranks, the plan:
per layer what each rank holds and where ranks talk; -v adds every weight's placement. Of rank models made
elsewhere ({} stands for the rank) what each holds. --html draws a plan on a page of its own. --world
predicts memory per rank and bytes per inference for several numbers of ranks without slicing."""
EPILOG = """\
examples:
  shardrun inspect model.onnx
  shardrun inspect model.onnx --ranks 4 --html plan.html
  shardrun inspect slices -v
  shardrun inspect 'rank_{}_model.onnx'
  shardrun inspect model.onnx --world 8,16,64 --dim batch=4 --dim sequence=2048
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR|PATTERN", type=Path)
    add_option(parser, "ranks", "plan for N ranks")
    parser.add_argument(
        "--world",
        metavar="N,N,...",
        type=_worlds,
        help="predict bytes per rank and per inference for these many ranks",
    )
    what = "length of a symbolic dimension"
    add_option(parser, "dims", f"{what}, in figures of bytes and for the plan, which is {PLANNED}")
    parser.add_argument("--html", metavar="FILE", type=Path, help="draw the plan on one self-contained page")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    add_groups(parser, SLICING, ENCRYPTED)
    add_hosts(parser)


def _worlds(text: str) -> list[int]:
    one = whole(1, MAX_RANKS)
    return [one(part.strip()) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Reads, predicts, draws, prints."""
    from launcher.inspection.model_kinds import check_sliceable
    from launcher.inspection.reference import refer
    from launcher.job.decryption import check_key
    from launcher.job.slicing import slicing_of

    slicing = slicing_of(vars(args))
    dims = slicing.said.dims
    slicing.check(getattr(args, "ranks", None))
    key = key_of(args)
    check_sliceable(args.model)
    model = refer(args.model)
    check_key(key, model)
    if model.kind == "pattern":
        return _print_rank_models(args, slicing, key)
    planned = model.kind == "slices" or "ranks" in args or slicing.count() is not None
    if args.html is not None and not planned:
        raise ConfigError(
            "--html draws a plan: say for how many ranks with --ranks N, or give a slice folder"
        )
    if args.world is not None and (planned or args.html is not None):
        raise ConfigError(
            "--world is for a model that is not sliced and excludes --ranks, --mesh, --plan and --html"
        )
    if dims:
        _check_dims(args, model, dims, key)
    if args.world is not None:
        return _print_forecasts(args, slicing, key)
    if not planned:
        return _print_model(args, key)
    if args.html is not None:
        from launcher.common.files import check_target

        check_target("--html", args.html, "page")
    inspection = _inspection(args, model, slicing, key)
    from launcher.common.report import warn_of

    warn_of(inspection.warning, args.model)
    if args.html is not None:
        _write_page(args.html, inspection)
    if args.json:
        json.dump(inspection.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print_inspection(inspection, weights=args.verbose > 0)
    if args.html is not None and not args.json:
        from launcher.common.report import say

        say(f"wrote {args.html}")
    return 0


def _check_dims(
    args: argparse.Namespace, model: ModelReference, dims: Mapping[str, int], key: Key | None
) -> None:
    """Refuses dimensions that the model does not have, before it is planned."""
    from launcher.inspection.signature import check_dims, declared_by, manifest_symbols

    if model.kind == "slices":
        check_dims(dims, manifest_symbols(model.open(getattr(args, "ranks", None))))
    elif (found := declared_by(args.model, key, runs=False)) is not None:
        check_dims(dims, found.symbols)


def _inspection(
    args: argparse.Namespace, model: ModelReference, slicing: Slicing, key: Key | None
) -> Inspection:
    from launcher.inspection.inspection import of_plan, of_slices

    if model.kind == "slices":
        return of_slices(model.path, model.open(getattr(args, "ranks", None)), slicing.said.dims)
    from sharding.planning.plan import plan_model

    ranks = slicing.count(getattr(args, "ranks", None))
    assert ranks is not None, "run() plans only where something says the number of ranks"
    return of_plan(plan_model(args.model, ranks, options=slicing.options(), key=key), slicing.said.dims)


def _write_page(path: Path, inspection: Inspection) -> None:
    from launcher.common.files import write_file
    from launcher.inspection.page import render

    write_file(path, render(inspection).encode(), "plan")


def _print_model(args: argparse.Namespace, key: Key | None) -> int:
    from launcher.inspection.model_summary import summarize

    summary = summarize(args.model, key)
    if args.json:
        json.dump(summary.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print_model(summary, limit=None if args.verbose else 10)
    return 0


def print_model(summary: ModelSummary, limit: int | None) -> None:
    """Prints a model's summary; ``limit``: how many weights and operators are listed."""
    from launcher.common.report import counted, human_bytes, print_table

    opsets = ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())
    facts = [
        ("IR version", str(summary.ir_version)),
        ("opsets", opsets),
        ("made by", summary.producer or "?"),
        ("weights", f"{len(summary.weights)} of {human_bytes(summary.bytes)}"),
        ("nodes", f"{sum(summary.operators.values())} of {counted(len(summary.operators), 'operator')}"),
    ]
    if summary.functions:
        facts.append(("functions", str(summary.functions)))
    if summary.annotated:
        facts.append(("device configurations", ", ".join(summary.annotated)))
    print_table(["", "model"], facts, "ll", title=str(summary.path))
    print()
    print_signature(summary.inputs, summary.outputs)
    print()
    rows = [
        [n, dtype, str(list(shape)), human_bytes(size)] for n, dtype, shape, size in summary.weights[:limit]
    ]
    print_table(["largest weights" if limit else "weights", "type", "shape", "bytes"], rows, "lllr")
    print()
    operators = list(summary.operators.items())[:limit]
    print_table(["operator", "nodes"], [[name, str(count)] for name, count in operators], "lr")
    left = len(summary.weights) - len(rows), len(summary.operators) - len(operators)
    if any(left):
        print(f"(-v lists the other {counted(left[0], 'weight')} and {counted(left[1], 'operator')} too)")


def print_signature(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Prints inputs and outputs."""
    from launcher.common.report import print_table
    from launcher.inspection.inspection import shape_text

    rows = [
        [kind, name, dtype, shape_text(shape)]
        for kind, tensors in (("input", inputs), ("output", outputs))
        for name, dtype, shape in tensors
    ]
    print_table(["", "name", "type", "shape"], rows, "llll")


def print_inspection(x: Inspection, *, weights: bool) -> None:
    """Prints a plan by layer and, if wanted, every weight's placement."""
    from launcher.common.report import human_bytes, print_table, say
    from launcher.inspection.page import describe_mesh
    from sharding.common.text import reason_rows

    say(f"{x.title}: {describe_mesh(x)}")
    for _, part in reason_rows(x.reason):
        say(f"  {part}")
    print_signature(x.inputs, x.outputs)
    print()
    rows = []
    for layer in x.layers:
        talks = Counter(talk.op for talk in layer.talks)
        rows.append([
            shortened(layer.name),
            *([str(layer.stage)] if x.stages > 1 else []),
            human_bytes(layer.bytes),
            human_bytes(layer.rank_bytes),
            ", ".join(f"{count} {op}" for op, count in talks.items()),
            human_bytes(layer.sent) if layer.sent else "",
        ])  # fmt: skip
    stage = ["stage"] if x.stages > 1 else []
    columns = ["layer", *stage, "weights", "each rank", "collectives", "sent by each rank"]
    print_table(columns, rows, "l" + "r" * len(stage) + "rrlr")
    if weights:
        print()
        listed = [
            [w.name, str(w.placement), w.dtype, str(list(w.shape)), human_bytes(w.bytes)]
            for layer in x.layers
            for w in layer.weights
        ]
        print_table(["weight", "placement", "type", "shape", "bytes"], listed, "llllr")
    print()
    totals = [
        [str(stage), human_bytes(x.stage_bytes(stage)), human_bytes(x.stage_sent(stage))]
        for stage in range(x.stages)
    ]
    print_table(["stage", "weights of each rank", "sent by each rank"], totals, "rrr")
    if x.state:
        say(f"state: {x.state.text()}")
    if x.whole:
        say(f"whole operators: {', '.join(f'{count} {op}' for op, count in sorted(x.whole.items()))}")
    if x.warning:
        say(f"warning: {x.warning.partition(':')[0]}")


def _print_rank_models(args: argparse.Namespace, slicing: Slicing, key: Key | None) -> int:
    """Rank models made elsewhere: nobody knows how they were cut, so each is shown as it is."""
    from launcher.common.report import human_bytes, print_table, say
    from launcher.inspection.rank_inspection import look
    from sharding.common.text import counted, shortened

    given = [
        *slicing.given,
        *(["--world"] if args.world is not None else []),
        *(["--html"] if args.html is not None else []),
    ]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: {args.model} names rank models, which are cut already; give the whole model"
        )
    found = look(args.model, getattr(args, "ranks", None), key)
    if args.json:
        json.dump(found.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
        return 0
    say(f"{args.model}: {counted(len(found.ranks), 'rank model')} made elsewhere")
    print_signature(found.inputs, found.outputs)
    print()
    rows = [
        [str(item.rank), item.file, str(item.weights), human_bytes(item.bytes), item.talks]
        for item in found.ranks
    ]
    print_table(["rank", "file", "weights", "bytes", "collectives"], rows, "rlrrl")
    print()
    layers = [[shortened(item.name), human_bytes(item.bytes), item.talks] for item in found.layers]
    print_table(["layer of rank 0", "bytes", "collectives"], layers, "lrl")
    if args.verbose:
        print()
        weights = [
            [name, dtype, str(list(shape)), human_bytes(size)] for name, dtype, shape, size in found.weights
        ]
        print_table(["weight of rank 0", "type", "shape", "bytes"], weights, "lllr")
    return 0


def _print_forecasts(args: argparse.Namespace, slicing: Slicing, key: Key | None) -> int:
    from launcher.common.report import human_bytes, print_table
    from launcher.inspection.forecast import forecast

    options, dims = slicing.options(), slicing.said.dims
    found: list[Forecast] = [forecast(args.model, ranks, options, dims, key) for ranks in args.world]
    if args.json:
        json.dump([item.to_json() for item in found], sys.stdout, indent=1)
        print()
        return 0
    rows = [
        [
            str(item.ranks),
            human_bytes(item.weight_bytes),
            f"{100 * item.weight_bytes / item.all_bytes:.1f} %" if item.all_bytes else "-",
            human_bytes(item.activation_bytes),
            str(item.collectives),
            human_bytes(item.sent_bytes),
            item.note,
        ]
        for item in found
    ]
    columns = [
        "ranks",
        "weights of each rank",
        "of all",
        "activations",
        "collectives",
        "sent by each rank",
        "",
    ]
    print_table(columns, rows, "rrrrrrl", title=f"{args.model}: {human_bytes(found[0].all_bytes)} of weights")
    return 0
