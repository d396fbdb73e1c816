"""Whether the lengths of given inputs are what their symbols say."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec, as_text, unlike
from ranks.errors import ShardrunError

FLOAT32 = np.dtype(np.float32)


def said(symbols: dict[str, int | None], sums: dict[str, str]) -> str:
    specs = [TensorSpec(f"of {symbol}", FLOAT32, (symbol,)) for symbol in symbols]
    return unlike(specs, [[length] for length in symbols.values()], sums)


@pytest.mark.parametrize(("p", "s"), [("p", "s"), ("in", "s"), ("None", "lambda")])
def test_a_sum_is_held_to(p: str, s: str) -> None:
    sums = {"total": f"{p} + {s}"}
    assert said({p: 2, s: 3, "total": 5}, sums) == ""
    assert said({p: 2, s: 3, "total": 4}, sums) == (
        f"'total = {p} + {s}' has length 4 in input 'of total', but would be 5"
    )


@pytest.mark.parametrize(
    "symbols",
    [
        {"p": None, "s": 3, "total": 5},
        {"s": 3, "total": 5},
        {"p": 2, "s": 3, "total": None},
        {"p": 2, "s": 3},
    ],
    ids=str,
)
def test_a_sum_that_cannot_be_told_is_none(symbols: dict[str, int | None]) -> None:
    assert said(symbols, {"total": "p + s"}) == (
        "'total' must be p + s, but not all of these lengths are known"
    )
    assert said(symbols, {}) == ""


def test_a_sum_of_long_names_is_none() -> None:
    p, s = "p" * 120, "s" * 120
    assert said({p: 2, s: 3, "total": 5}, {"total": f"{p} + {s}"}).startswith("'total' must be ppp")


def test_what_a_file_calls_a_sum_is_one_where_a_proof_is_of_it() -> None:
    lengths: dict[str, int | None] = {"p": 2, "p + 1": 4, "batch size": 2}
    assert said(lengths, {}) == ""
    assert said(lengths, {"p + 1": "p + 1"}) == "'p + 1' has length 4 in input 'of p + 1', but would be 3"


@pytest.mark.parametrize("dtype", ["S", "U", object])
def test_text_of_any_kind_becomes_str(dtype: type | str) -> None:
    given = [[b"a", "b\u00e9".encode()]] if dtype != "U" else [["a", "b\u00e9"]]
    found = as_text(np.array(given, dtype), "Input 'x'")
    assert found.tolist() == [["a", "b\u00e9"]] and {type(item) for item in found.flat} == {str}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(7, "is int: 7"), (b"\xff", r"is bytes that are no UTF-8: b'\\xff'\. Decode it first")],
)
def test_what_is_no_text_is_named(wrong: object, said: str) -> None:
    with pytest.raises(ShardrunError, match=rf"^Input 'x' takes text, but element 1 of the array {said}\.$"):
        as_text(np.array(["a", wrong], object), "Input 'x'")
