"""How the command ends: exit codes, and what is printed of an error.

A module of its own, since the command's may be loaded twice (as ``__main__`` and by its name), and an
exception class must be one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
import sys

from launcher.common.signals import ENDING, HungUp, Terminated
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError, VerifyError
from ranks.errors import is_usage
from sharding.common.storage import is_place
from sharding.common.text import one_line, printable, without_long_words

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_VERIFY = 3
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_HUNG_UP = 128 + signal.SIGHUP

_DEVICE_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def report(error: BaseException, where: str = "") -> int:
    """Prints what ended the command, on which rank, and returns its exit code."""
    # A library that is being imported, or one in C, may turn the exception into another one.
    hung_up = signal.SIGHUP in ENDING.came and signal.SIGTERM not in ENDING.came
    if isinstance(error, HungUp) or hung_up:
        return _say("hung up: its terminal or session was closed", EXIT_HUNG_UP)
    if isinstance(error, Terminated) or signal.SIGTERM in ENDING.came:
        from ranks.common import settings

        return EXIT_TERMINATED if settings.RUN_ALL.text() else _say("terminated", EXIT_TERMINATED)
    if isinstance(error, KeyboardInterrupt) or ENDING.came:
        return _say("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):  # a model's own Python
        code = (error.code or 0) & 0xFF
        who = where.removesuffix(": ") or "this process"
        return _say(f"error: {who} ended with exit code {code}", code or EXIT_FAILED)
    if isinstance(error, ShardrunError):
        return _say(
            f"error: {where}{error}", exit_code(error), lines=isinstance(error, LaunchError | RankFailedError)
        )
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone (`shardrun ... | head`): there is nobody left to tell.
        drop_output()
        note_said()
        return EXIT_FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return _say(
            f"error: {where}{error.filename}: {error.strerror}",
            EXIT_USAGE if is_place(error) else EXIT_FAILED,
        )
    if isinstance(error, OSError) and error.errno in _DEVICE_FULL:
        # What is written to a file that is open already fails without a name, too.
        if not _output_is_full(error.errno):
            said = f"a file cannot be written: {error.strerror} (run with --debug to see where)"
            return _say(f"error: {where}{said}", EXIT_FAILED)
        drop_output()
        return _say(f"error: {where}standard output cannot be written: {error.strerror}", EXIT_FAILED)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if (advice := _if_short(error)) is not None:
        return _say(f"error: {where}{text.rstrip(': ')}: {advice}", EXIT_FAILED)
    return _say(f"internal error: {where}{text} (run with --debug for the traceback)", EXIT_FAILED)


def _if_short(error: BaseException) -> str | None:
    """What to say where memory or open files ran out, be it for another import too; None for other errors."""
    try:
        from sharding.common.limits import shortage

        return shortage(error) or None
    except (ImportError, MemoryError):
        return "memory is short"


def exit_code(error: ShardrunError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, VerifyError):
        return EXIT_VERIFY
    if isinstance(error, RankFailedError):
        return EXIT_USAGE if error.usage else EXIT_FAILED
    return EXIT_USAGE if isinstance(error, ConfigError) or is_usage(error) else EXIT_FAILED


def prepare_streams() -> None:
    """Makes standard streams that can be written to, whatever this process was started with.

    Where one is closed, the next file or socket would get its number, and what is printed would go there.
    Characters that the stream's encoding lacks, or that stand for a file name's odd bytes, are escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and that is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - kept to the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - kept to the end
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - kept to the end
    if getattr(sys.stdout, "errors", None) == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a real stream


def _output_is_full(code: int) -> bool:
    """Whether standard output cannot be written: what it could not take is still to be, unless it keeps
    nothing (``python -u``). Then what it is says whether it can have failed by this code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase) and _may_fail(code)


def _may_fail(code: int) -> bool:
    """Whether standard output can have failed so: pipes and terminals are never full."""
    if code != errno.ENOSPC:
        return True
    try:
        number = sys.stdout.fileno()
        kind = os.fstat(number).st_mode
        if stat.S_ISREG(kind):
            return os.fstatvfs(number).f_bavail == 0
    except (OSError, ValueError):
        return True
    return not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(number))


def drop_output() -> None:
    """Sends standard output nowhere: Python would complain once more while it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, code: int, *, lines: bool = False) -> int:
    """``lines``: the text's line ends are meant; else they are part of some name."""
    shown = without_long_words(printable(text) if lines else one_line(text))
    with contextlib.suppress(OSError):  # standard error is closed too
        print(f"shardrun: {shown}", file=sys.stderr, flush=True)
        note_said()
    return code


def note_said() -> None:
    """Tells run_all.sh, if that started this process, that it need not say why this one ends."""
    with contextlib.suppress(OSError, ImportError, MemoryError):
        from ranks.common import settings

        if settings.RUN_ALL.text():
            from ranks.talk.orphan import say_spoken

            say_spoken()
