"""Detours of exporters become the plain operators that they stand for, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import SliceError
from sharding.reading.read import read_model
from sharding.slices.mesh import Mesh
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


HEADS_OF_BATCH = """g (float[seq, batch, 32] x) => (float[batch, heads, seq, size] y{more}) {{
  rows = Shape<start = 1, end = 2>(x)
  length = Shape<start = 0, end = 1>(x)
  eight = Mul(rows, count)
  flat = Concat<axis = 0>(length, eight, eighth)
  p = MatMul(x, w)
  a = Reshape(p, flat)
  b = Transpose<perm = [{perm}]>(a)
  last = Concat<axis = 0>(rows, count, length, eighth)
  c = Reshape(b, last)
  y = Relu(c)
}}"""


@pytest.mark.parametrize(
    ("perm", "more", "simple"),
    [
        ("1, 0, 2", "", True),
        # Another order of the elements, and a middle that is seen from outside.
        ("0, 1, 2", "", False),
        ("1, 0, 2", ", float[m, seq, 4] b", False),
    ],
)
def test_heads_taken_into_the_batch_and_back(tmp_path: Path, perm: str, more: str, simple: bool) -> None:
    """Attention with the sequence first: heads can be split without a collective in between."""
    text = HEADS_OF_BATCH.format(perm=perm, more=more).replace("heads, seq, size", "8, seq, 4")
    weights = {"count": np.asarray([8]), "eighth": np.asarray([4]), "w": graphs.array(32, 32)}
    path = graphs.save(tmp_path / "model.onnx", _declared(text), weights)
    assert (_operators(path).count("Reshape") == 1) is simple
    sharding.slice_model(path, 2, tmp_path / "slices")
    if simple:
        assert lockstep.collectives(tmp_path / "slices") == ["AllGather"]
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(6, 3, 32)})


def _declared(text: str) -> str:
    """With the shapes that exporters write beside the graph."""
    shapes = "float[seq, m, 4] a, float[batch, 8, seq, 4] c"
    return text.replace(") {", f") <{shapes}> {{", 1)


@pytest.mark.parametrize(("length", "simple"), [(1, True), (2, False)])
def test_tile_of_single_rows(tmp_path: Path, length: int, simple: bool) -> None:
    """Repeated for each row of the batch, as learned queries are: rows of the batch stay separate."""
    text = """g (float[batch, 6, 4] x) => (float[rows, 6, 4] y) <float[rows, 6, 4] t> {
      rows = Shape<start = 0, end = 1>(x)
      counts = Concat<axis = 0>(rows, one, one)
      t = Tile(table, counts)
      p = MatMul(t, w)
      TAIL
    }"""
    tail = "y = Add(p, x)" if simple else "xx = Concat<axis = 0>(x, x) y = Add(p, xx)"
    text = text.replace("TAIL", tail).replace("[rows,", "[batch," if simple else "[twice,")
    weights = {"one": np.asarray([1]), "table": graphs.array(length, 6, 4), "w": graphs.array(4, 4)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    assert ("Expand" in _operators(path)) is simple
    feeds = {"x": graphs.array(5, 6, 4)}
    sharding.slice_model(path, 2, tmp_path / "tensor", allow_replicated=True)
    lockstep.assert_same(tmp_path / "tensor", path, feeds)
    data = SliceOptions(mesh=Mesh.of(data=2))
    if simple:
        sharding.slice_model(path, 2, tmp_path / "data", options=data)
        lockstep.assert_same(tmp_path / "data", path, feeds)
    else:
        with pytest.raises(SliceError, match="batch"):
            sharding.slice_model(path, 2, tmp_path / "data", options=data)
