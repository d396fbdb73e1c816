"""What ended a command, as it is said, and its exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.common.exits import EXIT_FAILED, EXIT_USAGE, EXIT_VERIFY, exit_code, report
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
