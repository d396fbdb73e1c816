"""What open lengths count as in estimates, and the bytes of values."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.graph.sizes import SYMBOL_LENGTH, Sizes, tensor_bytes

FULL = SYMBOL_LENGTH
SIZES = Sizes({"s": 10, "total": 3, "batch-size": 7}, frozenset({"rows"}))


@pytest.mark.parametrize(
    ("axis", "first", "other"),
    [
        (5, 5, 5),
        (0, 0, 0),
        (None, 1, FULL),
        ("b", 1, FULL),
        ("rows", 1, 1),
        ("s", 10, 10),
        ("batch-size", 7, 7),
        ("s + 1", 11, 11),
        ("s + total", 13, 13),
        ("rows*s", 10, 10),
        ("s - 20", 1, 1),
        ("b + s", 1, FULL + 10),
        ("b*b*b", 1, FULL**2),
        ("-s + 12", 2, 2),
        ("s // 3", 3, 3),
        ("s / 4", 2, 2),
        ("(s + total) * 2", 26, 26),
        ("s·total", 30, 30),
        ("s ** total", FULL, FULL),
        ("s // 0", FULL, FULL),
        ("s % total", FULL, FULL),
        ("s" + " + s" * 60, FULL, FULL),
    ],
)
def test_a_length_on_the_first_axis_and_on_another(axis: Any, first: int, other: int) -> None:
    assert (SIZES.length(axis, first=True), SIZES.length(axis)) == (first, other)
    assert SIZES.count([axis, axis, 2]) == first * other * 2


def test_a_known_length_may_make_a_product_larger() -> None:
    """But not as large as a file likes."""
    assert Sizes({"s": 1000}).length("s*s*s") == 1000**2
    assert Sizes({"s": 2}).length("s*s") == 4
    assert SIZES.count([]) == 1


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 40), ("int32", 40), ("float64", 80), ("int64", 80), ("uint64", 80), ("float16", 20),
        ("bfloat16", 20), ("int16", 20), ("int8", 10), ("uint8", 10), ("bool", 10), ("complex64", 80),
        ("complex128", 160), ("string", 0), ("int4", 5), ("uint4", 5), ("int2", 3), ("uint2", 3),
        ("float8_e4m3fn", 10), ("odd", 40),
    ],
)  # fmt: skip
def test_bytes_of_ten_elements(dtype: str, size: int) -> None:
    assert tensor_bytes(dtype, ["b", 2, "s"], {"s": 5}) == size
    assert tensor_bytes("uint4", [3, 3], {}) == 5
