"""The calls that a collective of a rank model takes, bound to its buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ranks.collectives.base import Buffer, Communicator
from ranks.collectives.buffers import Memory, Shape
from ranks.errors import ModelError
from ranks.run.point_to_point import Mail
from ranks.sessions.cut import Collective


class Exchanges:
    """Collectives among ``group``, sends and receives by ``mail``."""

    def __init__(
        self,
        group: Communicator | None,
        mail: Mail | None,
        memory: Memory,
        elements: Mapping[str, int | None],
    ) -> None:
        self._group = group
        self._mail = mail
        self._memory = memory
        self._elements = elements
        groups = [group, mail.group if mail is not None else None]
        self._used = [one for one in dict.fromkeys(groups) if one is not None]

    @property
    def computing_seconds(self) -> float:
        """How long exchanges have waited for this rank's own device (`Communicator.computing_seconds`)."""
        seconds = 0.0
        for one in self._used:
            seconds += one.computing_seconds
        return seconds

    @property
    def waiting_seconds(self) -> float:
        """How long exchanges have waited for other ranks (`Communicator.waiting_seconds`)."""
        seconds = 0.0
        for one in self._used:
            seconds += one.waiting_seconds
        return seconds

    def calls(
        self, c: Collective, source: Buffer, target: Buffer, *, in_place: bool
    ) -> list[Callable[[], object]]:
        """What to call, in order; ``in_place``: the two buffers are one."""
        group, mail = self._group, self._mail
        assert group is not None
        if c.op == "Send":
            assert mail is not None and c.input
            return [mail.sending(c, source, self._elements[c.input] or 0)]
        if c.op == "Recv":
            assert mail is not None
            return [mail.receiving(c, target)]
        if c.op == "AllGather":
            axis = c.attributes["axis"] % max(1, len(self._memory.shape(source)))
            return [group.gathering(source, target, axis)]
        if c.op == "AllToAll":
            return [partial(group.all_to_all, source, target)]
        calls: list[Callable[[], object]] = []
        if not in_place:
            calls.append(partial(self._memory.copy, target, source))
        if c.op == "AllReduce":
            calls.append(partial(group.all_reduce, target))
        else:
            calls.append(partial(group.broadcast, target, c.attributes["root"]))
        return calls

    def free(self, c: Collective, source: Buffer) -> Buffer:
        """Runs a collective at once; its output, in a new buffer.

        Never in place: what ONNX Runtime allocated may be a constant of the model.
        """
        if c.op == "Recv":
            assert self._mail is not None
            target = self._new(c, self._mail.expect(c))
            self._mail.take(c, target)
            return target
        target = self._new(c, self._shape(c, self._memory.shape(source))) if c.output else None
        for call in self.calls(c, source, target, in_place=False):
            call()
        return target

    def finish(self, c: Collective, shape: Shape) -> Buffer:
        """Takes a value whose announced shape was not the planned one; its new buffer."""
        assert self._mail is not None
        target = self._new(c, shape)
        self._mail.take(c, target)
        return target

    def _new(self, c: Collective, shape: Shape) -> Buffer:
        return self._memory.allocate(shape, self._elements[c.output or ""] or 0, exchanged=True)

    def _shape(self, c: Collective, shape: Shape) -> Shape:
        size = self._group.size if self._group else 1
        if c.op == "AllGather":
            axis = c.attributes["axis"]
            if not -len(shape) <= axis < len(shape):
                raise ModelError(f"AllGather of {c.input!r} has axis {axis}, but its shape is {list(shape)}.")
            axis %= len(shape)
            return (*shape[:axis], shape[axis] * size, *shape[axis + 1 :])
        if c.op == "AllToAll" and (not shape or shape[0] % size):
            raise ModelError(
                f"AllToAll of {c.input!r}: axis 0 of its shape {list(shape)} must be a multiple of {size}."
            )
        return shape
