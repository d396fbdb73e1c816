"""``shardrun scripts``: shell scripts that start the ranks by hand."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher.commands.options import ABSENT, add_groups
from launcher.errors import ConfigError
from launcher.job.options import DATA, ENCRYPTED, OF_STARTING, RANKS, SLICING, TYPES

_NOT_HERE = set(OF_STARTING) - {"hosts", "hostfile", "env"}
"""What a process that starts the ranks follows, and scripts cannot."""
DESCRIPTION = """\
Writes one runnable shell script per rank, which sets the rank's environment and starts it, and run_all.sh,
which starts those of one host, waits for them, and ends the others when one fails. A model file is sliced
into the folder."""
EPILOG = """\
examples:
  shardrun scripts model.onnx --ranks 2 --output job
  job/run_all.sh
  shardrun scripts slices --rank-table hosts.json --output job --input x=x.bin --repeat 10
  job/rank_0.sh                        (and every other rank, each in its own shell)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR|PATTERN", type=Path)
    parser.add_argument(
        "--output", metavar="DIR", dest="folder", type=Path, required=True, help="folder to write"
    )
    add_groups(parser, RANKS, TYPES, SLICING, ENCRYPTED, DATA, but=_NOT_HERE, output="--save")
    parser.add_argument(
        "--config", metavar="JOB.yaml", type=Path, default=ABSENT, help="options from a job file"
    )


def run(args: argparse.Namespace) -> int:
    """Slices if need be and writes the scripts."""
    from launcher.common.report import progress, say
    from launcher.inspection.model_kinds import demand_ranks
    from launcher.job.job import merge
    from launcher.job.model import asked_by, check_declared, world_size
    from launcher.starters.scripts import check_new_folder, write_scripts
    from launcher.tasks.run import check_job

    job = merge(vars(args), getattr(args, "config", None))
    assert job.model is not None
    ranks = world_size(job)
    if job.reference.sliced:
        manifest = job.reference.open(ranks, job.key, asked_by(job))
        table = write_scripts(replace(job, ranks=manifest.world_size), args.folder, sys.executable)
    else:
        from sharding import slice_model

        ranks = demand_ranks(job.model, ranks, job.key)
        check_declared(job, lambda found: check_job(job, found, inputs=False))
        check_new_folder(args.folder)
        with _scratch(args.folder) as scratch:
            slices = Path(scratch) / "slices"
            with progress(f"slicing {job.model.name}") as update:
                slice_model(
                    job.model, ranks, slices, options=job.slicing.options(), progress=update, key=job.key
                )
            if job.verify and job.against is None:
                job = replace(job, against=job.model)
            job = replace(job, ranks=ranks if job.rank_table is None else None)
            table = write_scripts(job, args.folder, sys.executable, replace_model=slices)
    hosts = (
        "run_all.sh starts them all" if len(table.hosts) == 1 else "run_all.sh HOST starts those of a host"
    )
    last = table.world_size - 1
    say(f"wrote {args.folder}: rank_0.sh{f' to rank_{last}.sh' if last else ''}; {hosts}")
    return 0


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[str]:
    """A temporary folder beside ``folder``."""
    from sharding.common.storage import why_unwritable

    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".slices.", dir=folder.absolute().parent)
    except OSError as problem:
        raise ConfigError(f"--output {folder}: cannot write the scripts: {why_unwritable(problem)}") from None
    with scratch as name:
        yield name
