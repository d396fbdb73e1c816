"""One sequence's buffers by themselves: what a fork keeps, and how a whole value is cut."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ranks.collectives.buffers import HostMemory
from ranks.errors import ModelError, ShardrunError
from ranks.state.parts import Gatherer, part
from ranks.state.sequence import SequenceState, Slot
from sharding.slices.state import StatePair
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

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


def test_a_step_that_fails_or_is_undone_leaves_nothing() -> None:
    pairs = [
        StatePair("past", "present", axis=0, kind="append"),
        StatePair("cross", "cross_out", kind="once"),
    ]
    state = SequenceState([Slot(pairs[0], FLOAT, (0,)), Slot(pairs[1], FLOAT, (2,))], HostMemory(None))

    def grow(number: float) -> None:
        length = state.length
        state.room("past", (length + 1,))[...] = [*np.asarray(state.value("past")).tolist(), number]

    for number in (1, 2, 3):
        grow(number)
        step(state, number)
    grow(4)
    state.abandon()
    state.commit(0)  # of a step that gives nothing new
    assert np.asarray(state.value("past")).tolist() == [1, 2, 3] and state.length == 3
    state.rewind(2)
    assert np.asarray(state.value("past")).tolist() == [1, 2]
    assert np.asarray(state.value("cross")).tolist() == [1, 1]
    state.rewind(0)
    assert state.value("past").shape == (0,) and (state.length, state.steps) == (0, 0)
    step(state, 5)  # another sequence, with an encoder's output of its own
    assert np.asarray(state.value("cross")).tolist() == [5, 5]
    with pytest.raises(ShardrunError, match="A sequence of 1 positions cannot be rewound to 2"):
        state.rewind(2)


@pytest.mark.parametrize(
    "placement", ["replicated", "split:0", "split:1", "split:1/3", "split:1*2", "split:1/3*2"]
)
def test_parts_of_a_state_make_the_whole(placement: str) -> None:
    whole = np.arange(48, dtype=np.float32).reshape(4, 12)
    pair = StatePair("in", "out", placement=placement)

    def work(world: FakeCommunicator) -> tuple[int, list[float]]:
        mine = part(whole, pair, world.rank, world.size)
        return mine.size, Gatherer([pair], world, HostMemory(world)).whole("out", mine).tolist()

    copies = 2 if "*2" in placement else 1
    size = whole.size if placement == "replicated" else whole.size * copies // 4
    assert on_ranks(4, work) == [(size, whole.tolist())] * 4


def test_what_takes_the_place_of_a_buffer_may_have_less_room() -> None:
    """Room is made for each step's positions, whatever was there before."""
    slot = Slot(StatePair("past", "present", axis=0, kind="append", buffer=True), FLOAT, (0,))
    state = SequenceState([slot], HostMemory(None))
    state.reserve(2)
    assert state.value("past").shape[0] >= 2
    state.put("past", np.array([1, 2], np.float32))
    state.commit(2)
    state.reserve(3)
    assert state.value("past").shape[0] >= 5 and np.asarray(state.value("past"))[:2].tolist() == [1, 2]
