"""When a rank hangs: what is taken for it, on a clock of the test's own."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.group import halted
from launcher.group.halted import Hung, Inquest, Seen, Watch, _Still, late_ones, stacks, wait_aloud
from tests.launcher.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(halted, "time", made)
    return made


def far(rank: int, *, stopped: bool = False, asked: bool = False, ready: bool = True, **more: Any) -> Any:
    """A rank of another host, of which the process above it tells."""
    pings: list[float] = []
    beat = SimpleNamespace(moves=False, still=False)
    return SimpleNamespace(**{
        "rank": rank, "host": "h", "pid": 40 + rank, "process": None, "asked": asked, "ready": ready,
        "above": SimpleNamespace(stopped=stopped, stacks=lambda: ""), "beats": 0, "beat": beat,
        "stream": SimpleNamespace(received=0), "ping": lambda: pings.append(0.0), "pings": pings, **more,
    })  # fmt: skip


def looked(clock: Clock, watch: Watch, peers: list[Any], looks: int, after: Any = lambda: None) -> Any:
    """The number of the first look that finds a rank that hangs, and what; one look a second."""
    for number in range(1, looks + 1):
        clock.now += 1
        after()
        if (found := watch.look(peers)) is not None:
            return number, found
    return None


def test_a_stopped_rank_is_warned_of_once_and_hangs_after_its_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [far(0), far(1, stopped=True)]
    with caplog.at_level(logging.WARNING):
        number, hung = looked(clock, Watch(60, 5), peers, 20)
    # The first look begins to count; a second of grace follows the five.
    assert number == 7 and hung.peer is peers[1]
    assert hung.what.startswith("did not go on within 5 s: it is process 41, which is stopped by a signal")
    [record] = caplog.records
    assert record.getMessage().startswith("waiting for rank 1 on host h, at most 5 s: it is process 41")
    assert [len(peer.pings) for peer in peers] == [7, 7]


def test_a_rank_that_goes_on_begins_anew(clock: Clock) -> None:
    peer = far(0, stopped=True)
    watch = Watch(60, 5)
    assert looked(clock, watch, [peer], 5) is None
    peer.above.stopped = False
    assert looked(clock, watch, [peer], 1) is None
    peer.above.stopped = True
    number, _ = looked(clock, watch, [peer], 20)
    assert number == 7


@pytest.mark.parametrize(
    ("limit", "hang", "ready", "number", "seconds"),
    [
        (60, 5, True, 7, 5),
        (4, None, True, 6, 4),
        (4, 9, True, 6, 4),  # no longer than anything may take
        (8, 3, False, 10, 8),  # while it loads, a library may keep the interpreter
        (None, 5, False, None, None),
        (None, None, True, None, None),
    ],
)
def test_a_rank_that_gives_no_sign_of_life(
    clock: Clock, limit: Any, hang: Any, ready: bool, number: int | None, seconds: int | None
) -> None:
    found = looked(clock, Watch(limit, hang), [far(0, asked=True, ready=ready), far(1)], 30)
    if number is None:
        assert found is None
        return
    assert found[0] == number and found[1].peer.rank == 0
    assert found[1].what.startswith(f"has given no sign of life for {seconds} s: its process 40 is stopped")


def test_a_rank_that_sends_a_large_message_is_alive(clock: Clock) -> None:
    peer = far(0, asked=True)

    def sends() -> None:
        peer.stream.received += 1

    watch = Watch(60, 5)
    assert looked(clock, watch, [peer], 20, sends) is None
    number, _ = looked(clock, watch, [peer], 20)
    assert number == 7


def test_time_in_which_this_process_stood_still_is_no_ranks_fault(clock: Clock) -> None:
    watch, peers = Watch(60, 30), [far(0, stopped=True)]
    assert looked(clock, watch, peers, 1) is None
    clock.now += 1000
    assert watch.look(peers) is None
    number, _ = looked(clock, watch, peers, 60)
    assert number == 31 - 2 * int(halted.LOOK_SECONDS)


def beats(peer: Any, *, moves: bool = False, still: bool = True) -> None:
    peer.beats += 1
    peer.beat.moves, peer.beat.still = moves, still


def test_ranks_that_stand_still_count_while_no_other_gets_on() -> None:
    peers = [far(rank) for rank in range(2)]
    still = _Still()

    def look(*kinds: str) -> dict[int, float]:
        for peer, kind in zip(peers, kinds, strict=True):
            if kind != "silent":
                beats(peer, moves=kind == "moves", still=kind == "still")
        return {peer.rank: seconds for peer, seconds in still.look(peers, 2.0)}

    assert look("still", "waits") == {}  # each has to tell something new
    assert look("still", "waits") == {0: 2.0}
    assert look("still", "silent") == {0: 2.0}
    assert look("still", "still") == {0: 4.0, 1: 2.0}
    assert look("waits", "still") == {1: 4.0}
    assert look("still", "moves") == {}
    assert look("still", "still") == {0: 2.0, 1: 2.0}


def test_a_rank_that_stands_still_hangs(clock: Clock) -> None:
    peers = [far(0), far(1)]

    def tell() -> None:
        beats(peers[0], still=True)
        beats(peers[1], still=False)

    number, hung = looked(clock, Watch(60, 5), peers, 20, tell)
    assert (number, hung.peer.rank) == (7, 0) and hung.what.startswith("has stood still for 5 s")
    error = hung.error("\nstacks")
    assert str(error).startswith("rank 0 on host h has stood still") and str(error).endswith("\nstacks")
    assert (error.rank, error.host) == (0, "h")


def test_who_was_stopped_at_the_last_look_is_told_too(clock: Clock) -> None:
    """What starts ranks may end the others, and let them go on, as soon as one fails."""
    seen, peers = Seen(), [far(2, stopped=True), far(1, stopped=True), far(0)]
    assert [peer.rank for peer in seen.look(peers)] == [1, 2]
    peers[0].above.stopped = False
    clock.now += 2 * halted.LOOK_SECONDS
    sentences = seen.in_sentences(peers)
    assert sentences.index(" Rank 1 is process 41") < sentences.index(" Rank 2 is process 42")
    assert "Rank 2" not in seen.in_sentences(peers)
    peers[0].above.stopped = True
    seen.look(peers)
    peers[0].above.stopped = peers[1].above.stopped = False
    clock.now += 2 * halted.LOOK_SECONDS + 0.1
    assert seen.in_sentences(peers) == ""  # too long ago


@pytest.mark.parametrize(
    ("timeout", "holds_at", "hangs_at", "found", "steps"),
    [
        (None, 3, 9, True, [1.0, 1.0, 1.0]),
        (2.5, 9, 9, False, [1.0, 1.0, 0.5]),
        (2.0, 9, 9, False, [1.0, 1.0]),
        (None, 9, 2, "hung", [1.0, 1.0]),
        (1.0, 9, 1, False, [1.0]),  # its time is over first
        (0.0, 1, 9, True, [0.0]),
    ],
)
def test_waiting_in_steps(
    clock: Clock, timeout: float | None, holds_at: int, hangs_at: int, found: object, steps: list[float]
) -> None:
    waited: list[float] = []

    def wait_for(condition: Any, step: float | None) -> bool:
        assert step is not None
        waited.append(step)
        clock.now += step
        return len(waited) >= holds_at

    given: Any = "hung"
    result = wait_aloud(
        wait_for, lambda: True, timeout, lambda seconds: given if seconds >= hangs_at else None
    )
    assert result == found and waited == steps


@pytest.mark.parametrize(("lines", "shown"), [(0, 0), (60, 60), (61, 61), (70, 61)])
def test_long_stacks_are_cut(lines: int, shown: int) -> None:
    peer = far(3)
    peer.above.stacks = lambda: "\n\n".join(f"line {number}" for number in range(lines))
    text = stacks(peer)
    if not lines:
        assert text == ""
        return
    head, *found = text.strip("\n").split("\n")
    assert head == "Stacks of rank 3:" and len(found) == shown and found[0] == "  line 0"
    assert (found[-1] == f"  ... {lines - 60} more lines") is (lines > 60)


def test_of_late_ranks_the_first_are_shown() -> None:
    peers = [far(rank) for rank in (3, 0, 2, 1)]
    error = {"type": "CollectiveTimeoutError"}
    assert [peer.rank for peer in late_ones(peers, {1}, error)] == [0, 2]
    assert late_ones(peers, {0, 1, 2, 3}, error) == late_ones(peers, (), {"type": "other"}) == []


def test_what_is_found_out_is_waited_for_and_comes_once(clock: Clock) -> None:
    changed = threading.Condition()
    inquest = Inquest(changed, Seen())
    peers = {rank: far(rank) for rank in range(2)}
    peers[1].above.stacks = lambda: "in the middle"
    error = {"type": "CollectiveTimeoutError"}
    assert not inquest.open
    late = inquest.begin(peers, [0], [], error)
    assert late == [peers[1]] and inquest.open and inquest.begin(peers, [0], [], error) == []
    inquest.ask(late)
    assert inquest.said.endswith("Stacks of rank 1:\n  in the middle") and not inquest.open
    assert inquest.begin(peers, [0], [], error) == []  # it was said
    watch = Watch(60, 5)
    peers[0].above.stopped = True
    clock.now += 1
    hung = None
    while hung is None:
        clock.now += 1
        hung = inquest.look(watch, peers.values(), None)
    assert isinstance(hung, Hung) and inquest.deciding and inquest.look(watch, peers.values(), None) is None
    failed: list[Exception] = []
    inquest.decide(hung, failed.append)
    assert len(failed) == 1 and not inquest.deciding
    inquest.wait()
    assert inquest.look(watch, peers.values(), failed[0]) is None
