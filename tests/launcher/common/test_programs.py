"""What other programs are asked, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.common.programs import SilentError, ask
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
