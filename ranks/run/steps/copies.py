"""Sessions on several copies of a model: each row of a sequence lies on one copy, and all run at once.

A session of one row lies on one copy, the next one on the next; rows of a longer batch are shared out. A row
stays where it is, also in a batch of rows of other sessions: so a batch keeps all copies busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ranks.common.tensors import unlike
from ranks.errors import ShardrunError
from ranks.run.schedule import Schedule, joined
from ranks.run.steps.likeliest import Shared
from ranks.state import feeds as known_feeds
from ranks.tokens.wanted import SHOWN
from sharding.common.arrays import Array
from sharding.slices.state import StatePair

Owners = tuple[int, ...]
"""The copy that has each row, in the rows' order."""


class Copies:
    """The copies of a model along its mesh's ``data`` axis, as the ranks of one copy see them."""

    def __init__(self, schedule: Schedule, pairs: Sequence[StatePair]) -> None:
        part = schedule.part
        self.count, self.here = part.mesh.length("data"), part.place["data"]
        self._schedule = schedule
        self._inputs, self._outputs = part.batch_inputs, part.batch_outputs
        self._sums, self._specs = part.batch_lengths, schedule.inputs
        self._growing = {
            pair.input: pair.axis for pair in pairs if pair.kind == "append" and pair.axis is not None
        }
        states = {pair.input for pair in pairs}
        self._filled = known_feeds.filled([spec for spec in self._specs if spec.name not in states])
        self._next = 0

    def owners(self, feeds: Mapping[str, Array]) -> Owners:
        """Which copies take the rows of a new sequence; those of a batch that cannot be cut all go to one,
        and those whose inputs are not as long as their symbols say."""
        rows = None if self._odd_at_first(feeds) else self._rows(feeds)
        first = self._next % self.count
        if rows is None or rows < self.count:
            self._next += 1
        if rows is None:
            return (first,)
        share = [row * self.count // rows if rows >= self.count else row for row in range(rows)]
        start = 0 if rows >= self.count else first
        return tuple((start + copy) % self.count for copy in share)

    def check(self, owners: Owners, feeds: Mapping[str, Array]) -> None:
        """Raises `ShardrunError` for a step of another number of rows than the sequence has."""
        rows = self._rows(feeds)
        if rows is not None and rows != len(owners):
            raise ShardrunError(
                f"This sequence has {len(owners)} rows, but the step gives {rows}: give as many in each step."
            )

    def check_lengths(self, owners: Owners, feeds: Mapping[str, Array], length: int) -> None:
        """Raises `ShardrunError` for a step after ``length`` positions whose inputs are not as long as their
        symbols say: rows that are on several copies are computed apart for such lengths only."""
        odd = self._unlike(feeds, length) if len(set(owners)) > 1 else ""
        if odd:
            raise ShardrunError(
                f"The dimension {odd}: the rows of this sequence lie on several copies of the model, which "
                "compute them apart for such lengths only. Give such inputs, or a sequence for each row."
            )

    def _odd_at_first(self, feeds: Mapping[str, Array]) -> str:
        """What `_unlike` says of a first step: its feeds may hold what was read before, and lack masks."""
        given = [feeds[name].shape[axis : axis + 1] for name, axis in self._growing.items() if name in feeds]
        length = max((size for sizes in given for size in sizes), default=0)
        return self._unlike(known_feeds.fill(self._filled, feeds, length) if self._sums else feeds, length)

    def _unlike(self, feeds: Mapping[str, Array], length: int) -> str:
        shapes: list[list[int | None]] = []
        for spec in self._specs:
            if spec.name in feeds:
                shapes.append(list(feeds[spec.name].shape))
            else:  # what a sequence holds, or what is filled in
                axis = self._growing.get(spec.name)
                shapes.append([length if at == axis else None for at in range(len(spec.shape))])
        return unlike(self._specs, shapes, self._sums)

    def _rows(self, feeds: Mapping[str, Array]) -> int | None:
        """The length of the batch; None where no input has one."""
        lengths = {
            feeds[name].shape[axis]
            for name, axis in self._inputs.items()
            if name in feeds and axis < feeds[name].ndim
        }
        if len(lengths) > 1:
            raise ShardrunError(
                f"The inputs have batches of {' and '.join(map(str, sorted(lengths)))} rows: the rows of a "
                "session are shared out among copies of the model, so give all inputs equally many."
            )
        return lengths.pop() if lengths else None

    def mine(self, owners: Owners) -> list[int]:
        """The rows of this copy."""
        return [row for row, copy in enumerate(owners) if copy == self.here]

    def cut(self, feeds: Mapping[str, Array], owners: Owners) -> dict[str, Array]:
        """What this copy is fed."""
        rows = self.mine(owners)
        if len(rows) == len(owners):
            return dict(feeds)
        return {
            name: np.take(array, rows, self._inputs[name]) if name in self._inputs else array
            for name, array in feeds.items()
        }

    def together(
        self,
        results: dict[str, Array],
        failure: ShardrunError | None,
        owners: Owners,
        asked: Shared | None = None,
    ) -> dict[str, Array]:
        """Everyone's outputs by name, with the rows in order. A collective of all copies; raises what
        one of them raised.

        Where a copy tells of its rows what is ``asked``, their output is left out: it has the other rows
        alone, if there are any."""
        busy = sorted(set(owners))
        found = self._schedule.gathered(results, failure, busy)
        rows = [[row for row, owner in enumerate(owners) if owner == copy] for copy in busy]
        told = found.pop(SHOWN, [])
        if asked is not None and told:
            asked.hear(told, rows)
        whole = {}
        for name, arrays in found.items():
            if not arrays:
                continue
            given = rows
            if asked is not None and told and name == asked.output:
                given = [own for own, one in zip(rows, told, strict=True) if one[0, 0] < 0]
            axis = self._outputs.get(name)
            if axis is None or len(arrays) == 1:
                whole[name] = arrays[0]
            else:
                back = np.argsort([row for own in given for row in own], kind="stable")
                whole[name] = np.take(joined(arrays, name, axis), back, axis)
        return whole
