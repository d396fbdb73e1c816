"""Detours of exporters become the plain operators that they stand for, and nothing else changes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import SliceError
from sharding.reading.read import read_model
from sharding.rewrite.simplify import simplify
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


ASSIGNED = """g (float[n, seq, 16] x) => (float[a, b, c] y) {{
  sh = Shape(x) n1 = Gather(sh, zero1) s1 = Gather(sh, one1)
  wide = Concat<axis = 0>(n1, s1, eight, minus) d0 = MatMul(x, w) d1 = Reshape(d0, wide)
  data = Transpose<perm = [0, 2, 1, 3]>(d1)
  v0 = MatMul(x, u) v1 = Reshape(v0, wide) v = Transpose<perm = [0, 2, 1, 3]>(v1)
  n0 = Gather(sh, zero) s0 = Gather(sh, one) r0 = Range(zero, n0, one) r2 = Range({first}, {last}, one)
  to0 = Constant<value = int64[4] {{-1, 1, 1, 1}}>() i0 = Reshape(r0, to0)
  to2 = Constant<value = int64[2] {{-1, 1}}>() i2 = Reshape(r2, to2)
  grid = Concat<axis = 0>(n1, eight, s1, four) end = Constant<value = int64[1] {{4}}>()
  e0 = Expand(i0, grid) e1 = Expand(heads, grid) e2 = Expand(i2, grid) e3 = Expand(places, grid)
  f0 = Unsqueeze(e0, end) f1 = Unsqueeze(e1, end) f2 = Unsqueeze(e2, end) f3 = Unsqueeze(e3, end)
  index = Concat<axis = -1>(f0, f1, f2, f3)
  o = ScatterND{more}(data, index, v)
  t = Transpose<perm = [0, 2, 1, 3]>(o) flat = Concat<axis = 0>(n1, s1, minus) h = Reshape(t, flat)
  y = MatMul(h, w2)
}}"""
NUMBERS = {
    "zero": np.asarray(0),
    "one": np.asarray(1),
    "zero1": np.asarray([0]),
    "one1": np.asarray([1]),
    "eight": np.asarray([8]),
    "four": np.asarray([4]),
    "minus": np.asarray([-1]),
}


def _assignment(tmp_path: Path, places: list[int], heads: list[int], **texts: str) -> Path:
    text = ASSIGNED.format(**{"first": "zero", "last": "s0", "more": ""} | texts)
    weights = {
        **NUMBERS,
        "w": graphs.array(16, 8 * 6),
        "u": graphs.array(16, 8 * 4),
        "w2": graphs.array(8 * 6, 16),
        "places": np.asarray(places),
        "heads": np.asarray(heads).reshape(-1, 1, 1),
    }
    return graphs.save(tmp_path / "model.onnx", text, weights)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_slice_that_is_assigned_is_joined_with_what_is_left(tmp_path: Path, first: int) -> None:
    """As the older exporter writes ``x[..., a:b] = v`` for open lengths: heads and rows are cut."""
    path = _assignment(tmp_path, list(range(first, first + 4)), list(range(8)))
    assert {"ScatterND", "Range"}.isdisjoint(_operators(path))
    manifest = sharding.slice_model(path, 4, tmp_path / "slices")
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    for batch, length in ((3, 5), (1, 1)):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(batch, length, 16)})
    sharding.slice_model(path, 2, tmp_path / "rows", options=SliceOptions(strategy="data"))
    lockstep.assert_same(tmp_path / "rows", path, {"x": graphs.array(4, 5, 16)})


@pytest.mark.parametrize(
    ("places", "heads", "texts"),
    [
        ([0, 1, 2, 4], list(range(8)), {}),
        ([3, 2, 1, 0], list(range(8)), {}),
        ([5], list(range(8)), {}),  # the same place for all four, of which one stays
        ([-4, -3, -2, -1], list(range(8)), {}),
        ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 7, 6], {}),
        ([0, 1, 2, 3], list(range(8)), {"first": "s0", "last": "zero"}),  # none, repeated
        ([0, 1, 2, 3], list(range(8)), {"more": '<reduction = "add">'}),
    ],
)
def test_other_places_stay(
    tmp_path: Path, places: list[int], heads: list[int], texts: dict[str, str]
) -> None:
    path = _assignment(tmp_path, places, heads, **texts)
    assert "ScatterND" in _operators(path)
    if places == [5] or "first" in texts:
        return
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 5, 16)})


@pytest.mark.parametrize(
    ("shape", "grid", "given", "simple"),
    [
        ("4, 16", (4, 16), "4, 16", True),
        ("n, 16", (4, 16), "n, 16", False),
        ("4, 16", (4, 16), "5, 6", False),
        ("4, 16", (4, 16), "1, 6", False),
        ("4, 16", (4, 16), "1, 4, 16", False),
        ("1, 1", (1, 1), "1, 1", True),
        ("1, 1", (1, 1, 1), "1, 1, 1", False),
    ],
)
def test_what_is_assigned_has_the_shape_of_its_places(
    shape: str, grid: tuple[int, ...], given: str, simple: bool
) -> None:
    """What is joined would have the shape of what is assigned; ONNX Runtime refuses it, or keeps its own."""
    axes = ", ".join(map(str, grid))
    text = f"""g (float[{shape}] x, float[{given}] v) => (float[{shape}] y)
    <int64[{axes}] e0, int64[{axes}] e1, int64[{axes}, 2] index> {{
      e0 = Expand(rows, grid) e1 = Expand(columns, grid) f0 = Unsqueeze(e0, end) f1 = Unsqueeze(e1, end)
      index = Concat<axis = -1>(f0, f1) y = ScatterND(x, index, v) }}"""
    weights = {
        "rows": np.arange(grid[-2]).reshape(-1, 1),
        "columns": np.arange(grid[-1]),
        "grid": np.asarray(grid),
        "end": np.asarray([-1]),
    }
    graph = ir.serde.deserialize_model(graphs.model(text, weights)).graph
    simplify(graph, 18)
    assert ("ScatterND" not in [node.op_type for node in graph]) is simple


@pytest.mark.parametrize("taken", ["weight", "input", "result", None])
def test_names_of_what_is_joined_are_free(taken: str | None) -> None:
    text = """g (float[4, 16] x, float[4, 16] v, float[2] input) => (float[4, 16] y, float[2] result)
    <int64[4, 16] e0, int64[4, 16] e1, int64[4, 16, 2] index> {
      result = Add(input, weight) e0 = Expand(rows, grid) e1 = Expand(columns, grid)
      f0 = Unsqueeze(e0, end) f1 = Unsqueeze(e1, end)
      index = Concat<axis = -1>(f0, f1) y = ScatterND(x, index, v) }"""
    weights = {
        "rows": np.arange(4).reshape(-1, 1),
        "columns": np.arange(16),
        "grid": np.asarray([4, 16]),
        "end": np.asarray([-1]),
        "weight": graphs.array(2),
    }
    model = graphs.model(text, weights)
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        item.name = "y/kept0" if item.name == taken else item.name
    node = model.graph.node[0]
    node.input[:] = ["y/kept0" if name == taken else name for name in node.input]
    node.output[:] = ["y/kept0" if name == taken else name for name in node.output]
    graph = ir.serde.deserialize_model(model).graph
    simplify(graph, 18)
    assert ("ScatterND" in [node.op_type for node in graph]) is (taken is not None)


def test_names_are_looked_at_only_where_something_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many ScatterND would take the square of their number."""
    asked = 0

    nodes = "".join(f"y{i} = ScatterND(x, index, v) " for i in range(50))
    outputs = ", ".join(f"float[4] y{i}" for i in range(50))
    text = f"g (float[4] x, int64[2, 1] index, float[2] v) => ({outputs}) {{ {nodes} }}"
    graph = ir.serde.deserialize_model(graphs.model(text, {})).graph
    walk = type(graph).__iter__

    def counted(self: ir.Graph) -> Iterator[ir.Node]:
        nonlocal asked
        asked += 1
        return walk(self)

    monkeypatch.setattr(type(graph), "__iter__", counted)
    simplify(graph, 18)
    assert asked == 1


@pytest.mark.parametrize(
    ("merged", "result", "simple"),
    [
        ([6, 6, 4], [2, 3, 4, 6], True),
        # Of these the last two axes are not those of the input: other elements change places.
        ([6, 8, 3], [2, 3, 4, 6], False),
        ([12, 3, 4], [2, 3, 4, 6], False),
        ([6, 6, 4], [3, 2, 4, 6], False),
        ([6, 6, 4], [2, 3, 6, 4], False),
        ([36, 4], [2, 3, 6, 4], True),
    ],
)
def test_reshapes_of_known_lengths_around_a_transposition(
    tmp_path: Path, merged: list[int], result: list[int], simple: bool
) -> None:
    perm = [0, 2, 1] if len(merged) == 3 else [0, 1]
    text = f"""g (float[2, 3, 6, 4] x) => (float[{", ".join(map(str, result))}] y) {{
      a = Reshape(x, merged) b = Transpose<perm = {perm}>(a) c = Reshape(b, result) y = Relu(c)
    }}"""
    weights = {"merged": np.asarray(merged), "result": np.asarray(result)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    assert (_operators(path) == ["Transpose", "Relu"]) is simple
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 3, 6, 4)}, tolerance=0)
