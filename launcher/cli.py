"""The ``shardrun`` command.

Starting it imports the standard library only; each subcommand imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.commands import COMMANDS
from launcher.commands.parsing import Late, joined
from launcher.common.exits import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    note_said,
    prepare_streams,
    report,
)
from launcher.common.signals import ENDING
from ranks.common.leaving import end, leave
from sharding.common.text import did_you_mean, one_line, printable, without_long_words

if TYPE_CHECKING:
    import logging

    from _typeshed import SupportsWrite

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

_ASKS_FOR_HELP = {"-h", "--help", "--version"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` and returns its exit code; by default with the process's arguments, and
    then the process ends here, unless a script of the user's ran in it."""
    prepare_streams()
    try:
        words = sys.argv[1:] if argv is None else argv
        parser = build_parser(words[0] if words else "", bare=_ASKS_FOR_HELP.issuperset(words))
        try:
            args = _parse(parser, argv)
        finally:
            sys.stdout.flush()
    except (OSError, KeyboardInterrupt) as error:  # --help or --version could not be printed
        return report(error)
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    _configure_logging(args.verbose, args.debug)
    code = _run(args, whole=argv is None)
    if argv is None and args.command != "exec":
        leave(code)
    return code


def _run(args: argparse.Namespace, *, whole: bool) -> int:
    """``whole``: the process is the command's own."""
    from ranks.common import settings

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        from ranks.common import heap

        heap.spare_addresses()
    with ENDING.handled():
        try:
            settings.check()
            code: int = args.module.run(args)
            sys.stdout.flush()
            ENDING.done()
            return code
        except (Exception, KeyboardInterrupt) as error:
            ENDING.heard()
            if args.debug:
                import traceback

                traceback.print_exc()
                if details := getattr(error, "details", ""):
                    print(f"The rank's own:\n{details}", file=sys.stderr)
            code = report(error)
            if whole and code in {EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_HUNG_UP}:
                # The signal's exception may have come anywhere: a library's thread can still be at work on
                # what the interpreter would free.
                end(code)
            return code


def build_parser(command: str = "", *, bare: bool = False) -> argparse.ArgumentParser:
    """The parser of the whole command line. To start sooner: of one that begins with a command's name, or a
    ``bare`` one, which knows nothing of commands but what they are for."""
    parser = _Parser(
        prog="shardrun",
        description="Slice an ONNX model into one shard per rank and run it distributed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _add_common(parser, top=True)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in (command,) if command in COMMANDS else COMMANDS:
        if bare:
            subparsers.add_parser(name, help=COMMANDS[name], add_help=False)
            continue
        module = importlib.import_module(f"launcher.commands.{name}")
        sub = subparsers.add_parser(
            name,
            help=COMMANDS[name],
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_common(sub, top=False)
        module.configure(sub)
        sub.set_defaults(module=module, parser=sub)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, top: bool) -> None:
    # Given before or after the command; the second parser must not overwrite the first one's value.
    verbose, debug = (0, False) if top else (argparse.SUPPRESS, argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="count", default=verbose, help="say more (-vv: still more)")
    parser.add_argument("--debug", action="store_true", default=debug, help="show tracebacks of errors")


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """As ``parse_args``, but the parser of the subcommand says which arguments are unknown."""
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        own = getattr(args, "parser", parser)
        flag = next((text for text in unknown if text.startswith("-")), None)
        hint = did_you_mean(flag.partition("=")[0], _flags(own)) if flag is not None else ""
        own.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return args


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a parser and of those below it, but hidden ones."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [text for below in action.choices.values() for text in _flags(below)]
        elif action.help != argparse.SUPPRESS:
            found += [text for text in action.option_strings if text.startswith("--")]
    return found


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; argparse itself puts the whole usage before it."""

    _given: Sequence[str] = ()

    def format_help(self) -> str:
        if isinstance(self.epilog, Late):
            self.epilog = self.epilog.make()
        for action in self._actions:
            if isinstance(action.help, Late):
                action.help = action.help.make()
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(joined(self, self._given), namespace)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        # argparse passes over an output that is full. What cannot take a line keeps it, and so can be named.
        for line in self.format_help().splitlines(keepends=True):
            (file or sys.stdout).write(line)
            sys.stdout.flush()

    def error(self, message: str) -> NoReturn:
        command = self.prog.partition(" ")[2]
        if message.startswith(("the following arguments are required", "one of the arguments")):
            # argparse looks for what is missing before it tells of what it does not know.
            message = f"{self._unknown()}{message}"
        shown = without_long_words(one_line(f"{command + ': ' if command else ''}{message}"))
        note_said()
        self.exit(EXIT_USAGE, f"shardrun: error: {shown} (see `{self.prog} --help`)\n")

    def _unknown(self) -> str:
        """The flags given that this parser does not know, as the beginning of a message; or nothing."""
        known = _flags(self)
        flags = [text.partition("=")[0] for text in self._given if text[:2] == "--" != text]
        unknown = [flag for flag in flags if not any(text.startswith(flag) for text in known)]
        if not unknown:
            return ""
        return f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], known)}; "

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if (
            action.type is Path and not arg_string
        ):  # of a variable that is not set; to `Path` it is this folder
            raise argparse.ArgumentError(action, "expected a path, found an empty text")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sharding.common.version import version

        print(f"shardrun {version()}")
        parser.exit()


def _configure_logging(verbose: int, debug: bool) -> None:
    import logging

    level = logging.DEBUG if debug or verbose > 1 else logging.INFO if verbose else logging.WARNING
    names = "%(name)s: " if level == logging.DEBUG else ""
    handler = logging.StreamHandler()
    handler.setFormatter(_printable(f"shardrun: %(kind)s: {names}%(message)s"))
    handler.addFilter(_name_kind)
    logging.basicConfig(level=level, handlers=[handler])


def _printable(layout: str) -> logging.Formatter:
    """A formatter whose lines hold nothing that a terminal would take for a command."""
    import logging

    class Printable(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record))

    return Printable(layout)


def _name_kind(record: logging.LogRecord) -> bool:
    vars(record)["kind"] = record.levelname.lower()
    return True


if __name__ == "__main__":
    sys.exit(main())
