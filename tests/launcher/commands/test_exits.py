"""What ended a command, as it is said, and its exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.common import exits
from launcher.common.exits import EXIT_FAILED, EXIT_USAGE, EXIT_VERIFY, exit_code, report
from launcher.common.signals import ENDING, HungUp, Terminated
from launcher.errors import ConfigError, LaunchError, RankFailedError, VerifyError
from ranks.errors import ModelError, ShardrunError


@pytest.mark.parametrize(
    ("code", "where", "sentence", "exit_code"),
    [
        (7, "rank 1 on host a: ", "rank 1 on host a ended with exit code 7", 7),
        (None, "rank 1 on host a: ", "rank 1 on host a ended with exit code 0", 1),
        (256 + 7, "", "this process ended with exit code 7", 7),
    ],
)
def test_a_model_s_own_python_ends_the_process(
    capsys: pytest.CaptureFixture[str], code: int | None, where: str, sentence: str, exit_code: int
) -> None:
    assert report(SystemExit(code), where) == exit_code
    assert capsys.readouterr().err == f"shardrun: error: {sentence}\n"


def test_a_full_disk_is_not_taken_for_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """What fails in the midst of a file has no name."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert report(full, "rank 1 on host a: ") == 1
    print("still written")
    shown = capsys.readouterr()
    assert shown.out == "still written\n"
    assert shown.err == (
        "shardrun: error: rank 1 on host a: a file cannot be written: No space left on device (run with "
        "--debug to see where)\n"
    )


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_nor_where_standard_output_keeps_nothing(tmp_path: Path, kind: str) -> None:
    """Under PYTHONUNBUFFERED, as in many containers, nothing is left that could be tried again."""
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-u", "-c", "import errno, launcher.common.exits as exits\n"
             "exits.report(OSError(errno.ENOSPC, 'No space left on device'))"],
            stdout=out if kind == "file" else subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
            check=True,
        )  # fmt: skip
    assert done.stderr == (
        "shardrun: error: a file cannot be written: No space left on device (run with --debug to see where)\n"
    )


@pytest.mark.parametrize("lacks", [ImportError, MemoryError])
def test_an_error_is_reported_where_run_all_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lacks: type[Exception]
) -> None:
    """No more can be imported: memory is short, say."""

    class Short:
        def find_spec(self, name: str, *more: object) -> None:
            if name == "ranks.talk.orphan":
                raise lacks

    monkeypatch.setenv("SHARDRUN_RUN_ALL", "1:5")
    monkeypatch.delitem(sys.modules, "ranks.talk.orphan", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Short(), *sys.meta_path])
    assert report(MemoryError("no more")) == 1
    assert capsys.readouterr().err.startswith("shardrun: error: MemoryError: no more")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerifyError("differs"), EXIT_VERIFY),
        (ConfigError("wrong"), EXIT_USAGE),
        (ModelError("damaged"), EXIT_USAGE),
        (RankFailedError("rank 1: no such file", usage=True), EXIT_USAGE),
        (RankFailedError("rank 1 was killed"), EXIT_FAILED),
        (LaunchError("no ranks"), EXIT_FAILED),
        (ShardrunError("other"), EXIT_FAILED),
    ],
)
def test_exit_codes_of_errors(error: ShardrunError, code: int) -> None:
    assert exit_code(error) == code


DEBUG = "(run with --debug for the traceback)"


def named(number: int, name: str = "x") -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (HungUp(), 129, "hung up: its terminal or session was closed"),
        (Terminated(), 143, "terminated"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (SystemExit("words"), 1, f"internal error: rank 1: SystemExit: words {DEBUG}"),
        (LaunchError("one\ntwo"), 1, "error: rank 1: one\ntwo"),  # its lines are meant
        (RankFailedError("one\ntwo"), 1, "error: rank 1: one\ntwo"),
        (ConfigError("a\nb"), 2, "error: rank 1: a\\nb"),  # a part of some name
        (BrokenPipeError(), 1, ""),
        (named(errno.ENOENT), 2, "error: rank 1: x: No such file or directory"),
        (named(errno.EIO), 1, "error: rank 1: x: Input/output error"),
        (MemoryError("no more"), 1, None),
        (KeyError("a\nb"), 1, f"internal error: rank 1: KeyError: 'a\\nb' {DEBUG}"),
        (ValueError("a\n  b"), 1, f"internal error: rank 1: ValueError: a b {DEBUG}"),
    ],
)  # fmt: skip
def test_every_kind_of_end(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str | None,
) -> None:
    monkeypatch.setattr(ENDING, "came", [])
    monkeypatch.setattr(exits, "drop_output", lambda: None)
    assert report(error, "rank 1: ") == code
    shown = capsys.readouterr().err
    if said is None:
        assert shown.startswith("shardrun: error: rank 1: MemoryError: no more: ")
    else:
        assert shown == (f"shardrun: {said}\n" if said else "")


@pytest.mark.parametrize(
    ("came", "code"),
    [
        ([signal.SIGINT], 130),
        ([signal.SIGTERM], 143),
        ([signal.SIGHUP], 129),
        ([signal.SIGHUP, signal.SIGTERM], 143),
        ([signal.SIGINT, signal.SIGHUP], 129),
    ],
)
def test_a_library_may_have_made_another_error_of_a_signal(
    monkeypatch: pytest.MonkeyPatch, came: list[int], code: int
) -> None:
    monkeypatch.setattr(ENDING, "came", came)
    assert report(ImportError("half a module")) == code


def test_run_all_says_itself_that_it_was_terminated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ENDING, "came", [])
    monkeypatch.setenv("SHARDRUN_RUN_ALL", "1:5")
    assert report(Terminated()) == 143 and capsys.readouterr().err == ""
