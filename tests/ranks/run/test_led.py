"""What a leader does with ranks that follow, and what it does not after an interruption."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ranks.collectives.broadcast import Spreader
from ranks.collectives.single import SingleCommunicator
from ranks.errors import CollectiveError
from ranks.run.led import Leader
from ranks.talk.wire import Kind, Message
from tests.ranks.threads import until


def test_a_change_that_is_interrupted_is_the_last() -> None:
    """The others make it whole: steps from there on would be of states that differ."""

    def change(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    model = SimpleNamespace(sequences=SimpleNamespace(change=change), step=lambda *_: {})
    leader = Leader([cast(Any, model)], Spreader(SingleCommunicator(10)))
    assert leader.step(0, 1, {}) == {}
    with pytest.raises(KeyboardInterrupt):
        leader.change(0, "rewind", 1, length=3)
    with pytest.raises(CollectiveError, match="have ended"):
        leader.step(0, 1, {})


def test_an_idle_leader_speaks_to_the_others_until_it_ends() -> None:
    """Else they would take it for lost."""

    class Spoken:
        """Keeps what is said; ``lost``: nobody hears it."""

        size, timeout, lost = 2, 0.08, False

        def __init__(self) -> None:
            self.said: list[Kind] = []

        def spread(self, message: Message) -> None:
            if self.lost:
                raise CollectiveError("rank 1 is gone")
            self.said.append(message.kind)

    before = set(threading.enumerate())

    def leading() -> bool:
        return any(one.name == "shardrun leader" for one in set(threading.enumerate()) - before)

    spoken = Spoken()
    leader = Leader([], cast(Any, spoken))
    until(lambda: spoken.said.count(Kind.HELLO) > 1)
    leader.end("well")
    until(lambda: not leading())
    assert spoken.said[-1] is Kind.STOP and spoken.said.count(Kind.STOP) == 1 and leader.ended
    spoken = Spoken()
    leader = Leader([], cast(Any, spoken))
    spoken.lost = True
    until(lambda: leader.ended and not leading())
    alone = Spoken()
    alone.size = 1
    Leader([], cast(Any, alone))
    assert not leading()
