"""``shardrun eval``: how good a model is on labelled data."""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.commands.options import ABSENT, PLANNED, add_groups, add_option, whole
from launcher.commands.parsing import Late
from launcher.errors import ConfigError
from launcher.job.options import ENCRYPTED, RANKS, SLICING, TYPES
from sharding.common.text import parse_whole

DESCRIPTION = """\
Runs a model over labelled data, batch by batch, and prints metrics of its predictions. The data are an .npz
file, a folder of .npz files (parts of the data), or a folder of .npy files (one an array); they are read as
they are needed and need not fit into memory. Runs on one rank unless told otherwise; `shardrun run --help`
says how ranks are started."""
_EPILOG = """\
metrics:
{metrics}

examples:
  shardrun eval model.onnx --data test.npz --metric accuracy --metric top5
  shardrun eval model.onnx --data test.npz --metric mse --label targets --rename x=pixels
  shardrun eval model.onnx --ranks 2 --data parts --metric accuracy --batch-size 128
  mpirun -n 2 shardrun eval slices --data test.npz --metric accuracy

exit codes:
  0 done; 1 a rank failed; 2 wrong usage, configuration or data
"""


def _epilog() -> str:
    from ranks.evaluation.names import in_help

    return _EPILOG.format(metrics=in_help())


EPILOG = Late(_epilog)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL|DIR|PATTERN", type=Path,
        help="a model, a folder made by `shardrun slice`, or rank models made elsewhere, {} for the rank",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="FILE.npz|DIR", type=Path, required=True, help="inputs and labels by name"
    )
    parser.add_argument(
        "--metric", metavar="NAME", dest="metrics", action="append", required=True,
        help="what to measure, see below; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--label", metavar="ARRAY",
        help="the array with the labels (default: label, labels, target, targets or y, else the only one "
        "that "
        "is no input)",
    )  # fmt: skip
    parser.add_argument(
        "--rename", metavar="INPUT=ARRAY", action="append", default=[],
        help="the array that an input of the model takes (default: that of its name); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", metavar="N", type=whole(1, 1 << 24),
        help="samples at a time (default: what the model fixes, else 32)",
    )  # fmt: skip
    parser.add_argument(
        "--prediction", metavar="OUTPUT", help="the model's output that is measured (default: its first)"
    )
    parser.add_argument(
        "--ignore-label", metavar="N", type=_integer,
        help="samples with this label do not count, such as -100 of padding",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FILE.json", dest="report", type=Path, help="write the metrics to this file too"
    )
    add_groups(parser, RANKS, TYPES, SLICING)
    add_option(parser, "dims", f"a likely length of a symbolic dimension: the plan is {PLANNED}")
    add_groups(parser, ENCRYPTED)
    parser.add_argument(
        "--config",
        metavar="JOB.yaml",
        type=Path,
        default=ABSENT,
        help="options from a job file; flags win over it",
    )


def _integer(text: str) -> int:
    number = parse_whole(text.removeprefix("-"))
    if number is None:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text[:80]!r}")
    return -number if text.startswith("-") else number


def run(args: argparse.Namespace) -> int:
    """Evaluates as this process's place in the job demands."""
    from launcher.tasks.loading import awaited

    with awaited(vars(args)):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from launcher.job.job import merge
    from launcher.tasks.evaluation import Task, eval_group, eval_rank
    from launcher.tasks.run import group_or_rank
    from ranks.evaluation.evaluate import Options

    rename = {}
    for text in args.rename:
        name, equals, array = text.rpartition("=")
        if not (equals and name and array):
            raise ConfigError(f"--rename {text}: expected INPUT=ARRAY")
        if name in rename:
            raise ConfigError(f"--rename {text}: {name!r} is given twice")
        rename[name] = array
    job = merge(vars(args), getattr(args, "config", None))
    options = Options(args.label, rename, args.batch_size, args.prediction, args.ignore_label)
    task = Task(args.data, args.metrics, options, args.report)
    return group_or_rank(job, lambda: eval_group(job, task), lambda identity: eval_rank(job, task, identity))
