"""Detours of exporters become the plain operators that they stand for, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest

import sharding
from sharding.read import read_model
from tests.sharding import graphs, lockstep

DETOUR = """g (float[batch, 6, seq, 4] x) => (float[batch, 6, 4, seq] y{more}) {{
  s = Shape(x)
  length = Slice(s, minus_two, minus_one)
  first = Slice(s, start, minus_two)
  flat = Concat<axis = 0>(minus_one, length, four)
  a = Reshape(x, flat)
  b = Transpose<perm = [{perm}]>(a)
  last = Concat<axis = 0>(first, {last})
  c = Reshape(b, last)
  y = Relu(c)
}}"""
WEIGHTS = {
    "minus_one": np.asarray([-1]),
    "minus_two": np.asarray([-2]),
    "start": np.asarray([-(2**63)]),
    "four": np.asarray([4]),
}


def _operators(path: Path) -> list[str]:
    return [node.op_type for node in read_model(path).model.graph]


@pytest.mark.parametrize(
    ("perm", "last", "more", "simple"),
    [
        ("0, 2, 1", "four, length", "", True),
        ("0, 1, 2", "length, four", "", True),
        # Another order of the same elements.
        ("0, 2, 1", "length, four", "", False),
        # What is between is seen from outside.
        ("0, 2, 1", "four, length", ", float[m, seq, 4] a", False),
        ("0, 2, 1", "four, length", ", float[m, 4, seq] b", False),
        # The merged axis itself moves.
        ("2, 1, 0", "four, length", "", False),
    ],
)
def test_transposition_between_reshapes(
    tmp_path: Path, perm: str, last: str, more: str, simple: bool
) -> None:
    text = DETOUR.format(perm=perm, last=last, more=more)
    if last == "length, four":
        text = text.replace("float[batch, 6, 4, seq] y", "float[batch, 6, seq, 4] y")
    path = graphs.save(tmp_path / "model.onnx", text, WEIGHTS)
    operators = _operators(path)
    assert ("Reshape" not in operators) is simple
    assert not simple or operators == ["Transpose", "Relu"]
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    if perm != "2, 1, 0":
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 6, 5, 4)})


def test_two_readers_keep_the_detour(tmp_path: Path) -> None:
    text = DETOUR.format(perm="0, 2, 1", last="four, length", more=", float[k, 4, seq] z")
    text = text.replace("y = Relu(c)", "y = Relu(c) z = Neg(b)")
    path = graphs.save(tmp_path / "model.onnx", text, WEIGHTS)
    assert _operators(path).count("Reshape") == 2
