"""A message that goes to all ranks by broadcasts: both sides make the same ones, whatever its length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.collectives.broadcast import BLOCK, Spreader
from ranks.collectives.buffers import HostMemory, Pool
from ranks.talk import wire
from ranks.talk.wire import Kind, Message


class Recorded:
    """A communicator of two ranks in one thread: rank 0's broadcasts first, then rank 1's."""

    name, size, on_device, timeout = "recorded", 2, False, 60.0

    def __init__(self) -> None:
        self.rank = 0
        self.sent: list[np.ndarray[Any, Any]] = []

    def broadcast(self, buffer: np.ndarray[Any, Any], root: int) -> None:
        assert root == 0
        if self.rank == 0:
            self.sent.append(buffer.copy())
        else:
            given = self.sent.pop(0)
            assert given.size == buffer.size  # or the ranks would wait for each other, or be cut off
            buffer[...] = given


def spread(message: Message) -> tuple[Message, list[int]]:
    """What the other rank gets, and the lengths of the broadcasts."""
    communicator: Any = Recorded()
    giver, taker = Spreader(communicator), Spreader(communicator)
    assert giver.spread(message) is message
    lengths = [piece.size for piece in communicator.sent]
    communicator.rank = 1
    got = taker.spread(None)
    assert communicator.sent == []
    return got, lengths


def of(*sizes: int) -> Message:
    rng = np.random.default_rng(0)
    tensors = {f"t{n}": rng.integers(0, 255, size, np.uint8) for n, size in enumerate(sizes)}
    return Message(Kind.RESULT, {"request": 7}, tensors)


def total(message: Message) -> int:
    return sum(map(len, wire.encode(message)[0]))


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("rest", [(), (0,), (5,), (5, 3 * BLOCK)])
def test_around_the_end_of_the_first_block(beyond: int, rest: tuple[int, ...]) -> None:
    """A tensor ends one byte before the first broadcast's end, with it, or one after it."""
    size = BLOCK // 2
    for _ in range(3):  # until the lengths' own digits stay the same
        size += BLOCK + beyond - total(of(size, *rest)) + sum(rest)
    message = of(size, *rest)
    assert total(message) == BLOCK + beyond + sum(rest)
    got, lengths = spread(message)
    assert got.fields == message.fields and list(got.tensors) == list(message.tensors)
    for name, array in message.tensors.items():
        np.testing.assert_array_equal(got.tensors[name], array)
    assert lengths[0] == BLOCK and sum(lengths) == max(BLOCK, total(message))
    assert 0 not in lengths[1:]


def test_a_header_that_is_longer_than_the_first_block() -> None:
    message = Message(Kind.RESULT, {"text": "x" * (2 * BLOCK)}, {"t": np.arange(9)})
    got, _ = spread(message)
    assert got.fields == message.fields
    np.testing.assert_array_equal(got.tensors["t"], np.arange(9))


def test_a_block_that_is_used_again_is_large_enough_and_not_much_larger() -> None:
    pool = Pool(HostMemory(None), exchanged=False)
    first, second, third = (pool.take(size) for size in (10_000, 20_000, 50_000))
    for item in (third, first, second):
        pool.give(item)
    assert pool.take(10_001) is second  # not one byte too small, and the smallest that fits
    assert pool.take(10_000) is first
    size, block = pool.take(24_999)  # the only one left has more than twice that
    assert (size, block.nbytes) == (24_999, 24_999)
    assert pool.take(25_000) is third
