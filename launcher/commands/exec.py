"""``shardrun exec``: run a script written for mindspore_lite."""

from __future__ import annotations

import argparse
import os
import sys

from launcher.commands.options import ABSENT, add_groups
from launcher.errors import ConfigError, RankFailedError
from launcher.job.options import OF_STARTING, OPTIONS, RANKS, Options, grouped
from ranks.common import settings
from ranks.common.settings import CHOSEN, TARGET, THREADS, TIMEOUT
from ranks.errors import IdentityError, ShardrunError
from ranks.identity.identity import identify

DESCRIPTION = """\
Runs a Python script whose `import mindspore_lite` resolves to shardrun: in this process or, with --ranks, on
several ranks. Arguments after the script are the script's own, and its exit code is the command's."""
EPILOG = """\
examples:
  shardrun exec infer.py --model_path model.onnx
  shardrun exec --ranks 2 --launcher mpirun infer_distributed.py model
  shardrun exec --target cpu infer_ascend.py --device_id 0
  mpirun -n 2 shardrun exec infer_distributed.py model
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.usage = "shardrun exec [OPTION ...] SCRIPT.py [ARGUMENT ...]"
    # Nobody knows which files a script reads, nor what it has done when a rank is lost.
    add_groups(parser, RANKS, but={"stage", "restart"})
    parser.add_argument(
        "--target", choices=("cpu",), default=ABSENT,
        help="run on the CPU what names gpu or ascend, to try a job before it is submitted",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show nothing of what several ranks print")
    parser.add_argument("script", metavar="SCRIPT.py")
    more = parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own"
    )
    more.required = False  # argparse would name it where the script is missing


def run(args: argparse.Namespace) -> int:
    """Runs the script; returns its exit code."""
    from ranks.compat import check_script

    given = vars(args)
    launcher = given.get("launcher", "auto")
    several = not given.keys().isdisjoint(("ranks", "rank_table", "hosts", "hostfile", "nodes"))
    if several and launcher == "external":
        raise ConfigError(
            "--launcher external excludes --ranks, --rank-table and hosts: whoever starts the ranks says them"
        )
    here = not several and launcher in {"auto", "external"}
    told = (name for name in (*OF_STARTING, "hang_timeout") if name in given and name != "launcher")
    if here and (said := next(told, "")):
        raise ConfigError(
            f"{OPTIONS[said].flag} is for ranks that this command starts: give --ranks or --hosts"
        )
    try:
        check_script(args.script)
    except ShardrunError as error:
        raise ConfigError(str(error)) from None
    return _here(args) if here else _on_ranks(args)


def _on_ranks(args: argparse.Namespace) -> int:
    from launcher.common.exits import report
    from launcher.common.report import progress
    from launcher.group.starting import run_program

    given = vars(args)
    options = Options().with_flags({option.name: given.get(option.name) for option in grouped(RANKS)})
    options.check_exclusive()
    for option in (OPTIONS["rank_table"], OPTIONS["hostfile"]):
        options.check_file(option)
    environment = {**options.env, **({TARGET.name: given["target"]} if "target" in given else {})}
    try:
        with progress("ranks load models") as update:
            run_program(
                ["exec", args.script, *args.arguments],
                ranks=options.ranks,
                launcher=options.launcher,
                rank_table=options.rank_table,
                collectives=options.collectives or settings.collectives(),
                threads=options.threads,
                timeout=options.timeout,
                hang_timeout=options.hang_timeout,
                placement=options.placement,
                logs=options.logs._replace(tee=()) if args.quiet else options.logs,
                environment=environment,
                progress=update,
            )
    except RankFailedError as error:
        if not error.code or error.code < 0:
            raise
        # The script's own exit code is the command's.
        report(error)
        return error.code & 0xFF
    return 0


def _here(args: argparse.Namespace) -> int:
    """In this process, which may be one rank of a group that something else started."""
    from launcher.common.exits import report
    from launcher.common.signals import ENDING
    from ranks.compat import format_error, run_script

    given = vars(args)
    # The process is the script's from here on. The script joins its group whenever it wants to, and what it
    # starts inherits the variables, as if they had been set before `python SCRIPT`.
    names = {"collectives": CHOSEN.name, "threads": THREADS.name, "timeout": TIMEOUT.name}
    os.environ.update({names[option]: f"{given[option]}" for option in names if option in given})
    ENDING.hand_over()
    try:
        run_script(args.script, args.arguments, given.get("target"))
    except SystemExit as leaving:
        return _script_exit(leaving.code)
    except (ShardrunError, KeyboardInterrupt) as error:
        where = _place()
        if not where:
            raise
        return _leave(report(error, where))
    except Exception as error:
        # The script's own mistake: its traceback, as Python itself would print it.
        print(format_error(error), end="", file=sys.stderr)
        return _leave(1)
    return 0


def _place() -> str:
    """Which rank of a group this process is, to begin a message with; nothing if it is alone."""
    try:
        identity = identify()
    except IdentityError:
        return ""
    return f"rank {identity.rank} on host {identity.host}: " if identity.world_size > 1 else ""


def _script_exit(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return _leave(code & 0xFF) if code else 0
    print(code, file=sys.stderr)
    return _leave(1)


def _leave(code: int) -> int:
    """Ends a rank at once: with MPI up, Python's ordinary exit would wait for the other ranks."""
    if _place():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code
