"""Numbers that stand for open lengths: none is mistaken for another length of the model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sharding.reading.lengths import PRIMES, _elsewhere, _free_primes
from tests.sharding import graphs


def primes(taken: Any = (), **weights: Any) -> list[int]:
    text = "g (float[n, 17] x) => (float[n, 17] y) <float[n, 95] h> { h = MatMul(x, w) y = MatMul(h, v) }"
    known = {"w": graphs.array(17, 95), "v": graphs.array(95, 17), **weights}
    model = ir.serde.deserialize_model(graphs.model(text, known))
    return list(itertools.islice(_free_primes(model, taken), 60))


def test_they_are_primes_and_divide_no_other_length() -> None:
    found = primes([23 * 29, 0])
    below = range(PRIMES[0], found[-1] + 1)
    expected = [number for number in below if all(number % factor for factor in range(2, number))]
    assert found == [number for number in expected if number not in (17, 19, 23, 29)]


@pytest.mark.parametrize(
    ("numbers", "seen"),
    [
        (np.asarray([31, 0, -1]), True),
        (np.asarray(31), True),
        (np.full(16, 31), True),
        (np.full(17, 31), False),
        (np.float32([31]), False),
    ],
)
def test_numbers_of_small_constants_are_not_taken(numbers: graphs.Array, seen: bool) -> None:
    assert (31 not in primes(numbers=numbers)) is seen


@pytest.mark.parametrize("first", [[13], [13, 17], [13, 17, 19], [29, 19, 13], [13, 19, 29, 31]])
def test_others_are_at_other_distances(first: list[int]) -> None:
    """What holds of two runs by chance, that one length is another and so many, does not hold of both."""
    found = _elsewhere(first, iter([37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97]))
    assert found == sorted(found, reverse=True) and len(found) == len(first)
    for i, j in itertools.combinations(range(len(first)), 2):
        assert abs(found[i] - found[j]) != abs(first[i] - first[j])
    assert _elsewhere(first, iter([37])) == [37]
