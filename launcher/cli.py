"""The ``shardrun`` command.

Starting it imports the standard library only; each subcommand imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from launcher.errors import ConfigError, ShardrunError, VerifyError

COMMANDS = ("slice", "run", "scripts", "table", "exec")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_VERIFY = 3
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

EPILOG = """\
examples:
  shardrun slice model.onnx --ranks 2 --output slices
  shardrun run model.onnx --ranks 2 --verify
  mpirun -n 2 shardrun run slices

exit codes:
  0 done; 1 the job or a rank failed; 2 wrong usage, configuration or input; 3 --verify found a difference;
  130 interrupted (Ctrl-C); 143 terminated

`shardrun COMMAND --help` has the options and examples of one command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` (default: the process's arguments) and returns its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    _configure_logging(args.verbose, args.debug)
    previous = _terminate_like_interrupt()
    try:
        code: int = args.module.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone (`shardrun ... | head`): there is nobody left to tell. Python
        # would complain once more while it flushes at exit, so standard output goes to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (Exception, KeyboardInterrupt) as error:
        if args.debug:
            import traceback

            traceback.print_exc()
            if details := getattr(error, "details", ""):
                print(f"The rank's own:\n{details}", file=sys.stderr)
        return report(error)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def report(error: BaseException, where: str = "") -> int:
    """Prints what ended the command, on which rank, and returns its exit code."""
    if isinstance(error, Terminated):
        return _say("terminated", EXIT_TERMINATED)
    if isinstance(error, KeyboardInterrupt):
        return _say("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, ShardrunError):
        return _say(f"error: {where}{error}", exit_code(error))
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(f"internal error: {where}{text} (run with --debug for the traceback)", EXIT_FAILED)


def exit_code(error: ShardrunError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, VerifyError):
        return EXIT_VERIFY
    from ranks.errors import IdentityError

    return EXIT_USAGE if isinstance(error, ConfigError | IdentityError) else EXIT_FAILED


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; unwinds like Ctrl-C, so that everything which was started is ended."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="shardrun",
        description="Slice an ONNX model into one shard per rank and run it distributed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _add_common(parser, top=True)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"launcher.commands.{name}")
        sub = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_common(sub, top=False)
        module.configure(sub)
        sub.set_defaults(module=module)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, top: bool) -> None:
    # Given before or after the command; the second parser must not overwrite the first one's value.
    verbose, debug = (0, False) if top else (argparse.SUPPRESS, argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="count", default=verbose, help="say more (-vv: still more)")
    parser.add_argument("--debug", action="store_true", default=debug, help="show tracebacks of errors")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from launcher.version import version

        print(f"shardrun {version()}")
        parser.exit()


def _configure_logging(verbose: int, debug: bool) -> None:
    import logging

    level = logging.DEBUG if debug or verbose > 1 else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="shardrun: %(levelname)s: %(name)s: %(message)s")


def _terminate_like_interrupt() -> Any:
    """Makes SIGTERM raise `Terminated`; returns the handler that was there, None outside the main thread."""

    def stop(_number: int, _frame: object) -> None:
        raise Terminated

    try:
        return signal.signal(signal.SIGTERM, stop)
    except ValueError:
        return None


def _say(text: str, code: int) -> int:
    with contextlib.suppress(OSError):  # standard error is closed too
        print(f"shardrun: {text}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
