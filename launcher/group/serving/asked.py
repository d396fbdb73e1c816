"""One request to the ranks of a group, from the moment it is made until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.errors import ShardrunError
    from launcher.group.serving.runs import RanksRun
    from sharding.common.arrays import Array


MOST_HERE = 1 << 20
"""Bytes of tensors that an event loop itself sends; more would keep its other work waiting."""
AGAIN = "again"
"""In the fields of a request that ranks are asked before all others, and without which they are of no use."""


@dataclass(eq=False, repr=False)
class Asked:
    """A request. ``tensors``: what rank 0 is sent; ``future``, ``run``: who is told of the answer, where no
    thread waits for it.

    All of it is guarded by the lock of its `launcher.group.requests.Requests`.
    """

    kind: wire.Kind
    fields: Mapping[str, object]
    tensors: dict[str, Array]
    future: Future[dict[str, Array]] | None = None
    run: RanksRun | None = None
    number: int = 0
    slot: int = 0
    tries: int = 0
    """How often it was sent: again where ranks died of it or beside it, and were started anew."""
    sent: bool = False
    done: bool = False
    abandoned: bool = False
    """Whether nobody waits for the answer any more."""
    result: wire.Message | None = None
    error: ShardrunError | None = None
    failed: dict[int, Mapping[str, object]] = field(default_factory=dict)
    """What ranks said that could not compute it."""
    ring: Callable[[], object] = lambda: None
    """Is called when the request is done, where it has neither ``future`` nor ``run``, and must not wait."""

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(array.nbytes for array in self.tensors.values())

    @property
    def repeatable(self) -> bool:
        """Whether it is for other ranks, too, than those that it was sent to: the state of a session is on
        these alone."""
        return self.run is None and not self.fields.keys() & {"session", AGAIN}

    @property
    def answer(self) -> wire.Message:
        """What was answered, once it is done. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def keep(self) -> None:
        """Makes the tensors copies of its own: whoever gave them may change them from now on."""
        self.tensors = {name: array.copy() for name, array in self.tensors.items()}
