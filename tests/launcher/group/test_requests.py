"""Runs of steps that ranks make by themselves, as their reader and other requests find their end."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from launcher.group.answers import Answers
from launcher.group.requests import RanksRun, Requests
from ranks.talk import wire

STATS = {"communication_seconds": 0.0, "segment_seconds": 0.0}


class _Interrupting(threading.Condition):
    """Whoever takes it once it is armed is interrupted by a Ctrl-C."""

    armed = False

    def __enter__(self) -> bool:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGINT)
        return super().__enter__()


class _Ranks:
    """A job of one rank, which ends a run as soon as it is told to."""

    world_size, failure = 1, None

    def __init__(self) -> None:
        self.answers, self.changed = Answers(), _Interrupting()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        assert condition()

    def send(self, rank: int, kind: wire.Kind, fields: dict[str, Any], tensors: Any = None) -> None:
        if kind is wire.Kind.LIMIT:
            fields = {"request": fields["request"], "stats": STATS, "seconds": 0.0}
            self.answers.take(0, wire.Message(wire.Kind.RESULT, fields, {}))


def test_a_ctrl_c_at_the_end_of_a_run_does_not_hide_the_end() -> None:
    """Its reader would look for it for ever."""
    ranks = _Ranks()
    requests = Requests(cast(Any, ranks))
    run = requests.run({}, {})
    ranks.changed.armed = True
    with pytest.raises(KeyboardInterrupt):
        requests.finish(run, halt=True)
    run.close()
    assert run.ended
    assert run.next() is None


def test_tokens_that_come_with_the_end_are_not_lost() -> None:
    """Another thread's request ends the run between two looks of its reader."""
    run = RanksRun(cast(Any, None), cast(Any, _Ranks()))

    class Late(deque[int]):
        looked = False

        def __bool__(self) -> bool:
            if not self.looked:
                self.looked = True
                self.append(7)
                run.ended = True
                return False
            return len(self) > 0

    run.tokens = Late()
    assert run.next() == 7
    assert run.next() is None
