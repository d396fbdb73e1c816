"""Whether the lengths of given inputs are what their symbols say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec, as_text, checked_feeds, unlike
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


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy before 2.0 has no such type")
@pytest.mark.parametrize("step", [1, 2])
def test_numpys_own_strings_are_text(step: int) -> None:
    array = np.array(["a", "b\u00e9", "", "d"], np.dtypes.StringDType())[::step]
    text, number = TensorSpec("x", np.dtype(object), ("n",)), TensorSpec("x", np.dtype(np.float32), ("n",))
    assert checked_feeds([text], {"x": array})["x"].tolist() == array.tolist()
    with pytest.raises(ShardrunError, match="'x' must have dtype float32, but has StringDType"):
        checked_feeds([number], {"x": array})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(7, "is int: 7"), (b"\xff", r"is bytes that are no UTF-8: b'\\xff'\. Decode it first")],
)
def test_what_is_no_text_is_named(wrong: object, said: str) -> None:
    with pytest.raises(ShardrunError, match=rf"^Input 'x' takes text, but element 1 of the array {said}\.$"):
        as_text(np.array(["a", wrong], object), "Input 'x'")


def test_what_is_fed_by_another_name() -> None:
    """The sentence says what the model takes."""
    specs = [TensorSpec("x", FLOAT32, ("n", 3)), TensorSpec("y", FLOAT32, ())]
    x, y = np.zeros((2, 3), np.float32), np.zeros((), np.float32)
    assert list(checked_feeds(specs, {"y": y, "x": x})) == ["x", "y"]
    listed = f"'x' {specs[0]}, 'y' {specs[1]}"
    with pytest.raises(
        ShardrunError,
        match=re.escape(f"Input 'y' is missing: the model expects {listed}, but was given 'x'."),
    ):
        checked_feeds(specs, {"x": x})
    with pytest.raises(ShardrunError, match=re.escape(f"The model has no input 'z'; it expects {listed}")):
        checked_feeds(specs, {"x": x, "y": y, "z": y})
    with pytest.raises(ShardrunError, match="it expects no inputs"):
        checked_feeds([], {"z": y})
    for wrong, said in ((x[0], "must have 2 axes"), (x[:, :2], "Axis 1 of input 'x' must have length 3")):
        with pytest.raises(ShardrunError, match=said):
            checked_feeds(specs, {"x": wrong, "y": y})
