"""Which copies of a model take the rows of a sequence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
from ranks.run.steps.copies import Copies
from ranks.run.steps.sequences import Sequences
from sharding.slices.state import StatePair

SHAPES: dict[str, tuple[str | int, ...]] = {
    "input_ids": ("batch", "new"),
    "attention_mask": ("batch", "total"),
    "past": ("batch", "before", 4),
}


def copies(kind: str) -> Copies:
    specs = [TensorSpec(name, np.dtype(np.int64), shape) for name, shape in SHAPES.items()]
    place: Any = SimpleNamespace(length=lambda axis: 2)
    part = SimpleNamespace(
        mesh=place,
        place={"data": 0},
        batch_inputs=dict.fromkeys(SHAPES, 0),
        batch_outputs={},
        batch_lengths={"total": "before + new"},
    )
    schedule: Any = SimpleNamespace(part=part, inputs=specs)
    return Copies(schedule, [StatePair("past", "present", 1, kind)])


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.int64)


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("mask", [0, 1])
def test_rows_are_shared_out_where_lengths_are_sums(past: int, mask: int) -> None:
    """Also where ranks fill in the mask, and where a sequence begins with what was read before."""
    feeds = {"input_ids": ones(4, 3)}
    feeds |= {"past": ones(4, past, 4)} if past else {}
    feeds |= {"attention_mask": ones(4, past + 3)} if mask else {}
    assert copies("append").owners(feeds) == (0, 0, 1, 1)


def test_rows_stay_together_where_a_sum_cannot_be_told() -> None:
    """How long a state is that does not grow is not known."""
    feeds = {"input_ids": ones(4, 3), "attention_mask": ones(4, 5)}
    made = copies("replace")
    assert made.owners(feeds) == (0,)
    made.check_lengths((0,), feeds, 2)
    with pytest.raises(ShardrunError, match="'total' must be before \\+ new, but not all"):
        made.check_lengths((0, 0, 1, 1), feeds, 2)


def test_a_sequence_without_positions_may_get_other_rows() -> None:
    made = copies("append")
    fake: Any = SimpleNamespace(
        owners=made.owners,
        check=made.check,
        mine=lambda owners: (),
        together=lambda *_, owners, asked: owners,
    )
    parts = SimpleNamespace(cut=SimpleNamespace(outputs=()))
    model: Any = SimpleNamespace(pairs=(), parts=parts, specs={}, defaults={}, copies=fake, shown=fake)
    sequences = Sequences(model)
    sequences.open(1)
    assert sequences.step(1, {"input_ids": ones(4, 3)}) == (0, 0, 1, 1)
    with pytest.raises(ShardrunError):
        sequences.step(1, {"input_ids": ones(2, 3)})
    sequences.rewind(1, 0)
    assert sequences.step(1, {"input_ids": ones(2, 3)}) == (0, 1)
