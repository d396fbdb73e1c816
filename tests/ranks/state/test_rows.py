"""Rows of several states copied into one."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.collectives.buffers import HostMemory
from ranks.state.rows import Row, merged
from ranks.state.sequence import SequenceState, Slot
from sharding.slices.state import StatePair

FLOAT = 1


def state(pairs: list[StatePair], values: dict[str, np.ndarray], steps: int) -> SequenceState:
    slots = []
    for pair in pairs:
        shape = list(values[pair.input].shape)
        if pair.axis is not None:
            shape[pair.axis] = 0
        slots.append(Slot(pair, FLOAT, tuple(shape)))
    made = SequenceState(slots, HostMemory(None), values)
    made.steps = steps
    return made


def filled(*shape: int, start: int) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("batch", [0, 1])
def test_rows_of_different_lengths(buffer: bool, batch: int) -> None:
    """Caches that grow by joining end together; buffers begin together. The rest is zeros."""
    pairs = [
        StatePair("k", "k+", 2, "append", buffer=buffer),
        StatePair("s", "s+"),
        StatePair("e", "e+", None, "once"),
    ]

    def values(rows: int, length: int, start: int) -> dict[str, np.ndarray]:
        shape = (rows, 2) if batch == 0 else (2, rows)
        return {
            "k": filled(*shape, length, 3, start=start),
            "s": filled(*shape, start=start + 1000),
            "e": filled(*shape, 4, start=start + 2000),
        }

    first, second = state(pairs, values(2, 5, 1), 5), state(pairs, values(1, 7, 500), 7)
    rows = [Row(second, 0, 2), Row(first, 1, 5), Row(first, 0, 0)]
    axes = dict.fromkeys(("k", "s", "e"), batch)
    found = merged(rows, axes, HostMemory(None), 6)
    assert (found.length, found.steps) == (6, 7)
    for place, row in enumerate(rows):
        for name in ("s", "e"):
            theirs = np.take(row.state.value(name), row.row, batch)
            if row.length or name == "s":
                assert np.take(found.value(name), place, batch).tolist() == theirs.tolist()
        mine = np.take(found.value("k"), place, batch)
        theirs = np.take(row.state.value("k"), row.row, batch)
        there = theirs[:, : row.length] if buffer else theirs[:, theirs.shape[1] - row.length :]
        wanted = np.zeros((2, 6, 3), np.float32)
        if buffer:
            wanted[:, : row.length] = there
        else:
            wanted[:, 6 - row.length :] = there
        assert mine.tolist() == wanted.tolist()
    assert {name: slot.shape[batch] for name, slot in found.slots.items()} == {"k": 3, "s": 3, "e": 3}
