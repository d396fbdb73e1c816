"""Ranks that a signal stops: who waits for them says so, and does not wait for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from launcher import Group, start
from launcher.errors import LaunchError, RankFailedError
from launcher.group import halted
from launcher.group.control import Peer
from launcher.group.starting import run_program
from ranks.common import progress as progress_module
from ranks.common.waiting import is_stopped
from ranks.talk.stream import Stream
from tests.launcher import slices
from tests.launcher.processes import wait_until
from tests.left_behind import holding

LIMIT = 1.0


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halted, "NOTICE_SECONDS", 0.3)
    monkeypatch.setattr(halted, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(halted, "_GRACE", 0.5)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What every process that the test starts has in its environment."""
    monkeypatch.setenv("TEST_HALTED", str(tmp_path))
    return f"TEST_HALTED={tmp_path}"


def halt(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: all(map(is_stopped, pids)), 10)


def left(mark: str) -> list[str]:
    """What still runs of it, but for multiprocessing's own helper, which ends with this process."""
    return [command for command in holding(mark).values() if "resource_tracker" not in command]


@pytest.mark.new_ranks
@pytest.mark.parametrize(
    ("launcher", "ranks"), [("local", (0,)), ("local", (1,)), ("local", (0, 1)), ("mpirun", (0, 1))]
)
def test_a_request_does_not_wait_for_ever(
    quickly: None, mark: str, two_slices: Path, launcher: str, caplog: pytest.LogCaptureFixture,
    ranks: tuple[int, ...],
) -> None:  # fmt: skip
    with start(two_slices, launcher=launcher, threads=1, timeout=30) as group:
        group.predict(slices.feeds(1))
        group._job.patience = LIMIT
        pids = [group.stats[rank].pid for rank in ranks]
        halt(pids)
        with pytest.raises(RankFailedError) as caught:
            group.predict(slices.feeds(1))
    said = [record.getMessage() for record in caplog.records]
    for rank, pid in zip(ranks, pids, strict=True):
        (line,) = [
            line
            for line in said
            if line.startswith(f"waiting for rank {rank} on host {os.uname().nodename}, at most 1 s: ")
        ]
        assert f"process {pid} (" in line and line.endswith(
            f"is stopped by a signal such as SIGSTOP (`kill -CONT {pid}` lets it go on)"
        )
    text = str(caught.value)
    assert text.startswith(
        f"rank {ranks[0]} on host {os.uname().nodename} did not go on within 1 s: it is pro"
    )
    assert f"process {pids[0]} (" in text
    sentence, _, where = text.partition("\n")
    assert sentence.endswith(
        f", which is stopped by a signal such as SIGSTOP (`kill -CONT {pids[0]}` lets it go on)."
    )
    assert where.startswith(f"Stacks of rank {ranks[0]}:\n") and " in serve" in where, text
    assert wait_until(lambda: not left(mark), 10), left(mark)


@pytest.mark.new_ranks
def test_one_that_goes_on_in_time_answers(
    quickly: None, two_slices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(two_slices, launcher="local", threads=1, timeout=60) as group:
        pids = [stats.pid for stats in group.stats]
        halt(pids)

        def go_on() -> None:
            wait_until(lambda: len(caplog.records) >= len(pids), 30)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        waker = threading.Thread(target=go_on)
        waker.start()
        feeds = slices.feeds(3)
        outputs = group.predict(feeds)
        waker.join()
        assert len(caplog.records) == 2  # once of each
        assert np.array_equal(outputs["y"], group.predict(feeds)["y"])
        caplog.clear()
        group.predict(feeds)
        assert not caplog.records


@pytest.mark.new_ranks
def test_a_rank_that_is_stopped_while_it_loads(quickly: None, mark: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # The other one waits: of two that stop, the first is named, and on a busy machine that is either.
    script.write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGSTOP) if os.environ['RANK'] == '0' else time.sleep(60)\n"
    )
    with pytest.raises(RankFailedError, match=r"^rank 0 on host .* did not go on within 1 s: it is process"):
        run_program(["exec", str(script)], ranks=2, launcher="local", timeout=LIMIT)
    assert wait_until(lambda: not left(mark), 10), left(mark)


@pytest.mark.new_ranks
def test_a_rank_of_another_host_gives_no_sign_of_life(
    quickly: None, mark: str, two_slices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of it only what it says is known. While it computes or waits for a peer, it answers."""
    with start(two_slices, launcher="local", threads=1, hang_timeout=2.0) as group:
        peers = group._job._peers.values()
        for peer in peers:
            assert peer.process is not None
            os.close(peer.process)
            peer.process = None
        halt([group.stats[1].pid])
        with pytest.raises(RankFailedError) as caught:
            group.predict(slices.feeds(1))
        assert caught.value.rank == 1
        where = f"rank 1 on host {os.uname().nodename}"
        assert str(caught.value).startswith(f"{where} has given no sign of life for 2 s: its process ")
    assert wait_until(lambda: not left(mark), 10), left(mark)


def test_a_rank_that_works_for_long_does_not_hang(quickly: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(3)\nend = time.time() + 2\nwhile time.time() < end: pass\n")
    run_program(["exec", str(script)], ranks=2, launcher="local", timeout=LIMIT)


def test_time_in_which_the_waiting_process_was_stopped_too_does_not_count(
    monkeypatch: pytest.MonkeyPatch, two_slices: Path
) -> None:
    with start(two_slices, launcher="local", threads=1) as group:
        peers = list(group._job._peers.values())
        halt([peer.pid for peer in peers])
        now = time.monotonic()
        monkeypatch.setattr(halted.time, "monotonic", lambda: now)
        watch = halted.Watch(limit=60.0)
        now += 1.0
        assert watch.look(peers) is None
        now += 3600.0
        assert watch.look(peers) is None
        for _ in range(60):
            now += 1.0
            if (hung := watch.look(peers)) is not None:
                break
        assert hung is not None and hung.peer.rank == 0
        monkeypatch.undo()


def test_a_rank_that_sends_for_long_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow network a large answer takes long, and the sign of life comes after it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(0, "there", 1, Stream(ours), ready=True)
        peer.asked = True
        now = time.monotonic()
        monkeypatch.setattr(halted.time, "monotonic", lambda: now)
        watch = halted.Watch(limit=60.0)
        for step in range(300):
            now += 1.0
            if step < 200:
                theirs.send(b"piece")
                peer.stream._receive_into(memoryview(bytearray(5)))
            if (hung := watch.look([peer])) is not None:
                break
        assert 255 < step < 265 and hung is not None
        assert str(hung.error("")).startswith("rank 0 on host there has given no sign of life for 60 s")
        monkeypatch.undo()


def test_a_rank_that_mpirun_has_meanwhile_ended_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun continues and ends the others as soon as one rank fails, maybe before anybody looks again."""
    with socket.socket() as one, subprocess.Popen(["sleep", "600"]) as process:
        peers = [Peer(1, "here", process.pid, Stream(one), process=os.pidfd_open(process.pid))]
        seen = halted.Seen()
        assert seen.look(peers) == [] and seen.in_sentences(peers) == ""
        halt([process.pid])
        assert seen.look(peers) == peers
        process.kill()
        process.wait()
        said = f" Rank 1 is process {process.pid} (sleep 600), which is stopped by a signal such as SIGSTOP"
        assert seen.in_sentences(peers).startswith(said)
        now = time.monotonic()
        monkeypatch.setattr(halted.time, "monotonic", lambda: now + 3600.0)
        assert seen.in_sentences(peers) == ""


def test_who_is_not_there_since_it_ended_well_is_named(tmp_path: Path) -> None:
    """MPI itself does not tell a rank that another one has gone in order."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom ranks.run import group\nranks = group.join()\nranks.barrier()\n"
        "if ranks.rank == 1:\n    sys.exit(0)\nranks.barrier()\n"
    )
    with pytest.raises(RankFailedError) as caught:
        run_program(["exec", str(script)], ranks=2, launcher="mpirun", collectives="mpi", timeout=60)
    left = "Rank 1 left the group while rank 0 waited for it in barrier."
    assert str(caught.value).startswith(f"rank 0 on host {os.uname().nodename}: {left}")


@pytest.mark.new_ranks
def test_loading_tells_how_many_ranks_are_ready(two_slices: Path, launcher: str) -> None:
    seen: list[tuple[int, int]] = []
    with start(two_slices, launcher=launcher, threads=1, progress=lambda *pair: seen.append(pair)):
        assert seen[0] == (0, 2) and seen[-1] == (2, 2)
        assert seen == sorted(seen)


def test_a_terminal_shows_the_loading_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "is_terminal", lambda stream: False)
    with progress_module.progress("loading", counted=True) as update:
        assert update is None
    ticks = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: 2.0 * next(ticks))
    monkeypatch.setattr(progress_module, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with progress_module.progress("loading 3 kB", counted=True) as update:
        assert update is not None
        update(1, 4)
    assert "loading 3 kB" in (shown := capsys.readouterr().err) and "1/4" in shown


def test_a_rank_for_which_others_wait_in_vain_is_shown_with_its_stack(tmp_path: Path) -> None:
    """It gives signs of life; only its code shows why it does not come."""
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nfrom ranks.run import group\nranks = group.join(timeout=1.0)\n"
        "def reads_a_slow_disk():\n    time.sleep(60)\n"
        "if ranks.rank == 1:\n    reads_a_slow_disk()\nranks.barrier()\n"
    )
    with pytest.raises(RankFailedError) as caught:
        run_program(["exec", str(script)], ranks=2, launcher="local", timeout=60)
    sentence, _, where = str(caught.value).partition("\n")
    assert "Rank 1 did not come" in sentence
    assert where.startswith("Stacks of rank 1:\n") and "reads_a_slow_disk" in where


def test_the_first_late_ranks_are_shown_whichever_came_first() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peers = [Peer(rank, "a", 0, Stream(ours)) for rank in (3, 0, 2, 1)]
        late = halted.late_ones(peers, {0}, {"type": "CollectiveTimeoutError"})
        assert [peer.rank for peer in late] == [1, 2]
        assert halted.late_ones(peers, {0}, {"type": "ValueError"}) == []


def slow_stacks(
    monkeypatch: pytest.MonkeyPatch, group: Group, meanwhile: Callable[[], object]
) -> list[tuple[bool, object]]:
    """Stacks come late: ``meanwhile`` is called before. Gives whether another thread could then have the
    job's lock, and what that returned."""
    seen: list[tuple[bool, object]] = []

    def stacks(peer: Peer) -> str:
        free = threading.Event()

        def take() -> None:
            with group._job.changed:
                free.set()

        threading.Thread(target=take, daemon=True).start()
        seen.append((free.wait(5), meanwhile()))
        return "\nStacks of it"

    monkeypatch.setattr(halted, "stacks", stacks)
    return seen


@pytest.mark.parametrize("meanwhile", ["goes on", "fails", "ends"])
def test_nobody_waits_for_the_stacks_of_a_rank_that_hangs(
    quickly: None, mark: str, two_slices: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Whatever comes while they are looked for, the rank that hangs is the failure: it may have gone on and
    answered, something else may fail, or it may be killed."""
    with start(two_slices, launcher="local", threads=1, timeout=30) as group:
        expected = group.predict(slices.feeds(1))["y"]
        group._job.patience = LIMIT
        pids = [group.stats[rank].pid for rank in (0, 1)]

        def then() -> object:
            if meanwhile == "goes on":
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                time.sleep(0.5)  # in which the answer comes
            elif meanwhile == "fails":
                group._job.fail(LaunchError("Something else."))
            else:
                os.kill(pids[0], signal.SIGKILL)
                time.sleep(1.0)  # in which that is noticed
            return group._job.failure

        seen = slow_stacks(monkeypatch, group, then)
        halt(pids)
        with pytest.raises(RankFailedError, match=r"^rank 0 on host .* did not go on within 1 s") as caught:
            group.predict(slices.feeds(1))
        assert str(caught.value).endswith("\nStacks of it")
        assert seen == [(True, None)] and expected.size
    assert wait_until(lambda: not left(mark), 10), left(mark)


def test_a_group_is_closed_while_stacks_are_looked_for(
    quickly: None, mark: str, two_slices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = start(two_slices, launcher="local", threads=1, timeout=30)
    group.predict(slices.feeds(1))
    group._job.patience = LIMIT
    closer = threading.Thread(target=group.close)

    def close() -> None:
        closer.start()
        closer.join(0.5)  # it has ended the ranks, and waits for us

    seen = slow_stacks(monkeypatch, group, close)
    halt([group.stats[1].pid])
    with pytest.raises(RankFailedError, match=r"^rank 1 on host .* did not go on within 1 s"):
        group.predict(slices.feeds(1))
    closer.join(30)
    assert [free for free, _ in seen] == [True] and not closer.is_alive()
    assert wait_until(lambda: not left(mark), 10), left(mark)


def test_nobody_waits_for_the_stacks_of_late_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cause does: they belong to it."""
    changed = threading.Condition()
    inquest = halted.Inquest(changed, halted.Seen())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peers = {rank: Peer(rank, "a", 0, Stream(ours)) for rank in (0, 1)}
        error = {"type": "CollectiveTimeoutError"}
        with changed:
            late = inquest.begin(peers, {0}, [], error)
            assert late == [peers[1]] and inquest.open
            assert inquest.begin(peers, {0}, [], error) == []  # another rank's error, meanwhile

        def stacks(peer: Peer) -> str:
            assert changed.acquire(blocking=False)
            changed.release()
            return f" stacks of {peer.rank}"

        monkeypatch.setattr(halted, "stacks", stacks)
        worker = threading.Thread(target=inquest.ask, args=(late,))
        worker.start()
        with changed:
            assert changed.wait_for(lambda: not inquest.open, 10)
        worker.join()
        assert inquest.said == " stacks of 1"
