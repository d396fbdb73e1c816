"""``shardrun submit``: hand a job to a job system, and follow it."""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.options import ABSENT, add_described, add_groups
from launcher.commands.parsing import Late
from launcher.errors import ConfigError
from launcher.job.options import (
    DATA,
    ENCRYPTED,
    FILES,
    OF_STARTING,
    OPTIONS,
    RANKS,
    SLICING,
    TYPES,
    grouped,
)
from launcher.submission.names import SYSTEMS
from launcher.submission.options import GROUPS, SUBMIT, SubmitOptions
from sharding.common.text import one_line

if TYPE_CHECKING:
    from launcher.job.job import Job
    from launcher.submission.base import Submission, System

DESCRIPTION = """\
Writes a job for a job system, hands it in, shows what its ranks print, and ends with the job's exit code.
Ctrl-C cancels the job. The ranks run as `shardrun run` with the same options would; those of the job system
may stand in the job file too, under the key submit."""
EPILOG = """\
examples:
  shardrun submit --slurm model.onnx --ranks 8 --nodes 2 --partition gpu --gpus 1 --time 1:00:00
  shardrun submit --slurm --config job.yaml --dry-run
  shardrun submit --slurm slices --array 0-3 --input x_%a.npz --output y_%a.npz
  shardrun submit --pbs slices --nodes 2 --module openmpi
  shardrun submit --kubernetes /models/slices --ranks 2 --image registry/shardrun --volume models:/models

exit codes:
  that of the job; 1 it failed or was cancelled; 2 wrong usage, configuration or input; 130 interrupted
"""


_NOT_HERE = {*OF_STARTING, "link"} - {"env", "tee", "log_json"}
"""Options of a program that starts ranks itself: here the job system does."""
_REFUSED = ("rank_table", "hosts", "hostfile")
_TAKEN = {*_REFUSED, "nodes"}
"""What a job file may say that no flag of this command does, besides files of many."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL.onnx|DIR|PATTERN", type=Path, nargs="?",
        help="as for `shardrun run`, where the job finds it",
    )  # fmt: skip
    systems = parser.add_argument_group("job system").add_mutually_exclusive_group(required=True)
    for name in SYSTEMS.own:
        systems.add_argument(
            f"--{name}", action="store_const", const=name, dest="system",
            help=Late(functools.partial(_meaning, name)),
        )  # fmt: skip
    systems.add_argument(
        "--system", metavar="NAME", choices=SYSTEMS, help="one of these by its name, or another package's"
    )
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for option in SUBMIT.values():
            if option.group == title:
                add_described(group, option)
    add_groups(parser, RANKS, TYPES, SLICING, ENCRYPTED, DATA, but=_NOT_HERE)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="print what would be handed in, and do nothing")
    how.add_argument("--detach", action="store_true", help="print the job's number, and do not follow it")
    parser.add_argument(
        "--config", metavar="JOB.yaml", type=Path, default=ABSENT, help="options from a job file"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the job, hands it in and follows it; returns its exit code."""
    from launcher.common.report import say

    chosen = _system(args.system)
    system = chosen.make()
    submission = _submission(args, chosen)
    system.check(submission)
    text = system.text(submission)
    if args.dry_run:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))  # of a path that is no UTF-8
        return 0

    def show(line: str) -> None:
        say(line)
        sys.stdout.flush()

    def tell(line: str) -> None:
        print(one_line(f"shardrun: {line}"), file=sys.stderr, flush=True)

    from launcher.common.interrupts import ENDS, held_back
    from launcher.submission.follow import Follower

    follower = None
    try:
        with held_back(*ENDS):  # else nobody would know which job to cancel
            number = system.submit(submission, text)
            follower = Follower(system, submission, number, show, tell)
        if args.detach:
            say(number)
            return 0
        tell(f"job {number} is handed in; Ctrl-C cancels it")
        return follower.follow()
    except KeyboardInterrupt:
        if follower is not None:
            follower.cancel()
        raise
    finally:
        if follower is not None:
            follower.close()


def _system(name: str) -> System:
    from launcher.submission.base import REGISTRY

    return REGISTRY[name]


def _meaning(name: str) -> str:
    return _system(name).meaning


def _submission(args: argparse.Namespace, chosen: System) -> Submission:
    """What is handed in, checked as far as it can be here. Raises `ConfigError`."""
    from launcher.job.job import gather
    from launcher.job.job_file import read_section
    from launcher.job.option_table import changed
    from launcher.submission.base import Submission

    flags, config = vars(args), getattr(args, "config", None)
    told = {} if config is None else read_section(config, "submit", SUBMIT)
    options = changed(SubmitOptions(), told).with_flags(flags)
    takes = args.takes | _TAKEN | {option.name for option in grouped(FILES)}
    own = {name: value for name, value in flags.items() if name not in SUBMIT}
    job = gather({**own, "takes": takes}, config)
    for name in _REFUSED:
        if getattr(job, name) is not None:
            raise ConfigError(
                f"{OPTIONS[name].flag}: the job system chooses the hosts; say how many ranks with --ranks"
            )
    if options.nodes is None:  # which a job file for `run` says beside the others
        options = replace(options, nodes=job.nodes)
    away = chosen.in_image or options.image is not None
    ranks = _ranks_of_paths(job) if away else _checked_ranks(job)
    return Submission(job, ranks, options)


def _checked_ranks(job: Job) -> int:
    """The number of ranks of a job whose files are here; what does not fit the model is refused."""
    from launcher.inspection.model_kinds import demand_ranks
    from launcher.job.inputs import check_inputs
    from launcher.job.model import asked_by, check_declared, world_size
    from launcher.submission.command import INDEX
    from launcher.tasks.run import check_job

    job = job.check()
    assert job.model is not None
    # Those of an array's jobs have other names, and are looked at there.
    here = replace(job, inputs=tuple(text for text in job.inputs if INDEX not in text))
    if job.reference.sliced:
        found = job.reference.open(world_size(job), job.key, asked_by(job))
        check_inputs(
            found.inputs, here.inputs, dims=job.dims, optional=found.optional_inputs,
            weights=found.weights.keys(),
        )  # fmt: skip
        return found.world_size
    ranks = demand_ranks(job.model, world_size(job), job.key)
    check_declared(job, lambda found: check_job(here, found))
    return ranks


def _ranks_of_paths(job: Job) -> int:
    """The number of ranks of a job whose files are elsewhere."""
    from launcher.job.model import world_size

    if job.model is None:
        raise ConfigError("no model: expected its path in the image, or `model:` in a job file")
    job.check_exclusive()
    ranks = world_size(job)
    if ranks is None:
        raise ConfigError(f"{job.model} is in the image: say over how many ranks it runs (--ranks N)")
    return ranks
