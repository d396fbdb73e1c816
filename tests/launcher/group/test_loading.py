"""How far ranks have loaded: told of all of them, whatever starts them, and shown on a terminal only."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.group.starting import run_program
from tests.launcher.cli_tools import environment

LOADS = """
import sys
from ranks.common.progress import LOADING
LOADING._pause = 0.0
from ranks.run import executor
executor.load(sys.argv[1]).close()
"""
SLOW = """
import os, time
from ranks.common.progress import LOADING
LOADING.report(1, 4)
time.sleep(1.3)
LOADING.report(2, 4)
print("said meanwhile", flush=True)
if os.fork() == 0:
    LOADING.report(3, 4)  # is nobody's business, and does not end the child
    os._exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
time.sleep(0.3)
LOADING.report(4, 4)
print("said after", flush=True)
"""


def test_what_ranks_of_a_script_load_is_told(tmp_path: Path, two_slices: Path, launcher: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOADS)
    seen: list[tuple[float, float]] = []
    run_program(
        ["exec", str(script), str(two_slices)], ranks=2, launcher=launcher, timeout=60,
        progress=lambda *pair: seen.append(pair),
    )  # fmt: skip
    assert seen[-1] == (2, 2) and {total for _, total in seen} <= {1, 2}
    # Two sessions of each rank, and what is to be done after them.
    parts = {round(done * 3) % 3 for done, _ in seen}
    assert parts == {0, 1, 2}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_script_shows_it_on_a_terminal(tmp_path: Path, terminal: bool) -> None:
    """What the ranks print goes where it would without it."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["-m", "launcher.cli", "exec", "--ranks", "1", "--launcher", "local", "slow.py"]
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, env=environment(TERM="xterm"), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=theirs if terminal else subprocess.PIPE,
        )  # fmt: skip
        out, err = process.communicate(timeout=60)
        os.close(theirs)
        shown = os.read(ours, 1 << 16) if terminal else err
    finally:
        os.close(ours)
    assert (process.returncode, out) == (0, b"said meanwhile\nsaid after\n"), shown
    assert (b"ranks load models" in shown and b"50%" in shown) if terminal else shown == b""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [OSError("the terminal is gone"), ValueError("of a program's own")])
def test_where_it_cannot_be_shown_the_ranks_go_on(tmp_path: Path, error: Exception) -> None:
    script, told = tmp_path / "script.py", list[float]()
    script.write_text(
        "from ranks.common.progress import LOADING\nLOADING.report(1, 4)\nLOADING.report(4, 4)\n"
    )

    def show(done: float, total: float) -> None:
        told.append(done)
        raise error

    run_program(["exec", str(script)], ranks=1, launcher="local", timeout=20, progress=show)
    assert told == [0.25]
