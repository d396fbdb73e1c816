"""``shardrun run``: run a model on several ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.commands.options import add_groups
from launcher.job.options import DATA, ENCRYPTED, FILES, RANKS, SLICING, TYPES

DESCRIPTION = """\
Runs a model on several ranks and prints a table of its outputs. A model file is sliced first, into
a cache, so that a second run starts at once. Started by mpirun, srun or a script (or with --launcher
external), the process is one rank of the job; else it starts the ranks itself."""
EPILOG = """\
examples:
  shardrun run model.onnx --ranks 2
  shardrun run model.onnx --ranks 2 --launcher mpirun --input x.npz --output y.npz --repeat 10
  shardrun run slices --input x=x.bin --dim batch=4 --verify --against model.onnx
  shardrun run model.onnx --mesh data=2,tensor=2
  shardrun run model.onnx --ranks 2 --inputs 'data/*.npz' --outputs out --keep-going --restart on-failure
  shardrun run 'rank_{}_model.onnx'
  shardrun run --config job.yaml --threads 4
  mpirun -n 2 shardrun run slices

exit codes:
  0 done; 1 a rank failed; 2 wrong usage, configuration or input; 3 --verify found a difference
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL.onnx|DIR|PATTERN", type=Path, nargs="?",
        help="a model, a folder made by `shardrun slice`, or rank models made elsewhere, {} for the rank",
    )  # fmt: skip
    add_groups(parser, RANKS, TYPES, SLICING, ENCRYPTED, DATA, FILES)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="print nothing but errors")
    shown.add_argument("--json", action="store_true", help="print outputs and summary as one JSON document")
    parser.add_argument(
        "--config", metavar="JOB.yaml", type=Path, help="options from a job file; flags win over it"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the job as this process's place in it demands."""
    from launcher.tasks.loading import awaited

    with awaited(vars(args)):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from launcher.job.job import merge
    from launcher.tasks.run import Show, external_identity, run_group, run_rank

    job = merge(vars(args), args.config)
    identity = external_identity(job)
    show: Show = "json" if args.json else "nothing" if args.quiet else "table"
    if job.files:
        from launcher.tasks.batch import files_group, files_rank
        from launcher.tasks.run import group_or_rank

        own = replace(job, tee=()) if args.quiet else job
        return group_or_rank(
            job, lambda: files_group(own, show), lambda identity: files_rank(own, identity, show)
        )
    if identity is not None:
        return run_rank(job, identity, show)
    run_group(replace(job, tee=()) if args.quiet else job, show)
    return 0
