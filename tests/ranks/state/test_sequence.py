"""One sequence's buffers by themselves: what a fork keeps, and how a whole value is cut."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ranks.collectives.buffers import HostMemory
from ranks.errors import ModelError
from ranks.state.parts import part
from ranks.state.sequence import SequenceState, Slot
from sharding.slices.state import StatePair

FLOAT = onnx.TensorProto.FLOAT


def step(state: SequenceState, number: float) -> None:
    state.room("cross", (2,))[...] = number
    state.commit(1)


def test_a_fork_keeps_what_the_first_step_has_computed() -> None:
    state = SequenceState([Slot(StatePair("cross", "cross_out", kind="once"), FLOAT, (2,))], HostMemory(None))
    step(state, 1)
    fork = state.fork()
    assert (fork.length, fork.steps) == (1, 1)
    for one in (state, fork):
        step(one, 2)
        assert np.asarray(one.value("cross")).tolist() == [1, 1]


def test_a_state_that_does_not_come_out_even_is_named() -> None:
    whole = np.arange(8, dtype=np.float32).reshape(1, 8)
    pair = StatePair("conv", "conv_out", placement="split:1/2")
    assert [part(whole, pair, rank, 2).tolist() for rank in (0, 1)] == [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]
    for length, placement in ((8, "split:1/3"), (7, "split:1"), (6, "split:1/2")):
        with pytest.raises(
            ModelError, match=f"'conv' has the length {length} along axis 1, which 2 ranks can"
        ):
            part(whole[:, :length], StatePair("conv", "conv_out", placement=placement), 0, 2)
