"""What one rank sends to another: the ``Send`` and ``Recv`` of rank models.

An announced value goes in two messages: 16 numbers (64-bit: the number of axes, the element type, the bytes
of a failure's text, the lengths), then the value. A rank that could not compute what it should send sends the
reason instead, and so does every rank that needed that value. So all ranks are still in step afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ranks.collectives.base import Buffer, Communicator
from ranks.collectives.buffers import Memory, Shape
from ranks.common.tensors import element_dtype
from ranks.errors import CollectiveError, ModelError
from ranks.sessions.cut import Collective
from ranks.sessions.nodes import MAX_AXES

_INT64, _UINT8 = 7, 2
_NUMBERS = 3 + MAX_AXES
_MOST_TEXT = 4096  # bytes of a failure's reason


class RemoteError(ModelError):
    """Another rank could not compute what this one waits for. Its text is that rank's error."""


class ReshapedError(Exception):
    """A value that comes has another shape than its buffer; the value itself has not been taken yet."""

    def __init__(self, collective: Collective, shape: Shape) -> None:
        super().__init__(shape)
        self.collective = collective
        self.shape = shape


class Mail:
    """Sends and receives a program's values, in the order in which they are in ``order``."""

    def __init__(
        self,
        communicator: Communicator,
        memory: Memory,
        ranks: Sequence[int],
        order: Sequence[Collective],
        *,
        announced: bool = False,
    ) -> None:
        """``ranks``: the rank of ``communicator`` that each peer's number in the model stands for.

        ``announced``: every value is announced, whatever the model says, so that failures can be, too.
        """
        self.group = communicator
        self._memory = memory
        self._ranks = ranks
        self._order = order
        self._announced = announced
        self._done = 0
        self._incoming: Buffer = None  # a header's buffer

    def begin(self) -> None:
        """A run may begin: none of its mail is done."""
        self._done = 0

    def sending(self, c: Collective, source: Buffer, element: int) -> Callable[[], None]:
        """The call that sends a value from its buffer."""
        peer = self._ranks[c.attributes["peer"]]
        header = None
        if self._is_announced(c):
            shape = self._memory.shape(source)
            if len(shape) > MAX_AXES:
                raise ModelError(
                    f"{c.input!r} has {len(shape)} axes and cannot be sent; at most {MAX_AXES} can."
                )
            header = self._header(len(shape), element, 0, *shape)
        return partial(self._send, header, source, peer)

    def receiving(self, c: Collective, target: Buffer) -> Callable[[], None]:
        """The call that receives a value into its buffer; it raises `ReshapedError` where it does not fit."""
        if not self._is_announced(c):
            return partial(self.take, c, target)
        return partial(self._receive, c, target, self._memory.shape(target))

    def expect(self, c: Collective) -> Shape:
        """The shape of the value that comes next; `take` must follow."""
        if not self._is_announced(c):
            return tuple(c.attributes["shape"])
        if self._incoming is None:
            self._incoming = self._memory.allocate((_NUMBERS,), _INT64, exchanged=True)
        peer = self._ranks[c.attributes["peer"]]
        self.group.recv(self._incoming, peer)
        axes, element, text, *lengths = self._memory.fetch(self._incoming).tolist()
        if text > 0:
            self._done += 1
            raise RemoteError(self._text(peer, min(text, _MOST_TEXT)))
        shape, wanted = tuple(lengths[: max(axes, 0)]), c.attributes["shape"]
        if element != c.attributes["dtype"] or not _fits(shape, wanted):
            raise CollectiveError(
                f"Rank {self.group.members[peer]} sent {element_dtype(element)}{list(shape)} for "
                f"{c.output!r} where this rank's model expects {element_dtype(c.attributes['dtype'])}"
                f"{list(wanted)}: the ranks' models do not belong together."
            )
        return shape

    def take(self, c: Collective, target: Buffer) -> None:
        """Receives the value itself."""
        self.group.recv(target, self._ranks[c.attributes["peer"]])
        self._done += 1

    def fail(self, reason: str) -> None:
        """Finishes this run's sends and receives without computing: tells the ranks that wait for this one
        why it has nothing to send, and drops what arrives."""
        text = reason.encode(errors="replace")[:_MOST_TEXT] or b"?"
        for c in self._order[self._done :]:
            if c.op == "Recv":
                try:
                    shape = self.expect(c)
                except RemoteError:
                    continue
                self.take(c, self._memory.allocate(shape, c.attributes["dtype"], exchanged=True))
                continue
            peer = self._ranks[c.attributes["peer"]]
            self.group.send(self._header(0, 0, len(text)), peer)
            raw = self._memory.allocate((len(text),), _UINT8, exchanged=True)
            self._memory.load(raw, np.frombuffer(text, np.uint8))
            self.group.send(raw, peer)
            self._done += 1
        self.begin()

    def _is_announced(self, c: Collective) -> bool:
        return self._announced or bool(c.attributes["announce"])

    def _header(self, *numbers: int) -> Buffer:
        header = self._memory.allocate((_NUMBERS,), _INT64, exchanged=True)
        self._memory.load(header, np.array([*numbers, *[0] * (_NUMBERS - len(numbers))], np.int64))
        return header

    def _send(self, header: Buffer, source: Buffer, peer: int) -> None:
        if header is not None:
            self.group.send(header, peer)
        self.group.send(source, peer)
        self._done += 1

    def _receive(self, c: Collective, target: Buffer, shape: Shape) -> None:
        found = self.expect(c)
        if found != shape:
            raise ReshapedError(c, found)
        self.take(c, target)

    def _text(self, peer: int, count: int) -> str:
        raw = self._memory.allocate((count,), _UINT8, exchanged=True)
        self.group.recv(raw, peer)
        return self._memory.fetch(raw).tobytes().decode(errors="replace")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a shape has the axes that a ``Recv`` says. Lengths are what was announced: those that the model
    says may be as wrong as the file that it was made from."""
    return len(shape) == len(wanted) and all(length >= 0 for length in shape)
