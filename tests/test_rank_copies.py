"""Ranks that are copies are what new processes would be: children with streams, a folder and an end."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import is_drawn
from tests.copies import ROOT, Copies
from tests.left_behind import holding
from tests.rank_copies import RANKS, RankCopies

SEEN = """
import json, os, signal, sys
mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
descriptors = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # the last was that of the listing
seen = {"words": sys.argv, "folder": os.getcwd(), "A": os.environ["A"], "parent": os.getppid(),
        "group": os.getpgid(0), "blocked": sorted(map(int, mask)), "descriptors": descriptors,
        "copied": "numpy" in sys.modules}
os.write(int(sys.argv[1]), json.dumps(seen).encode())
"""
COPIED = "import sys, os; os._exit(40 + ('numpy' in sys.modules))"


@pytest.fixture(scope="module")
def server() -> Iterator[RankCopies]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.util.spawnv_passfds", RANKS.new)
        made = RankCopies()
        made.install()
        yield made
        made.close()


@pytest.fixture
def ranks(server: RankCopies) -> RankCopies:
    server.wanted = True
    return server


def spawn(ranks: RankCopies, text: str, *arguments: object, descriptors: Sequence[int] = ()) -> int:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return ranks.spawn(os.fsencode(sys.executable), command, descriptors)


def started(ranks: RankCopies, *arguments: Any, name: str = "shardrun ranks", **more: Any) -> int:
    """The process id of one that was started as the local launcher does it, from a thread of its name."""
    made: list[int] = []

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        made.append(spawn(ranks, *arguments, **more))

    thread = threading.Thread(target=start, name=name)
    thread.start()
    thread.join()
    return made[0]


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_has_what_a_new_process_has(
    ranks: RankCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for wanted in (True, False):
        monkeypatch.setenv("A", "b=\udcff")
        ranks.wanted = wanted
        reader, writer = os.pipe()
        pid = started(ranks, SEEN, writer, "word", descriptors=[writer])
        os.close(writer)
        with os.fdopen(reader) as said:
            found.append(json.loads(said.read()))
        assert code_of(pid) == 0
    copy, new = found
    assert (copy.pop("copied"), new.pop("copied")) == (True, False)
    assert copy == new and copy["parent"] == os.getpid() and copy["folder"] == str(tmp_path)
    assert copy["words"] == ["-c", str(writer), "word"] and signal.SIGINT in copy["blocked"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.abort()", -6), ("import os; os._exit(5)", 5)],
)
def test_how_it_ends_is_seen_by_who_started_it(ranks: RankCopies, text: str, code: int) -> None:
    assert code_of(started(ranks, text)) == code


def test_others_see_its_command_and_environment(ranks: RankCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    started(ranks, "")  # so that the server is there without the mark
    monkeypatch.setenv("RANKS_MARK", mark)
    text = "import time; time.sleep(600)"
    pid = started(ranks, text, "--word")
    try:
        assert holding(f"RANKS_MARK={mark}").keys() == {pid}
        process = psutil.Process(pid)
        assert (
            process.cmdline()[:4] == [sys.executable, "-c", text, "--word"] and process.ppid() == os.getpid()
        )
        assert process.environ() == dict(os.environ)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert code_of(pid) == -signal.SIGKILL


@contextlib.contextmanager
def fewer_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def one_more_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def other_threads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        yield


@pytest.mark.parametrize("otherwise", [fewer_files, one_more_ignored, other_threads])
def test_where_it_would_begin_otherwise_it_is_new(ranks: RankCopies, otherwise: Any) -> None:
    with otherwise():
        assert code_of(started(ranks, COPIED)) == 40
    assert code_of(started(ranks, COPIED)) == 41


def test_only_ranks_are_copies(ranks: RankCopies) -> None:
    assert code_of(started(ranks, COPIED, name="another")) == 40
    child = os.fork()
    if child == 0:  # its parent's server would make children of the parent
        code = 99  # where it fails, it must not go on as a second pytest
        try:
            code = code_of(started(ranks, COPIED))
        finally:
            os._exit(code)
    assert code_of(child) == 40


def test_the_tracker_of_resources_is_no_copy(ranks: RankCopies) -> None:
    """`multiprocessing` starts it in the thread that starts the first rank; it outlives all of them."""
    tracker: Any = resource_tracker.ResourceTracker()
    thread = threading.Thread(target=tracker.ensure_running, name="shardrun ranks")
    thread.start()
    thread.join()
    try:
        assert "numpy" not in Path(f"/proc/{tracker._pid}/maps").read_text()
    finally:
        tracker._stop()


def test_a_server_that_ends_is_replaced(ranks: RankCopies, capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of(started(ranks, COPIED)) == 41
    assert ranks._server is not None
    ranks._server.kill()
    assert code_of(started(ranks, COPIED)) == 40
    assert capfd.readouterr().err == (
        "The server of the ranks' copies has ended with -9; this rank is a new process.\n"
    )
    assert code_of(started(ranks, COPIED)) == 41


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankCopies]:
    """One that has no server yet."""
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", RANKS.new)
    made = RankCopies()
    made.install()
    yield made
    made.close()


def test_what_changed_before_they_were_installed_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """As conftest sets variables that libraries read."""
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", RANKS.new)
    made = RankCopies()
    monkeypatch.setenv("ORT_SOMETHING", "1")
    made.install()
    assert code_of(started(made, COPIED)) == 41
    monkeypatch.setenv("ORT_SOMETHING", "2")
    assert code_of(started(made, COPIED)) == 40
    made.close()


def test_a_server_that_cannot_begin_is_asked_once(
    another: RankCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(7)")
    monkeypatch.setattr("tests.rank_copies_server.__file__", str(broken))
    assert [code_of(started(another, COPIED)) for _ in range(2)] == [40, 40]
    assert capfd.readouterr().err == (
        "The server of the ranks' copies has ended with 7; it made no rank: all are new processes.\n"
    )


def test_ranks_are_new_where_nobody_may_adopt(another: RankCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be no children of who starts them."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.rank_copies._SET_ADOPTS", -1)
        assert code_of(started(another, COPIED)) == 40
    assert code_of(started(another, COPIED)) == 41


def test_some_tests_begin_new_ranks_all_the_same() -> None:
    """The same ones each time, so that a failure comes again."""
    found = [name for name in (f"tests/test_x.py::test_{number}" for number in range(1000)) if is_drawn(name)]
    assert len(found) == 95 and found[0] == "tests/test_x.py::test_0"


def test_many_at_once(ranks: RankCopies) -> None:
    with ThreadPoolExecutor(8) as pool:
        pids = list(pool.map(lambda code: started(ranks, f"raise SystemExit({code})"), range(16)))
    assert [code_of(pid) for pid in pids] == list(range(16))


def test_who_asks_adopts_no_longer(ranks: RankCopies) -> None:
    """Else orphans of other tests would stay as zombies."""
    reader, writer = os.pipe()
    begin, allow = os.pipe()
    started(ranks, COPIED)
    text = f"""
import os, time
os.read({begin}, 1)  # what is left before the answer has come is adopted still
first = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == first:
    time.sleep(0.01)
os.write({writer}, b"%d" % os.getppid())
"""
    pid = started(ranks, text, descriptors=[writer, begin])
    os.write(allow, b"x")
    assert code_of(pid) == 0
    for descriptor in (writer, begin, allow):
        os.close(descriptor)
    with os.fdopen(reader) as said:
        assert int(said.read()) != os.getpid()


def test_a_copied_program_has_copies_as_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RANKS, "wanted", True)
    mark = uuid.uuid4().hex
    program = f"""
import multiprocessing, threading
process = multiprocessing.get_context("spawn").Process(target=exec, args=({COPIED!r},))
thread = threading.Thread(target=process.start, name="shardrun ranks")
thread.start(); thread.join(); process.join()
print(process.exitcode)
"""
    copies = Copies(["launcher.starters.local", "numpy"], os.environ)
    try:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "RANKS_MARK": mark}
        done = copies.run(["-c", program], environ, tmp_path, 60)
        assert (done.stdout, done.returncode) == ("41\n", 0), done.stderr
        end = time.monotonic() + 30
        while (left := holding(f"RANKS_MARK={mark}")) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left
    finally:
        copies.close()


def test_no_hang_up_where_something_stands_still(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to a group that nobody of its session looks after, as of a job in the
    background, when a process with a child in it ends while another of it is stopped."""
    program = f"""
import os, signal, sys, threading
from tests.rank_copies import RANKS
RANKS.install()
stopped = os.fork()
if stopped == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(stopped, os.WUNTRACED)
def start():
    for _ in range(100):
        command = [sys.executable, "-c", {COPIED!r}]
        pid = RANKS.spawn(os.fsencode(sys.executable), command, [])
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 41
thread = threading.Thread(target=start, name="shardrun ranks")
thread.start()
thread.join()
RANKS.close()
os.kill(stopped, signal.SIGKILL)
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=tmp_path, start_new_session=True, check=False,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
