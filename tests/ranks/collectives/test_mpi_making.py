"""What MPI may not be asked while it makes a communicator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
