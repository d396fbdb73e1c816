"""What a leader does with ranks that follow, and what it does not after an interruption."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ranks.collectives.broadcast import Spreader
from ranks.collectives.single import SingleCommunicator
from ranks.errors import CollectiveError
from ranks.run.led import Leader


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
