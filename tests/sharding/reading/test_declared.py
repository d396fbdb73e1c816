"""What files declare of shapes inside them, and of outputs, where it is not so."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from sharding.graph.symbols import shown, tell_apart
from sharding.graph.values import shape_of
from sharding.reading.clashes import numbers_apart
from sharding.reading.declared import _Check
from sharding.reading.lengths import as_product, evaluate
from sharding.reading.read import read_model
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import Mesh
from tests.sharding import graphs, lockstep

HEADS, SIZE = 8, 4
WIDTH = HEADS * SIZE
Edit = Callable[[onnx.ModelProto], None]

ATTENTION = """
attention (float[1, seq, 32] x) => (float[a, b, c] y) {
  shape = Shape(x)
  batch = Gather<axis = 0>(shape, zero)
  apart = Concat<axis = 0>(batch, minus, heads, size)
  flat = Concat<axis = 0>(batch, minus, width)
  q0 = MatMul(x, wq)
  q1 = Reshape(q0, apart)
  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
  k0 = MatMul(x, wk)
  k1 = Reshape(k0, apart)
  k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
  v0 = MatMul(x, wv)
  v1 = Reshape(v0, apart)
  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  s = MatMul(q2, k2)
  p = Softmax<axis = -1>(s)
  c0 = MatMul(p, v2)
  c1 = Transpose<perm = [0, 2, 1, 3]>(c0)
  c2 = Reshape(c1, TARGET)
  y = MatMul(c2, wo)
}
"""
LOOP = """
loop (float[rows, 8] x) => (float[a, b] y) {
  m = MatMul(x, w)
  yes = Constant <value = bool {1}> ()
  turns = Constant <value = int64 {3}> ()
  o = Loop (turns, yes, m) <body = turn (int64 i, bool go, float[1, 16] old)
    => (bool again, float[1, 16] new) <float[1, 16] bent> {
    again = Identity(go)
    to = Shape(old)
    bent = Tanh(old)
    new = Reshape(bent, to)
  }>
  y = MatMul(o, v)
}
"""


def test_what_the_body_of_a_loop_declares(tmp_path: Path) -> None:
    """Written for one row. With its optimizers ONNX Runtime believes it, and fails."""
    weights = {"w": graphs.array(8, 16), "v": graphs.array(16, 8, seed=1)}
    path = graphs.save(tmp_path / "loop.onnx", LOOP, weights)
    session = graphs.session(path, optimized=False)
    folder = tmp_path / "slices"
    sharding.slice_model(path, 2, folder)
    for rows in (1, 3, 5):
        feeds = {"x": graphs.array(rows, 8, seed=rows)}
        (wanted,) = session.run(None, feeds)
        for found in lockstep.run_slices(folder, feeds):
            assert found["y"].shape == wanted.shape
            np.testing.assert_allclose(found["y"], wanted, atol=1e-5)


ATTENTION_WEIGHTS = {
    "zero": np.array([0]),
    "minus": np.array([-1]),
    "heads": np.array([HEADS]),
    "size": np.array([SIZE]),
    "width": np.array([WIDTH]),
    **{f"w{name}": graphs.array(WIDTH, WIDTH, seed=n) / 6 for n, name in enumerate("qkvo")},
}


def _declare(model: onnx.ModelProto, declared: Mapping[str, list[Any]]) -> None:
    for name, shape in declared.items():
        for info in [*model.graph.value_info, *model.graph.output]:
            if info.name == name:
                info.CopyFrom(helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, shape))
                break
        else:
            model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def _inferred_then_opened(model: onnx.ModelProto) -> None:
    """The usual edit: shapes were written for a batch of 1, then the input's batch was opened."""
    for axis in model.graph.output[0].type.tensor_type.shape.dim:
        axis.Clear()
    model.CopyFrom(onnx.shape_inference.infer_shapes(model, data_prop=True))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _saved(tmp_path: Path, text: str, weights: dict[str, Any], edit: Edit) -> Path:
    path = graphs.save(tmp_path / "model.onnx", text, weights, opset=17)
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)
    return path


def _reshaped(tmp_path: Path, target: str, edit: Edit) -> Path:
    def both(model: onnx.ModelProto) -> None:
        _inferred_then_opened(model)
        edit(model)

    return _saved(tmp_path, ATTENTION.replace("TARGET", target), ATTENTION_WEIGHTS, both)


STALE: dict[str, Edit] = {
    "batch of 1": lambda _: None,
    "one value alone": lambda model: _only(model, "c2"),
    "heads elsewhere": lambda model: _declare(model, {"q1": [1, HEADS, "seq", SIZE], "c1": [1, 8, "seq", 4]}),
    "other heads": lambda model: _declare(model, {"c1": [1, "seq", 4, 2 * SIZE]}),
    "other rank": lambda model: _declare(model, {"c2": ["batch", WIDTH], "q0": [WIDTH], "p": ["batch", 1]}),
    "other symbols": lambda model: _declare(model, {"q0": ["seq", "batch", WIDTH], "c2": ["x", "x", WIDTH]}),
    "all of 1": lambda model: _declare(
        model, {"p": [1, 1, 1, "seq"], "c0": [1, 1, 1, 1], "c1": [1, 1, 1, 1]}
    ),
}


def _only(model: onnx.ModelProto, name: str) -> None:
    for info in [info for info in model.graph.value_info if info.name != name]:
        model.graph.value_info.remove(info)


@pytest.mark.parametrize("target", ["flat", "shape"])
@pytest.mark.parametrize("stale", STALE)
def test_stale_shapes_inside_are_not_believed(tmp_path: Path, stale: str, target: str) -> None:
    path = _reshaped(tmp_path, target, STALE[stale])
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]
    for batch in (1, 2, 3):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(batch, 5, WIDTH)})


@pytest.mark.parametrize("mesh", [{"data": 2}, {"pipeline": 2}, {"pipeline": 2, "tensor": 2}])
def test_stale_shapes_on_a_mesh(tmp_path: Path, mesh: dict[str, int]) -> None:
    path = _reshaped(tmp_path, "flat", STALE["batch of 1"])
    options = SliceOptions(mesh=Mesh.of(**mesh))
    sharding.slice_model(path, options.mesh.size if options.mesh else 1, tmp_path / "slices", options=options)
    for batch in (2, 3):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(batch, 5, WIDTH)})


def test_a_target_that_only_the_run_knows(tmp_path: Path) -> None:
    """Nothing but the file says what the Reshape gives, and it is wrong for all batches but one."""
    text = """g (float[batch, seq, 32] x, int64[3] to) => (float[a, b, c] y) {
      m = MatMul(x, wq)
      r = Reshape(m, to)
      t = Relu(r)
      y = MatMul(t, wo)
    }"""
    weights = {name: ATTENTION_WEIGHTS[name] for name in ("wq", "wo")}
    path = _saved(tmp_path, text, weights, lambda model: _declare(model, {"r": [1, 5, 32], "t": [1, 5, 32]}))
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    for batch, shape in ((2, (2, 5, 32)), (2, (5, 2, 32)), (1, (1, 5, 32))):
        feeds = {"x": graphs.array(batch, 5, 32), "to": np.array(shape)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


def _branches() -> onnx.ModelProto:
    """An If, and a Loop, whose bodies declare a batch of 1 for what they make and are given."""
    text = """g (float[batch, 5, 32] x, bool flag) => (float[1, 5, 32] y)
    <float[1, 5, 32] c, float[1, 5, 32] l, float[1, 5, 32] r> {
      m = MatMul(x, wq)
      c = If (flag) <
        then_branch = then () => (float[n, 5, 32] a) { a = Relu(m) },
        else_branch = other () => (float[n, 5, 32] b) { b = Tanh(m) }
      >
      l = Loop (times, , c) <
        body = body (int64 i, bool go, float[1, 5, 32] state) => (bool more, float[n, 5, 32] next)
        <float[1, 5, 32] t> {
          more = Identity(go)
          t = Tanh(state)
          next = Identity(t)
        }
      >
      sh = Shape(x)
      r = Reshape(l, sh)
      y = MatMul(r, wo)
    }"""
    weights = {**{name: ATTENTION_WEIGHTS[name] for name in ("wq", "wo")}, "times": np.array(2)}
    return graphs.model(text, weights, opset=17)


@pytest.mark.parametrize("flag", [True, False])
def test_stale_shapes_in_bodies(tmp_path: Path, flag: bool) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_branches(), path)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    for batch in (1, 3):
        feeds = {"x": graphs.array(batch, 5, WIDTH), "flag": np.array(flag)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_stale_shapes_in_a_branch_that_is_always_taken(tmp_path: Path) -> None:
    model = _branches()
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    onnx.save(model, tmp_path / "model.onnx")
    found = {
        value.name: value
        for node in read_model(tmp_path / "model.onnx").model.graph
        for value in node.outputs
    }
    assert shape_of(found["c"]) == ("batch", 5, WIDTH)


def test_stale_shapes_in_a_function(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    g (float[batch, 5, 32] x) => (float[1, 5, 32] y) <float[1, 5, 32] h> {
      h = local.block(x, wq, wo)
      y = Identity(h)
    }
    <domain: "local", opset_import: ["" : 17]>
    block (x, w, v) => (h) {
      m = MatMul(x, w)
      n = Relu(m)
      s = Shape(x)
      r = Reshape(n, s)
      h = MatMul(r, v)
    }"""

    def edit(model: onnx.ModelProto) -> None:
        for name in ("m", "n", "r"):
            model.functions[0].value_info.append(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 5, WIDTH])
            )

    weights = {name: ATTENTION_WEIGHTS[name] for name in ("wq", "wo")}
    path = _saved(tmp_path, text, weights, edit)
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert lockstep.collectives(tmp_path / "slices") == ["AllReduce"]
    for batch in (1, 3):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(batch, 5, WIDTH)})


HIGH = "(((height - 1)//2)) + 1"
IMAGES = """
g (float[batch, 3, height, width] x) => (float[b, 8, h, w] y) {
  a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1)
  b = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a, w2)
  y = Add(a, b)
}
"""


POSITIONS = """
g (int64[batch, sequence] ids) => (float[batch, sequence, 8] y) {
  shape = Shape(ids)
  length = Slice(shape, one, two, zero)
  own = Slice(table, zero, length, zero)
  words = Gather(w, ids)
  sum = Add(words, own)
  y = MatMul(sum, v)
}
"""


def test_a_table_of_positions_that_ends_early(tmp_path: Path) -> None:
    """Longer inputs than it has rows cannot be inferred, so that what is declared is tried at short ones."""
    weights: dict[str, Any] = {name: np.asarray([i]) for i, name in enumerate(("zero", "one", "two"))}
    weights |= {"table": graphs.array(32, 8), "w": graphs.array(64, 8), "v": graphs.array(8, 8)}
    shapes = {"own": ["sequence", 8], "sum": ["batch", "sequence", 8]}
    path = _saved(tmp_path, POSITIONS, weights, lambda model: _declare(model, shapes))
    found = {value.name: shape_of(value) for node in read_model(path).model.graph for value in node.outputs}
    assert found["sum"] == ("batch", "sequence", 8)
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"ids": np.arange(18).reshape(2, 9)})


TWO_INPUTS = """
g (int64[batch, sequence] ids, float[batch, sequence] mask) => (float[a, b, c] y) {
  words = Gather(table, ids)
  ids_shape = Shape(ids)
  mask_shape = Shape(mask)
  batch = Gather<axis = 0>(ids_shape, zero)
  length = Gather<axis = 0>(mask_shape, one)
  words_length = Gather<axis = 0>(ids_shape, one)
  own = Slice(rows, zero, words_length, zero)
  x = Add(words, own)
  apart = Concat<axis = 0>(batch, length, minus, size)
  flat = Concat<axis = 0>(batch, length, width)
  row_count = Gather<axis = 0>(ids_shape, nought)
  row = Range(nought, row_count, unit)
  column_count = Gather<axis = 0>(mask_shape, unit)
  column = Range(nought, column_count, unit)
  rows_apart = Unsqueeze(row, to_rows)
  columns_apart = Unsqueeze(column, to_columns)
  cells = Max(rows_apart, columns_apart)
  wide = Shape(cells)
  m1 = Unsqueeze(mask, inner)
  m2 = Expand(m1, wide)
  q0 = MatMul(x, wq)
  q1 = Reshape(q0, apart)
  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
  k0 = MatMul(x, wk)
  k1 = Reshape(k0, apart)
  k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
  v0 = MatMul(x, wv)
  v1 = Reshape(v0, apart)
  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  s0 = MatMul(q2, k2)
  s1 = Add(s0, MASK)
  p = Softmax<axis = -1>(s1)
  c0 = MatMul(p, v2)
  c1 = Transpose<perm = [0, 2, 1, 3]>(c0)
  c2 = Reshape(c1, flat)
  out = MatMul(c2, wo)
  sum = Add(x, out)
  y = MatMul(sum, wo)
}
"""


@pytest.mark.parametrize(("rows", "mask"), [(2048, "bias"), (32, "m2"), (2048, "m2")])
def test_two_inputs_of_one_length_as_the_model_wants_it(tmp_path: Path, rows: int, mask: str) -> None:
    """The sum shows it, whose shape inference has from one summand already. What only its length is asked of,
    so that nothing needs it once lengths have numbers, and a table of positions that ends before the larger
    numbers, hide nothing."""
    weights: dict[str, Any] = {
        **ATTENTION_WEIGHTS,
        "one": np.array([1]),
        "inner": np.array([1, 2]),
        "bias": graphs.array(1),
    }
    weights |= {"nought": np.array(0), "unit": np.array(1)}
    weights |= {"to_rows": np.array([1, 2, 3]), "to_columns": np.array([0, 1, 2])}
    weights |= {"table": graphs.array(64, WIDTH), "rows": graphs.array(rows, WIDTH, seed=9)}
    parted, heads = ["batch", "sequence", HEADS, SIZE], ["batch", HEADS, "sequence", SIZE]
    scores, hidden = ["batch", HEADS, "sequence", "sequence"], ["batch", "sequence", WIDTH]
    shapes = {
        **dict.fromkeys(("q1", "k1", "v1", "c1"), parted),
        **dict.fromkeys(("q2", "v2", "c0"), heads),
        **dict.fromkeys(("s0", "s1", "p"), scores),
        **dict.fromkeys(("x", "c2", "out", "sum"), hidden),
        "k2": ["batch", HEADS, SIZE, "sequence"],
        "m2": ["batch", 1, 1, "sequence"],
    }
    text = TWO_INPUTS.replace("MASK", mask)

    def edit(model: onnx.ModelProto) -> None:
        cells = ["batch", 1, 1, "sequence"]
        model.graph.value_info.append(helper.make_tensor_value_info("cells", TensorProto.INT64, cells))
        _declare(model, shapes)

    path = _saved(tmp_path, text, weights, edit)
    found = {value.name: shape_of(value) for node in read_model(path).model.graph for value in node.outputs}
    assert found["q1"] == tuple(parted)
    sharding.slice_model(path, 4, tmp_path / "slices")
    assert len(lockstep.collectives(tmp_path / "slices")) <= 4  # embedding, attention, the last product
    for rows_of in (2, 5):
        ids = np.arange(rows_of * 9).reshape(rows_of, 9)
        feeds = {"ids": ids, "mask": graphs.array(rows_of, 9, seed=4)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("8*batch", "8·batch"), ("batch*8", "8·batch"), ("2*b*4*a", "8·a·b"),
        ("8", "8"), ("a + 8*b", "a + 8*b"),
        ("0*a", "0*a"), ("a**2", "a**2"), ("named*axis", "named*axis"), ("a*", "a*"), (7, 7), (None, None),
    ],
)  # fmt: skip
def test_products_of_lengths(text: Any, length: Any) -> None:
    """As inference writes them, so that equal ones are equal."""
    assert as_product(text, {"named*axis"}) == length
    if isinstance(length, str) and "·" in length:
        numbers = {"a": 3, "b": 5, "batch": 7}
        assert evaluate(length, numbers) == evaluate(text, numbers) is not None


def test_what_an_exporter_knows_is_used_where_it_holds(tmp_path: Path) -> None:
    """Inference with symbols alone does not know how high a convolution's output is; the exporter said it.
    Where it says something else, that is not used."""
    wide = HIGH.replace("height", "width")
    shapes = {
        "a": ["batch", 8, HIGH, wide],  # right
        "b": ["batch", 8, HIGH, "(((width - 1)//3)) + 1"],  # the last axis is wrong
        "y": ["batch", 8, "height", wide],  # and here the third
    }
    weights = {"w1": graphs.array(8, 3, 3, 3), "w2": graphs.array(8, 8, 3, 3)}
    path = _saved(tmp_path, IMAGES, weights, lambda model: _declare(model, shapes))
    found = {value.name: shape_of(value) for node in read_model(path).model.graph for value in node.outputs}
    assert found["a"] == ("batch", 8, HIGH, wide)
    assert found["b"] == ("batch", 8, HIGH, wide)  # a step of one and full padding keep what "a" has
    assert "1)//3" not in str(found) and found["y"] is not None and found["y"][2] == HIGH
    sharding.slice_model(path, 2, tmp_path / "slices")
    for height in (9, 12):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 3, height, 11)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", 7), ("n + 1", 8), ("2*n - m", 11), ("Min(128, n)", 7), ("Max(1, n, m)", 7), ("floor(n/2)", 3),
        ("((n - 1)//2) + 1", 4), ("-(-n//2)", 4), ("n % 4", 3), ("n // 0", None), ("k", None), ("n**2", None),
        ("Min(k, 1)", None), ("", None), ("n(", None), ("open('x')", None), ("1.5", None),
        ("9999999999", None),
    ],
)  # fmt: skip
def test_expressions_of_lengths(text: str, value: int | None) -> None:
    assert evaluate(text, {"n": 7, "m": 3}) == value


@pytest.mark.parametrize("declared", [[1, "length"], [1, 128, 1], ["a", "b", "c", "d"], [], [5, 64, 1], None])
def test_outputs_of_another_shape_than_declared(tmp_path: Path, declared: list[Any] | None) -> None:
    text = """g (float[n, 64] x) => (float[a, b, c] y) {
      m = MatMul(x, w)
      s = Shape(m)
      to = Concat<axis = 0>(s, one)
      y = Reshape(m, to)
    }"""

    def edit(model: onnx.ModelProto) -> None:
        kind = helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)
        model.graph.output[0].CopyFrom(kind)

    path = _saved(tmp_path, text, {"w": graphs.array(64, 128), "one": np.array([1])}, edit)
    for mesh in ({"tensor": 2}, {"data": 2}, {"pipeline": 2}):
        folder = tmp_path / "_".join(mesh)
        options = SliceOptions(mesh=Mesh.of(**mesh))
        sharding.slice_model(path, 2, folder, options=options, allow_replicated=True)
        for rows in (5, 3):
            lockstep.assert_same(folder, path, {"x": graphs.array(rows, 64)})


SYMBOLS = {
    "one input twice": (
        """g (float[q, 3, q, q] x) => (float[a, b, c, d] y) {
          m = Conv<pads = [1, 1, 1, 1]>(x, w)
          y = Relu(m)
        }""",
        {"w": graphs.array(8, 3, 3, 3)},
        {"x": (2, 3, 6, 9)},
    ),
    "a row for all": (
        """g (float[n, 16] x, float[n, 16] z) => (float[a, b] y) {
          s = Add(x, z)
          m = MatMul(s, w)
          r = Relu(m)
          y = MatMul(r, v)
        }""",
        {"w": graphs.array(16, 32), "v": graphs.array(32, 8)},
        {"x": (1, 16), "z": (5, 16)},
    ),
    "the target of a Reshape": (
        """g (float[n, 16] x, float[n, 4] z) => (float[a, b] y) {
          m = MatMul(x, w)
          rows = Shape<start = 0, end = 1>(z)
          to = Concat<axis = 0>(rows, minus)
          r = Reshape(m, to)
          y = Tanh(r)
        }""",
        {"w": graphs.array(16, 32), "minus": np.array([-1])},
        {"x": (6, 16), "z": (3, 4)},
    ),
    "the same, declared": (
        """g (float[n, 16] x, float[n, 4] z) => (float[n, 32] y) <float[n, 32] r> {
          m = MatMul(x, w)
          rows = Shape<start = 0, end = 1>(z)
          to = Concat<axis = 0>(rows, minus)
          r = Reshape(m, to)
          y = Tanh(r)
        }""",
        {"w": graphs.array(16, 32), "minus": np.array([-1])},
        {"x": (6, 16), "z": (3, 4)},
    ),
    "apart": (
        """g (float[n, 16] x, float[n, 16] z) => (float[n, 8] y, float[n, 8] t) {
          m = MatMul(x, w)
          k = MatMul(z, w)
          mm = Relu(m)
          kk = Relu(k)
          y = MatMul(mm, v)
          t = MatMul(kk, v)
        }""",
        {"w": graphs.array(16, 32), "v": graphs.array(32, 8)},
        {"x": (2, 16), "z": (7, 16)},
    ),
    "joined": (
        """g (float[n, 16] x, float[n, 16] z) => (float[a, 8] y) {
          j = Concat<axis = 0>(x, z)
          m = MatMul(j, w)
          r = Relu(m)
          y = MatMul(r, v)
        }""",
        {"w": graphs.array(16, 32), "v": graphs.array(32, 8)},
        {"x": (2, 16), "z": (7, 16)},
    ),
}


@pytest.mark.parametrize("case", SYMBOLS)
def test_one_symbol_for_two_lengths(tmp_path: Path, case: str) -> None:
    text, weights, shapes = SYMBOLS[case]
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    feeds = {name: graphs.array(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    for mesh in ({"tensor": 2}, {"pipeline": 2}):
        folder = tmp_path / "_".join(mesh)
        options = SliceOptions(mesh=Mesh.of(**mesh), micro_batches=1)
        sharding.slice_model(path, 2, folder, options=options, allow_replicated=True)
        lockstep.assert_same(folder, path, feeds)
        manifest = read_manifest(folder)
        shapes = [entry.shape for entry in (*manifest.inputs, *manifest.outputs, *manifest.collectives)]
        named = {axis for shape in shapes for axis in shape if isinstance(axis, str)}
        assert {name for name in named if not name.startswith("unk__")} <= {"q", "n"}  # as the file does


def test_an_axis_that_is_as_declared_for_some_lengths_only() -> None:
    """Of shapes found with numbers, each must be as the file says, and there must be enough of them."""
    check = _Check(("n", "m", None))
    for n, m, found in ((4, 3, (7, 3, 2)), (8, 5, (8, 5, 2))):  # the first axis is at least 7
        check.compare(found, {"n": n, "m": m})
    assert check.held() == (None, "m", None)


def test_an_axis_that_was_found_too_seldom() -> None:
    check = _Check(("n", "m"))
    check.compare((4, None), {"n": 4, "m": 3})
    assert check.held() is None  # once may be chance
    check.compare((8, 5), {"n": 8, "m": 5})
    assert check.held() == ("n", None)
    check.compare((2, 9), {"n": 2, "m": 9})
    assert check.held() == ("n", "m")
    check.compare((2, 9, 1), {"n": 2, "m": 9})
    assert check.held() is None


OF_ONE_LENGTH = {
    "nothing": ("", "", "y = Relu(v)"),
    "two inputs": (
        ", float[k, 3] p, float[k, 3] q",
        ", float[k, 3] e",
        "y = Relu(v) u = Add(p, q) e = Relu(u)",
    ),
    "parts of two inputs": (
        ", float[k, 3] p, float[k, 3] q",
        ", float[j, 3] e",
        "y = Relu(v) p1 = Slice(p, one, ends) q1 = Slice(q, one, ends) u = Add(p1, q1) e = Relu(u)",
    ),
    "two inputs of what follows": (
        ", float[k, 1] p, float[k, 1] q",
        "",
        "u = Add(p, q) e = ReduceMax<keepdims = 0>(u) o = Add(v, e) y = Relu(o)",
    ),
}
"""More inputs, that the model adds and so wants to be equally long: their names say nothing of others."""


@pytest.mark.parametrize("called", ["seq + 1", "seq*2", "2*seq"])
@pytest.mark.parametrize("times", [0.5, 1, 2])
@pytest.mark.parametrize("more", sorted(OF_ONE_LENGTH))
def test_an_input_called_an_expression_is_as_long_as_it_likes(
    tmp_path: Path, called: str, times: float, more: str
) -> None:
    """A length inside is what its name says; the input's, called so too, is another one, for which a Reshape
    may take a factor of the last axis."""
    inputs, outputs, nodes = OF_ONE_LENGTH[more]
    first = "f = Slice(x, zero, one, one)" if called == "seq + 1" else "f = Identity(x)"
    text = f"""g (float[n, seq, 8] x, float["{called}"] z{inputs}) => (float[n, m, l] y{outputs})
    <float[n, "{called}", 8] c, float[n, "{called}", 64] h, float[n, "{called}", 64] r> {{
      {first}
      c = Concat<axis = 1>(x, f) h = MatMul(c, w) r = Relu(h)
      sh = Shape(x) batch = Gather(sh, zero) wanted = Shape(z) t = Concat<axis = 0>(batch, wanted, minus)
      v = Reshape(r, t) {nodes} }}"""
    weights = {
        "w": graphs.array(8, 64),
        **{k: np.array([v]) for k, v in (("zero", 0), ("one", 1), ("minus", -1), ("ends", 2**31 - 1))},
    }
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    inside = 6 if called == "seq + 1" else 10
    feeds = {"x": graphs.array(4, 5, 8), "z": graphs.array(int(inside * times))}
    if inputs:
        feeds |= {
            name: graphs.array(4, 1 if "[k, 1]" in inputs else 3, seed=seed) for seed, name in enumerate("pq")
        }
    lockstep.assert_same(tmp_path / "slices", path, feeds)


def test_a_length_called_an_expression_is_one_where_the_model_wants_it(tmp_path: Path) -> None:
    """A mask as long as what is read before and now: the sum with it has the mask's length."""
    called = "past + new"
    text = f"""g (float[n, 2, past, 8] before, float[n, 2, new, 8] k, float[n, 2, new, 8] q,
                  float[n, 1, 1, "{called}"] mask) => (float[a, b, c, d] y)
    <float[n, 2, "{called}", 8] all, float[n, 2, new, "{called}"] s> {{
      all = Concat<axis = 2>(before, k) turned = Transpose<perm = [0, 1, 3, 2]>(all)
      s = MatMul(q, turned) m = Add(s, mask) p = Softmax(m) o = MatMul(p, all)
      y = MatMul(o, w) }}"""
    source = read_model(graphs.save(tmp_path / "model.onnx", text, {"w": graphs.array(8, 64)}))
    shapes = {value.name: shape_of(value) for node in source.model.graph for value in node.outputs}
    mask = shape_of(source.model.graph.inputs[3])
    assert mask is not None and shown(mask[3]) == called
    for name in ("s", "m"):
        assert tuple(map(shown, shapes[name] or ()))[1:] == (2, "new", called)
        assert (shapes[name] or ())[3] == mask[3]


@pytest.mark.parametrize("strategy", ["tensor", "data"])
def test_an_input_that_is_an_output_is_what_it_is_as_an_input(tmp_path: Path, strategy: str) -> None:
    text = "g (float[n, s, 16] x) => (float[n, s, 8] y, float[n, s, 16] x) { a = MatMul(x, w) y = Relu(a) }"
    path = graphs.save(tmp_path / "model.onnx", text, {"w": graphs.array(16, 8)})
    model = onnx.load(path)
    model.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 32
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 4
    path.write_bytes(model.SerializeToString())
    sharding.slice_model(path, 2, tmp_path / "slices", options=SliceOptions(strategy=strategy))
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(4, 5, 16)})


@pytest.mark.parametrize("count", [16, 48])
def test_axes_of_one_name_are_told_apart_by_numbers_of_which_64_bits_hold_products(count: int) -> None:
    inputs = ", ".join(f'float["?", "?", "?", "?"] x{index}' for index in range(count // 4))
    outputs = ", ".join(f"float[a{index}, b, c, d] y{index}" for index in range(count // 4))
    nodes = " ".join(f"y{index} = Relu(x{index})" for index in range(count // 4))
    model = ir.serde.deserialize_model(graphs.model(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", {}))
    tell_apart(model.graph)
    numbers = numbers_apart(model)
    assert len(set(numbers.values())) == len(numbers) == count
    for value in model.graph.inputs:
        assert math.prod(numbers[str(axis)] for axis in shape_of(value) or ()) < 2**63
