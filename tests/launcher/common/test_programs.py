"""What other programs are asked, and what becomes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.common.programs import SilentError, ask, last_line
from ranks.common.processes import status
from tests.ranks.threads import until


def test_what_a_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # it is none of the ranks around us
    monkeypatch.setenv("KEPT", "yes")
    done = ask("sh", "-c", "echo $KEPT $MORE $RANK; pwd; cat; echo bad >&2; exit 3", environ={"MORE": "x"})
    assert (done.returncode, done.stdout, done.stderr) == (3, "yes x\n/\n", "bad\n")
    with pytest.raises(FileNotFoundError):
        ask("/none/such")


def test_one_that_is_silent_ends_with_what_it_started(tmp_path: Path) -> None:
    with pytest.raises(SilentError, match=r"`sh` gave no answer within 0\.2 s"):
        ask("sh", "-c", f"sleep 100 & echo $! > {tmp_path / 'pid'}; wait", seconds=0.2)
    until(lambda: status(int((tmp_path / "pid").read_text())) is None)


@pytest.mark.parametrize(
    ("out", "err", "why"),
    [
        ("out", "first\n  last \n\n", "last"),
        ("first\nlast\n", " \n", "last"),
        ("", "", "exit code 7"),
        ("", "x" * 400, "x" * 300),
    ],
)
def test_why_a_program_failed(out: str, err: str, why: str) -> None:
    assert last_line(subprocess.CompletedProcess((), 7, out, err)) == why
