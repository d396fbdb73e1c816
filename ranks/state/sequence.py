"""One sequence's state on this rank: buffers that grow in place and are never sent anywhere.

What a step computes counts only once the step has succeeded (`commit`): until then, and after a failure, the
state is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ranks.collectives.base import Buffer
from ranks.collectives.buffers import Memory, Shape, nbytes
from ranks.errors import ShardrunError
from sharding.slices.state import StatePair

FIRST_CAPACITY = 64
"""Positions that a buffer has room for at first; it doubles from there on."""


@dataclass(frozen=True)
class Slot:
    """A state input of the rank's model: its pair, element type, and shape (without positions)."""

    pair: StatePair
    element: int
    shape: Shape
    least: int = 0
    """Positions that a buffer must have room for, however few are filled."""

    def with_length(self, length: int) -> Shape:
        """The shape with so many positions."""
        if self.pair.axis is None:
            return self.shape
        return (*self.shape[: self.pair.axis], length, *self.shape[self.pair.axis + 1 :])


class SequenceState:
    """The values of all state inputs of a rank's model after ``length`` positions.

    Sequences that run together in one batch share one of these. Models whose state does not grow count steps.
    """

    def __init__(
        self, slots: Sequence[Slot], memory: Memory, initial: Mapping[str, Buffer] | None = None
    ) -> None:
        """``initial``: buffers to start with instead of zeros or of nothing, by the names of inputs."""
        self.slots = {slot.pair.input: slot for slot in slots}
        self.length = 0
        self.steps = 0
        self._memory = memory
        self._values: dict[str, Buffer] = {}
        self._next: dict[str, Buffer] = {}
        self._spare: dict[str, tuple[int, Buffer]] = {}
        self._blocks: dict[str, tuple[int, Buffer]] = {}
        self.reserved = 0
        """Positions for which all buffers that operators fill in place are known to have room."""
        self.expected = 0
        """Positions for which such buffers have room when they are made."""
        self.place = object()
        """Another one as soon as a buffer that operators fill lies elsewhere."""
        for name, slot in self.slots.items():
            value = (initial or {}).get(name)
            self._values[name] = value if value is not None else self._empty(slot)

    @property
    def nbytes(self) -> int:
        """Bytes of the values, their room to grow included."""
        memory = self._memory
        return sum(
            nbytes(memory.shape(self._values[name]), slot.element) for name, slot in self.slots.items()
        )

    def _empty(self, slot: Slot) -> Buffer:
        """Zeros, or nothing where the state grows."""
        value = self._memory.allocate(
            slot.with_length(0) if slot.pair.axis is not None else slot.shape, slot.element
        )
        if nbytes(self._memory.shape(value), slot.element):
            value[...] = 0
        return value

    def value(self, name: str) -> Buffer:
        """What the model reads in this step. A buffer that the operator fills may have more positions."""
        return self._values[name]

    @property
    def values(self) -> Mapping[str, Buffer]:
        """All of `value`, by name."""
        return self._values

    def reserve(self, count: int) -> None:
        """Makes room for ``count`` more positions in the buffers that operators fill in place."""
        wanted = self.length + count
        if wanted <= self.reserved:
            return
        rooms = []
        for name, slot in self.slots.items():
            axis = slot.pair.axis
            if not slot.pair.buffer or axis is None:
                continue
            old = self._values[name]
            room = self._memory.shape(old)[axis]
            if room < max(wanted, slot.least):
                room = max(self.expected, slot.least)
                if room < wanted:
                    room = _capacity(wanted)
                new = self._memory.allocate(slot.with_length(room), slot.element)
                self._copy(new, old, axis, self.length)
                self._values[name], self.place = new, object()
            rooms.append(room)
        self.reserved = min(rooms, default=0)

    def room(self, name: str, shape: Shape) -> Buffer:
        """A buffer of this shape for the next value of a state input: not the one that holds the present
        value."""
        slot = self.slots[name]
        size = nbytes(shape, slot.element)
        block = self._spare.get(name)
        if block is None or block[0] < size:
            grown = size if slot.pair.axis is None else nbytes(_doubled(shape, slot.pair.axis), slot.element)
            block = self._spare[name] = grown, self._memory.block(grown, exchanged=False)
        view = self._memory.view(block[1], shape, slot.element)
        self._next[name] = view
        return view

    def put(self, name: str, value: Buffer) -> None:
        """The next value of a state input, in a buffer that is the state's own from now on."""
        self._next[name] = value
        self._spare.pop(name, None)

    def has_next(self, name: str, value: Buffer) -> bool:
        """Whether ``value`` is what the state will be after this step already."""
        return self._next.get(name) is value

    def commit(self, count: int) -> None:
        """The step is done: what it computed is the state. ``count``: the positions that it added."""
        for name, value in self._next.items():
            if self.slots[name].pair.kind == "once" and self.steps:
                continue
            before = self._blocks.pop(name, None)
            if name in self._spare:
                self._blocks[name] = self._spare.pop(name)
            if before is not None:
                self._spare[name] = before
            self._values[name] = value
            self.reserved = 0
            if self.slots[name].pair.buffer:
                self.place = object()
        self._next.clear()
        self.length += count
        self.steps += 1

    def abandon(self) -> None:
        """The step has failed: the state is what it was before."""
        self._next.clear()

    def rewind(self, length: int) -> None:
        """Forgets all positions from ``length`` on.

        Raises `ShardrunError` where the state has none to forget, as that of a recurrent model."""
        if not 0 <= length <= self.length:
            raise ShardrunError(f"A sequence of {self.length} positions cannot be rewound to {length}.")
        for name, slot in self.slots.items():
            axis = slot.pair.axis
            if length == self.length or slot.pair.kind == "once":
                continue
            if axis is None or not (
                slot.pair.buffer or self._memory.shape(self._values[name])[axis] == self.length
            ):
                if length == 0:
                    continue
                raise ShardrunError(
                    f"The state {name!r} cannot be rewound to {length} of {self.length} positions: each step "
                    "replaces it. Fork the session before what may have to be undone, or rewind to 0."
                )
        for name, slot in self.slots.items():
            axis = slot.pair.axis
            if length == 0 and slot.pair.kind != "once" and not slot.pair.buffer:
                self._values[name] = self._empty(slot)
                self._blocks.pop(name, None)
            elif (
                axis is not None
                and not slot.pair.buffer
                and length < self.length
                and slot.pair.kind != "once"
            ):
                self._values[name] = self._cut(name, slot, axis, length)
        self.length = length
        if length == 0:
            self.steps = 0

    def _cut(self, name: str, slot: Slot, axis: int, length: int) -> Buffer:
        shape = slot.with_length(length)
        self._blocks.pop(name, None)
        new = self._memory.allocate(shape, slot.element)
        self._copy(new, self._values[name], axis, length)
        return new

    def fork(self) -> SequenceState:
        """A copy of the state, which goes its own way from here on."""
        other = SequenceState((), self._memory)
        other.slots, other.length, other.steps = self.slots, self.length, self.steps
        other.expected = self.expected
        for name, slot in self.slots.items():
            old, axis = self._values[name], slot.pair.axis
            shape = self._memory.shape(old)
            if slot.pair.buffer and axis is not None:
                # A copy may be kept and never read on: it has no room for what is expected.
                room = min(shape[axis], max(_capacity(self.length), slot.least))
                new = self._memory.allocate(slot.with_length(room), slot.element)
                self._copy(new, old, axis, self.length)
            else:
                new = self._memory.allocate(shape, slot.element)
                if nbytes(shape, slot.element):
                    self._memory.copy(new, old)
            other._values[name] = new
        return other

    def _copy(self, target: Buffer, source: Buffer, axis: int, length: int) -> None:
        if length:
            part = (slice(None),) * axis + (slice(0, length),)
            self._memory.copy(target[part], source[part])


def _capacity(length: int) -> int:
    """The next power of two, so that growing costs a copy now and then only."""
    return max(FIRST_CAPACITY, 1 << (length - 1).bit_length())


def _doubled(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], _capacity(shape[axis]), *shape[axis + 1 :])
