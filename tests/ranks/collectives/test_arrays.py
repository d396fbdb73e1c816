"""What collectives of numpy arrays take, and how they cut and add."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ranks.collectives import arrays
from ranks.errors import CollectiveError

X = np.zeros((2, 3, 4), np.float32)


def read_only() -> Any:
    made = np.zeros(3, np.float32)
    made.flags.writeable = False
    return made


@pytest.mark.parametrize(
    ("buffer", "written", "message"),
    [
        ([1.0], False, "x: the buffer must be a numpy array, but is list"),
        (np.zeros(3, object), False, "x: arrays of object cannot be sent"),
        (np.zeros(3, "U3"), False, "cannot be sent"),
        (np.zeros(3, ">f4"), False, "x: arrays of >f4 cannot be sent"),
        (X.transpose(), False, r"of shape \(4, 3, 2\) and strides \(4, 16, 48\) is not C-contiguous"),
        (X[:, ::2], False, "is not C-contiguous"),
        (read_only(), True, r"the buffer of shape \(3,\) is read-only"),
    ],
)
def test_buffers_that_cannot_be_sent(buffer: Any, written: bool, message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        arrays.check(buffer, "x", written=written)


def test_buffers_that_can_be_sent() -> None:
    for buffer in (X, X[1:], np.zeros((), bool), np.zeros((0, 3), np.complex128)):
        assert arrays.check(buffer, "x", written=True) is buffer
    buffer = read_only()
    assert arrays.check(buffer, "x", written=False) is buffer
    with pytest.raises(CollectiveError, match="arrays of bool cannot be summed"):
        arrays.check_sum(np.zeros(3, bool))
    assert arrays.check_sum(X) is X


@pytest.mark.parametrize(
    ("axis", "shape", "parts"),
    [(0, (6, 3, 4), (1, 24)), (1, (2, 9, 4), (2, 12)), (2, (2, 3, 12), (6, 4)), (-1, (2, 3, 12), (6, 4)),
     (-3, (6, 3, 4), (1, 24))],
)  # fmt: skip
def test_what_is_gathered_of_three_ranks(axis: int, shape: tuple[int, ...], parts: tuple[int, int]) -> None:
    assert arrays.check_gather(X, np.zeros(shape, np.float32), axis, 3) == parts
    for wrong in (
        np.zeros(shape, np.float64),
        np.zeros((*shape, 1), np.float32),
        np.zeros((2, 3, 4), np.float32),
    ):
        with pytest.raises(
            CollectiveError, match=rf"along axis {axis % 3} over 3 ranks of float32\[2, 3, 4\]"
        ):
            arrays.check_gather(X, wrong, axis, 3)


@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_to_gather_along_that_is_not_there(axis: int) -> None:
    with pytest.raises(CollectiveError, match=f"axis {axis} does not exist"):
        arrays.check_gather(X, X, axis, 3)


def test_nothing_is_gathered() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert arrays.check_gather(empty, np.zeros((0, 6), np.float32), 1, 2) == (0, 0)


def test_what_is_exchanged() -> None:
    arrays.check_exchange(X, X.copy(), 2)
    empty = X[:0]
    arrays.check_exchange(empty, empty, 3)
    for wrong in (X.astype(np.float64), X.reshape(2, 4, 3).copy()):
        with pytest.raises(CollectiveError, match="must have one type and shape"):
            arrays.check_exchange(X, wrong, 2)
    with pytest.raises(CollectiveError, match="does not divide into 3 equal parts"):
        arrays.check_exchange(X, X.copy(), 3)
    with pytest.raises(CollectiveError, match="does not divide into 1 equal parts"):
        arrays.check_exchange(np.zeros((), np.float32), np.zeros((), np.float32), 1)
    with pytest.raises(CollectiveError, match="must not share memory"):
        arrays.check_exchange(X, X, 2)
    with pytest.raises(CollectiveError, match="read-only"):
        arrays.check_exchange(np.zeros(3, np.float32), read_only(), 3)


PEERS: list[tuple[Any, bool]] = [
    (0, True), (2, True), (np.int64(2), True), (1, False), (3, False), (-1, False), ("0", False),
    (0.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("peer", "fits"), PEERS)
def test_whom_a_rank_may_send_to(peer: Any, fits: bool) -> None:
    if fits:
        arrays.check_peer("send", peer, 1, 3)
        return
    with pytest.raises(CollectiveError, match="send: rank 1 of 3 cannot exchange with rank"):
        arrays.check_peer("send", peer, 1, 3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_of_narrow_numbers_are_rounded_once(count: int) -> None:
    """Of more than two; with one rounding each they would lose what is small."""
    parts = [np.full(3, 2048, np.float16), *(np.full(3, 1, np.float16) for _ in range(count - 1))]
    for own in (False, True):
        out = parts[0].copy() if own else np.empty(3, np.float16)
        arrays.sum_into(out, [out, *parts[1:]] if own else parts)
        exact = np.float16(2048 + count - 1)
        assert out.tolist() == [float(exact)] * 3


def test_sums_of_wide_numbers() -> None:
    parts = [np.array([1, 2], np.int32) * 10**k for k in range(4)]
    out = np.empty(2, np.int32)
    arrays.sum_into(out, parts)
    assert out.tolist() == [1111, 2222]


@pytest.mark.parametrize("shape", [(3, 5), (1, 17), (17, 1), (4, 4), (0, 5), (5, 0)])
@pytest.mark.parametrize("most", [1, 3, 4, 5, 8, 100])
def test_blocks_cover_a_matrix_once(shape: tuple[int, int], most: int) -> None:
    seen = np.zeros(shape, int)
    found = list(arrays.blocks(shape, most))
    for block in found:
        assert seen[block].size <= most
        seen[block] += 1
    assert (seen == 1).all()
    assert len(found) == 1 or seen.size


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200, 1000, 6400])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_of_elements_follow_each_other(count: int, size: int) -> None:
    found = arrays.split(count, size)
    assert len(found) == size and found[0].start == 0 and found[-1].stop == count
    assert all(a.stop == b.start for a, b in pairwise(found))
    assert all(part.start % 64 == 0 or part.start == count for part in found)
    assert max(part.stop - part.start for part in found) <= -(-count // size) + 63
