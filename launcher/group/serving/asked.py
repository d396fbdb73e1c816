"""One request to the ranks of a group, from the moment it is made until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ranks.talk import wire
from ranks.talk.reports import WHOLE

if TYPE_CHECKING:
    from launcher.errors import ShardrunError
    from launcher.group.serving.runs import RanksRun
    from launcher.group.watch import Job
    from sharding.common.arrays import Array


MOST_HERE = 1 << 20
"""Bytes of tensors that an event loop itself sends; more would keep its other work waiting."""
MOST_TO_ALL = 64 << 10
"""Bytes of a request that all ranks get together: where there are more, rank 0 alone gets the tensors."""
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

    def send(self, job: Job) -> None:
        """Sends it to all ranks of a job. Raises `ranks.talk.wire.WireError`, before anything is sent."""
        fields = {**self.fields, "request": self.number, "slot": self.slot}
        if (frame := self._for_all(fields, job.world_size)) is not None:
            for rank in range(job.world_size):
                job.send_frame(rank, frame)
            return
        job.send(0, self.kind, fields, self.tensors, self.slot)
        for rank in range(1, job.world_size):
            job.send(rank, self.kind, fields)

    def _for_all(self, fields: Mapping[str, object], ranks: int) -> bytes | None:
        """The message of a small request, which each rank gets whole: for rank 0 to pass it on, ranks would
        have to wait for each other. None of any other."""
        if ranks == 1 or self.kind is not wire.Kind.PREDICT or self.size * ranks > MOST_TO_ALL:
            return None
        texts = (text for array in self.tensors.values() if array.dtype == object for text in array.flat)
        if ranks * sum(map(len, texts)) > MOST_TO_ALL:  # an array has but their places
            return None
        frame = b"".join(wire.encode(wire.Message(self.kind, {**fields, WHOLE: True}, self.tensors))[0])
        return frame if len(frame) * ranks <= MOST_TO_ALL else None

    def keep(self) -> None:
        """Makes the tensors copies of its own: whoever gave them may change them from now on."""
        self.tensors = {name: array.copy() for name, array in self.tensors.items()}
