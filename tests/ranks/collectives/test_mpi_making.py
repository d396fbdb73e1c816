"""What MPI may not be asked while it makes a communicator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.collectives import mpi


def test_a_communicator_that_is_being_made_is_not_asked(monkeypatch: Any) -> None:
    """Open MPI crashes where a communicator is probed for farewells before it is there."""
    asked: list[str] = []
    answers = iter([False] * 400)

    def probe(*_: Any) -> bool:
        asked.append("made" if made else "being made")
        return False

    made = False
    copy = SimpleNamespace(Iprobe=probe, Ibarrier=lambda: SimpleNamespace(Test=lambda: next(answers, True)))
    world = SimpleNamespace(
        Get_rank=lambda: 0,
        Get_size=lambda: 2,
        Idup=lambda: (copy, SimpleNamespace(Test=lambda: next(answers, True))),
    )
    library = SimpleNamespace(Status=object, ANY_SOURCE=-1, Exception=RuntimeError)
    monkeypatch.setattr(mpi.atexit, "register", lambda *_: None)
    monkeypatch.setattr(mpi, "_AWAKE", 0.0)
    ranks = mpi.MpiCommunicator(library, world, 60.0)
    assert asked == []
    made = True
    answers = iter([False] * 400)
    ranks.barrier()
    assert set(asked) == {"made"}


def test_two_requests_are_done_when_both_are() -> None:
    for first in (True, False):
        for second in (True, False):
            requests: list[Any] = [SimpleNamespace(Test=lambda done=done: done) for done in (first, second)]
            assert mpi._Both(*requests).Test() is (first and second)


@pytest.mark.parametrize(
    ("word", "count", "seconds", "gone"),
    [
        # Who took leave may be in a collective whose last part still comes: for two seconds, or for as long
        # as so many bytes take.
        ("", 0, 1.9, False),
        ("", 0, 2.1, True),
        ("", 500_000_000, 9.9, False),
        ("", 500_000_000, 10.1, True),
        # Who could not go on was in none that still comes to its end.
        ("no more memory", 500_000_000, 0.05, False),
        ("no more memory", 500_000_000, 0.15, True),
    ],
)
@pytest.mark.parametrize("peer", [None, 0, 1])
def test_how_long_what_was_sent_may_take(
    word: str, count: int, seconds: float, gone: bool, peer: int | None, monkeypatch: Any
) -> None:
    left = SimpleNamespace(
        _made=True,
        _world=SimpleNamespace(Iprobe=lambda *_: False),
        _left={5: 100.0, 7: 100.0},
        _words={5: word} if word else {},
    )
    group: Any = SimpleNamespace(
        _origin=left, _mpi=SimpleNamespace(Status=object, ANY_SOURCE=-1), members=(3, 5)
    )
    monkeypatch.setattr(mpi.time, "monotonic", lambda: 100.0 + seconds)
    found = mpi.MpiCommunicator._gone(group, peer, count)
    assert found == (5 if gone and peer != 0 else None)
