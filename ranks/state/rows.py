"""Sequences of different lengths as rows of one batch, which steps read together.

Each row keeps its own positions. Buffers that operators fill hold each row from the front, and the mask says
how far. Caches that grow by joining hold each row at the end, behind padding that the mask hides; so every
row grows by one with each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ranks.collectives.buffers import Memory, nbytes
from ranks.errors import ShardrunError
from ranks.state.feeds import MASKS, POSITIONS, spread
from ranks.state.sequence import SequenceState
from ranks.state.session import INTERRUPTED, Host, Known, Session, Wish

if TYPE_CHECKING:
    from sharding.common.arrays import Array


@dataclass(frozen=True)
class Row:
    """One row of a state, and the positions that it has."""

    state: SequenceState
    row: int
    length: int


def merged(rows: Sequence[Row], axes: Mapping[str, int], memory: Memory, length: int) -> SequenceState:
    """A state with copies of these rows. ``axes``: the batch axis of each state input; ``length``: the
    positions of the longest row of the batch, of which these may be a part."""
    slots, values = [], {}
    for name, slot in rows[0].state.slots.items():
        batch, axis = axes[name], slot.pair.axis
        shape = list(slot.shape)
        shape[batch] = len(rows)
        together = replace(slot, shape=tuple(shape))
        whole = together.with_length(length) if axis is not None else together.shape
        value = memory.allocate(whole, slot.element)
        if axis is not None and nbytes(whole, slot.element):
            value[...] = 0  # padding, which no mask lets through; but not a number would spread
        for place, row in enumerate(rows):
            source = row.state.value(name)
            here = _at(batch, slice(place, place + 1), len(shape))
            there = _at(batch, slice(row.row, row.row + 1), len(shape))
            if axis is not None and slot.pair.kind != "once":
                first = 0 if slot.pair.buffer else memory.shape(source)[axis] - row.length
                start = 0 if slot.pair.buffer else length - row.length
                there[axis] = slice(first, first + row.length)
                here[axis] = slice(start, start + row.length)
            if row.length or axis is None:
                memory.copy(value[tuple(here)], source[tuple(there)])
        slots.append(together)
        values[name] = value
    state = SequenceState(slots, memory, values)
    state.length, state.steps = length, max(row.state.steps for row in rows)
    return state


def _at(axis: int, part: slice, axes: int) -> list[slice]:
    found = [slice(None)] * axes
    found[axis] = part
    return found


class Batch:
    """Sessions read on together, one token each in a step: rows that join, leave and go on alone."""

    def __init__(self, host: Host, sessions: Sequence[Session] = ()) -> None:
        """Raises `ShardrunError` for a model whose sequences cannot be told apart in a batch."""
        self._host, self._known = host, host.known
        if not self._known.batches:
            raise ShardrunError(
                "The sequences of this model cannot be read on in one batch: it takes no mask and positions "
                "that would keep their lengths apart."
            )
        self.lengths: list[int] = []
        self._number: int | None = None
        if sessions:
            self.join(sessions)

    @staticmethod
    def possible(known: Known) -> bool:
        """Whether `Batch` takes sessions of such a model."""
        return known.batches != ""

    def join(self, sessions: Sequence[Session]) -> None:
        """Adds copies of sessions as the last rows; the sessions stay as they are."""
        members = [self.member(row) for row in range(len(self.lengths))]
        members += [(session.number, 0, session.length) for session in sessions]
        self.regroup(members)

    def keep(self, rows: Sequence[int]) -> None:
        """Lets all other rows go; these are rows 0, 1, ... from here on."""
        if list(rows) == list(range(len(self.lengths))):
            return
        if not rows:
            self.close()
            return
        self.regroup([self.member(row) for row in rows])

    def member(self, row: int) -> tuple[int, int, int]:
        """Where a row lies: the batch's number, the row, its length."""
        if self._number is None:
            raise ShardrunError(INTERRUPTED)
        return self._number, row, self.lengths[row]

    def session(self, row: int) -> Session:
        """A session with a copy of a row."""
        return Session(self._host, member=self.member(row))

    def step(self, ids: Array, ask: Wish | None = None) -> dict[str, Array]:
        """Each row reads one token; the outputs that are no state, by name, with a row each.

        ``ids``: int64 (rows,); ``ask``: as `ranks.state.session.Session.step`.
        """
        assert self._number is not None
        known, rows = self._known, len(self.lengths)
        lengths = np.array(self.lengths)
        longest = int(lengths.max()) + 1
        line = np.arange(longest)
        if known.batches == "buffer":
            mask = line <= lengths[:, None]
        else:
            mask = line >= longest - 1 - lengths[:, None]
        feeds: dict[str, Array] = {known.tokens.name: ids.reshape(rows, 1).astype(known.tokens.dtype)}
        for spec in known.others:
            if spec.name in MASKS and spec.name in known.filled:
                feeds[spec.name] = mask.astype(spec.dtype)
            elif spec.name in POSITIONS and spec.name in known.filled:
                feeds[spec.name] = spread(spec, lengths.reshape(rows, 1).astype(spec.dtype))
        try:
            results = self._host.step(self._number, feeds, ask)
        except ShardrunError:
            raise
        except BaseException:
            self.close()
            raise
        self.lengths = [length + 1 for length in self.lengths]
        return results

    def close(self) -> None:
        """Frees the state. Safe to call twice."""
        if self._number is not None:
            self._host.change("close", self._number)
        self._number, self.lengths = None, []

    def regroup(self, members: Sequence[tuple[int, int, int]]) -> None:
        """Makes these the rows, in order: of sessions (number, 0, length) or of this batch (`member`)."""
        new, old = next(self._known.numbers), self._number
        self._host.change("merge", new, members=[list(member) for member in members])
        if old is not None:
            self._host.change("close", old)
        self._number, self.lengths = new, [length for _, _, length in members]
