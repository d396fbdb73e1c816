"""Programs in copies of a process are what they would be in new ones."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.copies import ROOT, Copies, Copy
from tests.rank_copies import RANKS

SEEN = """
import json, os, sys
there = "HOME" in os.environ, "json.tool" in sys.modules
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["A"], *there]))
print("said", file=sys.stderr)
print(repr(sys.stdin.read()), os.getsid(0) == os.getpid())
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def copies() -> Iterator[Copies]:
    made = Copies(["json.tool"], os.environ)
    yield made
    made.close()


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.parametrize("way", ["text", "file", "module"])
def test_a_program_has_its_own_words_folder_and_streams(copies: Copies, way: str, tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    command = {"text": ["-c", SEEN], "file": [tmp_path / "seen.py"], "module": ["-m", "seen"]}[way]
    variables = {name: value for name, value in environ(A="b").items() if name != "HOME"}
    done = copies.run([*command, 3, "x"], variables, tmp_path, 60)
    seen, rest = done.stdout.splitlines()
    assert seen == f'[["3", "x"], "{tmp_path}", "b", false, true]' and rest == "'' True"
    assert (done.returncode, done.stderr) == (3, "said\n")


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize(
    ("text", "status", "errors"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(4)", 4, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit('mine')", 1, "mine\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("raise KeyError('mine')", 1, "KeyError: 'mine'\n"),
        ("import os; os._exit(5)", 5, ""),
    ],
)
def test_how_one_ends_is_told(
    copies: Copies, text: str, status: int, errors: str, leaves: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(RANKS, "wanted", leaves)
    done = copies.run(["-c", text], environ(), tmp_path, 60)
    assert done.returncode == status and done.stderr.endswith(errors) and bool(done.stderr) == bool(errors)


AT_ITS_END = """
import atexit, threading
class Kept:
    def __del__(self): print("taken apart")
kept = Kept()
atexit.register(print, "handled")
threading.Timer(0.1, print, ["threads"]).start()
"""


@pytest.mark.parametrize("leaves", [True, False])
def test_what_one_does_at_its_end(
    copies: Copies, leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are waited for and handlers run, also where it leaves without taking apart what there is."""
    monkeypatch.setattr(RANKS, "wanted", leaves)
    done = copies.run(["-c", AT_ITS_END], environ(), tmp_path, 60)
    assert done.stdout.split("\n") == ["threads", "handled", *([] if leaves else ["taken apart"]), ""]
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_read_at_the_start_takes_a_new_process(copies: Copies, tmp_path: Path) -> None:
    program = ["-c", "import sys; print('json.tool' in sys.modules, sys.flags.hash_randomization)"]
    new = copies.popen(program, environ(PYTHONHASHSEED="0"), tmp_path)
    assert isinstance(new, subprocess.Popen) and new.communicate(timeout=60)[0] == "False 0\n"
    copy = copies.popen(program, environ(), tmp_path)
    assert isinstance(copy, Copy) and copy.communicate(timeout=60)[0].startswith("True")


def test_one_that_hangs_is_ended(copies: Copies, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        copies.run(["-c", "import time; time.sleep(600)"], environ(), tmp_path, 0.2)
    assert copies.run(["-c", "print(1)"], environ(), tmp_path, 60).stdout == "1\n"


def test_what_one_has_forked_is_not_left_behind(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.copies._LEFT_SECONDS", 0.2)
    forks = "import os, time\nif os.fork() == 0: time.sleep(600)"
    copy = copies.popen(["-c", forks], environ(), tmp_path)
    with pytest.raises(AssertionError, match="left a process behind"):
        copy.communicate(timeout=60)
    assert copies.run([tmp_path / "absent.py"], environ(), tmp_path, 60).returncode == 1


def test_a_server_that_cannot_begin_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="the server ended with 1"):
        Copies(["no_such_module"], os.environ).ask(pid=0, seconds=0)
    assert "No module named 'no_such_module'" in capfd.readouterr().err


def test_workers_of_a_run_may_share_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who has begun the server may end first."""
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(16))

    def began(one: Copies) -> bool:
        assert one.run(["-c", "print(1)"], environ(), tmp_path, 60).stdout == "1\n"
        return one._server is not None

    first, second = (Copies(["json.tool"], os.environ, shared=True) for _ in range(2))
    other = Copies(["json.tool"], environ(OMP_NUM_THREADS="3"), shared=True)
    own = Copies(["json.tool"], os.environ)
    assert [*map(began, (first, second, other, own))] == [True, False, True, True]
    first.close()
    assert not began(second)
    later = Copies(["json.tool"], os.environ, shared=True)
    assert began(later)
    for one in (second, other, own, later):
        one.close()
        with pytest.raises((AssertionError, OSError)):
            began(one)


def test_an_answer_is_of_what_was_asked(copies: Copies, tmp_path: Path) -> None:
    """Also where a time-out of the tests has interrupted another question."""

    class HaltError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise HaltError

    copy = copies.popen(["-c", "import sys, time; time.sleep(1); sys.exit(3)"], environ(), tmp_path)
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(HaltError):
            copy.wait(60)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    done = copies.run(["-c", "print('mine')"], environ(), tmp_path, 60)
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert copy.wait(60) == 3 and copies.ask(pid=copy.pid, seconds=60) == 3
