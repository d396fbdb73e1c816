"""The batch is cut only where its rows are proved to be computed apart, and then the result is the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sharding
from ranks.common.tensors import TensorSpec, unlike
from ranks.run import executor
from sharding.demands.options import SliceOptions
from sharding.errors import SliceError
from sharding.graph.symbols import shown_shape
from sharding.pipeline import batch as proofs_of_batches
from sharding.pipeline.batch import batch_axes
from sharding.reading.read import read_model
from sharding.slices.batch import BatchAxes
from sharding.slices.mesh import Mesh
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.sharding import graphs, lockstep


def _found(tmp_path: Path, text: str, weights: dict[str, Any] | None = None) -> BatchAxes | str:
    return batch_axes(read_model(graphs.save(tmp_path / "model.onnx", text, weights or {})))


APART = {
    "products": ("(float[n, 16] x) => (float[n, 8] y) { a = MatMul(x, w) y = Relu(a) }", {"x": 0}, {"y": 0}),
    "a second axis": (
        "(float[4, n, 16] x) => (float[4, n, 8] y) { a = MatMul(x, w) y = Relu(a) }",
        {"x": 1},
        {"y": 1},
    ),
    "an input without a batch": (
        "(float[n, 16] x, float[16] s) => (float[n, 16] y) { y = Mul(x, s) }",
        {"x": 0},
        {"y": 0},
    ),
    "moved": (
        "(float[n, 3, 5] x) => (float[5, n, 3] y) { y = Transpose<perm=[2, 0, 1]>(x) }",
        {"x": 0},
        {"y": 1},
    ),
    "shape arithmetic": (
        """(float[n, 4, 6] x) => (float[n, m] y) {
          s = Shape(x) zero = Constant<value = int64[1] {0}>() n1 = Gather(s, zero)
          minus = Constant<value = int64[1] {-1}>() t = Concat<axis=0>(n1, minus) y = Reshape(x, t) }""",
        {"x": 0},
        {"y": 0},
    ),
    "copied axes": (
        """(float[n, 4, 6] x) => (float[n, 24] y) {
          t = Constant<value = int64[2] {0, -1}>() y = Reshape(x, t) }""",
        {"x": 0},
        {"y": 0},
    ),
    "rows that are repeated alone": (
        """(float[n, 1] x) => (float[n, 4] y, float[n, 4] z) {
           t = Constant<value = int64[1] {4}>() y = Expand(x, t)
           u = Constant<value = int64[2] {1, 4}>() z = Expand(x, u) }""",
        {"x": 0},
        {"y": 0, "z": 0},
    ),
    "lengths without names that must be equal": (
        """(float[n, ?, 4] x, float[n, ?, ?] mask) => (float[n, a, b] y) {
           t = Transpose<perm=[0, 2, 1]>(x) s = MatMul(x, t) y = Add(s, mask) }""",
        {"x": 0, "mask": 0},
        {"y": 0},
    ),
    "columns without a name that are rows of the other": (
        "(float[n, 4, ?] x, float[n, ?, 6] y) => (float[n, 4, 6] z) { z = MatMul(x, y) }",
        {"x": 0, "y": 0},
        {"z": 0},
    ),
    "two products of lengths without names": (
        """(float[n, ?, 4] q, float[n, 4, ?] k, float[n, ?, 4] v) => (float[n, a, 4] z) {
           s = MatMul(q, k) p = Softmax(s) z = MatMul(p, v) }""",
        {"q": 0, "k": 0, "v": 0},
        {"z": 0},
    ),
    "joined lengths without names": (
        """(float[n, 4, ?] x, float[n, ?, 4] y) => (float[n, 8, p] z) {
           t = Transpose<perm = [0, 2, 1]>(y) z = Concat<axis = 1>(x, t) }""",
        {"x": 0, "y": 0},
        {"z": 0},
    ),
    "repeated to the batch": (
        """(float[n, 4] x) => (float[n, 4] y) {
           s = Shape(x) one = Constant<value = float[1, 4] {1.0, 2.0, 3.0, 4.0}>()
           e = Expand(one, s) y = Mul(x, e) }""",
        {"x": 0},
        {"y": 0},
    ),
    "own row numbers": (
        """(float[n, 4] x) => (float[n, 4] y) {
          zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
          s = Shape(x) length = Gather(s, zero) r = Range(zero, length, one) y = Gather(x, r) }""",
        {"x": 0},
        {"y": 0},
    ),
    "two open lengths": (
        """(int64[n, seq] ids, float[n, seq] mask) => (float[n, 8] y) {
          e = Gather(w8, ids) axes = Constant<value = int64[1] {2}>() m = Unsqueeze(mask, axes)
          p = Mul(e, m) one = Constant<value = int64[1] {1}>() y = ReduceSum<keepdims=0>(p, one) }""",
        {"ids": 0, "mask": 0},
        {"y": 0},
    ),
    "outputs that are not made": (
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[n, s, 8] x, float[n, s, 8] z) => (float[n, s, 8] y, float[n, s, 8] t) {
          scale = Constant<value = float[8] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>()
          y, "", "", t = com.microsoft.SkipSimplifiedLayerNormalization(x, z, scale) }""",
        {"x": 0, "z": 0},
        {"y": 0, "t": 0},
    ),
}


@pytest.mark.parametrize(("text", "inputs", "outputs"), APART.values(), ids=APART.keys())
def test_rows_apart(tmp_path: Path, text: str, inputs: dict[str, int], outputs: dict[str, int]) -> None:
    weights = {"w": graphs.array(16, 8), "w8": graphs.array(32, 8)}
    used = {name: value for name, value in weights.items() if f"{name})" in text or f"{name}," in text}
    path = graphs.save(tmp_path / "model.onnx", text if text.startswith("<") else "g " + text, used)
    assert batch_axes(read_model(path)) == BatchAxes(inputs, outputs)
    # And it is so: five rows over three ranks.
    mesh = Mesh.of(data=3)
    sharding.slice_model(path, 3, tmp_path / "out", options=SliceOptions(mesh=mesh))
    feeds: dict[str, Any] = {}
    for value in read_model(path).model.graph.inputs:
        assert value.name is not None and value.dtype is not None
        shape = [
            axis if isinstance(axis, int) else (5 if axis == "n" else 7) for axis in shown_shape(value) or ()
        ]
        made = np.random.default_rng(1).integers(0, 30, shape)
        feeds[value.name] = made.astype(value.dtype.numpy())
    lockstep.assert_same(tmp_path / "out", path, feeds)


TOGETHER = {
    "softmax over the batch": ("(float[n, 4] x) => (float[n, 4] y) { y = Softmax<axis=0>(x) }", "Softmax"),
    "mean of the batch": (
        """(float[n, 4] x) => (float[n, 4] y) {
          axes = Constant<value = int64[1] {0}>() m = ReduceMean(x, axes) y = Sub(x, m) }""",
        "ReduceMean",
    ),
    "sum of the batch": (
        """(float[n, 4] x) => (float[4] y) {
          axes = Constant<value = int64[1] {0}>() y = ReduceSum<keepdims=0>(x, axes) }""",
        "ReduceSum",
    ),
    "running sums": (
        "(float[n, 4] x) => (float[n, 4] y) { axis = Constant<value = int64 {0}>() y = CumSum(x, axis) }",
        "CumSum",
    ),
    "rows times rows": (
        "(float[n, 4] x) => (float[n, n] y) { t = Transpose<perm=[1, 0]>(x) y = MatMul(x, t) }",
        "MatMul",
    ),
    "the length as a number": (
        """(float[n, 4] x) => (float[n, 4] y) { s = Shape(x) zero = Constant<value = int64[1] {0}>()
          l = Gather(s, zero) f = Cast<to=1>(l) y = Div(x, f) }""",
        "Div",
    ),
    "row numbers as values": (
        """(float[n, 4] x) => (float[n, 4] y) {
          zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() s = Shape(x)
          length = Gather(s, zero) r = Range(zero, length, one) f = Cast<to=1>(r)
          axes = Constant<value = int64[1] {1}>() c = Unsqueeze(f, axes) y = Add(x, c) }""",
        "row numbers",
    ),
    "the first row for all": (
        """(float[n, 4] x) => (float[n, 4] y) { zero = Constant<value = int64[1] {0}>()
          f = Gather(x, zero) y = Add(x, f) }""",
        "Gather",
    ),
    "the next row": (
        """(float[n, 4] x) => (float[n, 4] y) {
          zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() s = Shape(x)
          length = Gather(s, zero) r = Range(zero, length, one) next = Add(r, one) m = Mod(next, length)
          y = Gather(x, m) }""",
        "Mod",
    ),
    "the rows reversed": (
        """(float[n, 4] x) => (float[n, 4] y) { start = Constant<value = int64[1] {-1}>()
          end = Constant<value = int64[1] {-9223372036854775807}>() axis = Constant<value = int64[1] {0}>()
          y = Slice(x, start, end, axis, start) }""",
        "Slice",
    ),
    "rows joined in pairs": (
        "(float[n, 4] x) => (float[m, 8] y) { t = Constant<value = int64[2] {-1, 8}>() y = Reshape(x, t) }",
        "Reshape",
    ),
    "an output without a batch": (
        "(float[n, 4] x, float[3] s) => (float[n, 4] y, float[3] t) { y = Relu(x) t = Relu(s) }",
        "output 't'",
    ),
    "random numbers": (
        "(float[n, 4] x) => (float[n, 4] y) { r = RandomNormalLike(x) y = Add(x, r) }",
        "draws random numbers",
    ),
    "axes of length 1 that are not named": (
        "(float[n, 4, 1] x) => (float[n, 4] y) { s = Squeeze(x) y = Relu(s) }",
        "names no axes",
    ),
    "rows repeated to a number": (
        """(float[n, 4] x) => (float[m, 4] y) {
          t = Constant<value = int64[2] {2, 4}>() y = Expand(x, t) }""",
        "Expand",
    ),
    "columns of an axis without a name": (
        """(float[n, s, ?] x) => (float[k, m] y) { two = Constant<value = int64[1] {2}>() l = Shape(x)
          k = Gather(l, two) rest = Constant<value = int64[1] {-1}>() t = Concat<axis=0>(k, rest)
          y = Reshape(x, t) }""",
        "Reshape",
    ),
    "two axes without names": (
        """(float[?, n, ?] x) => (float[k, m] y) { two = Constant<value = int64[1] {2}>() l = Shape(x)
          k = Gather(l, two) rest = Constant<value = int64[1] {-1}>() t = Concat<axis=0>(k, rest)
          y = Reshape(x, t) }""",
        "Reshape",
    ),
    "a number that an open length may be": (
        """(float[n, s, 13] x) => (float[13, m] y) {
          t = Constant<value = int64[2] {13, -1}>() y = Reshape(x, t) }""",
        "Reshape",
    ),
    "one scale for the batch": (
        """(float[n, 4] x) => (float[n, 4] y) {
          q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }""",
        "DynamicQuantizeLinear",
    ),
    "a branch on all rows": (
        """(float[n, 4] x) => (float[n, 4] y) {
          s = ReduceMax<keepdims=0>(x) zero = Constant<value = float {0.0}>() c = Greater(s, zero)
          y = Where(c, x, zero) }""",
        "ReduceMax",
    ),
}


@pytest.mark.parametrize(("text", "culprit"), TOGETHER.values(), ids=TOGETHER.keys())
def test_what_joins_rows_is_named(tmp_path: Path, text: str, culprit: str) -> None:
    path = graphs.save(tmp_path / "model.onnx", "g " + text, {})
    found = batch_axes(read_model(path))
    assert isinstance(found, str) and culprit in found
    with pytest.raises(SliceError, match="data parallelism would cut the batch, but output"):
        sharding.plan_model(path, 2, options=SliceOptions(strategy="data"))


STRIDE = """f = Reshape(x, rest) l = Shape(m) N = Gather(l, zero) r = Range(zero, N, one) {k}
  o = Mul(r, k) z = Gather<axis = 0>(f, o)"""
NUMBERS = """rest = Constant<value = int64[2] {-1, 4}>() zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>() two = Constant<value = int64 {2}>()"""
MANY = ", ".join(f"float[n, s{index}] x{index}" for index in range(19))
BY_CHANCE = {
    "lengths without names at one place": ("float[n, ?, 4] x, float[n, ?] m", "k = Gather(l, one)"),
    "names that are no identifiers": (
        'float[n, "DynamicDimension.1", 4] x, float[n, 5, "DynamicDimension.2"] m',
        "k = Gather(l, two)",
    ),
    "many lengths": (f"float[n, a, 4] x, {MANY}, float[n, c] m", "k = Gather(l, one)"),
    "lengths that others do not want to be equal": (
        "float[n, ?, 4] x, float[n, 5, ?] m, float[n, 4, ?] u, float[n, ?, 4] v",
        "v0 = Transpose<perm = [0, 2, 1]>(u) w = Add(v0, v) k = Gather(l, two)",
    ),
    "a length that may be repeated": (
        "float[n, ?, 4] x, float[n, ?, 4] m",
        "w = Add(x, m) k = Gather(l, one)",
    ),
}


@pytest.mark.parametrize(("inputs", "stride"), BY_CHANCE.values(), ids=BY_CHANCE.keys())
def test_a_stride_is_not_the_length_of_a_row_by_chance(tmp_path: Path, inputs: str, stride: str) -> None:
    """Only where all numbers that a length may be are the other's too are rows gathered by their numbers."""
    more = ", float[n, q, 4] w" if " w =" in stride else ""
    nodes = STRIDE.format(k=stride)
    found = _found(tmp_path, f"g ({inputs}) => (float[n, 4] z{more}) {{ {NUMBERS} {nodes} }}")
    assert isinstance(found, str) and "Gather" in found


def test_a_length_that_follows_from_others_is_no_constant_by_chance(tmp_path: Path) -> None:
    nodes = STRIDE.format(k="k = Constant<value = int64 {14}>()").replace("(x,", "(longer,")
    text = f"""g (float[n, a, 4] x, float[n, 5] m) => (float[n, 4] z) {{ {NUMBERS}
      from = Constant<value = int64[1] {{0}}>() to = Constant<value = int64[1] {{1}}>()
      c = Slice(x, from, to, to) longer = Concat<axis = 1>(x, c) {nodes} }}"""
    found = _found(tmp_path, text)
    assert isinstance(found, str) and "Gather" in found


def test_lengths_that_do_not_go_together_are_said_to_be_so(tmp_path: Path) -> None:
    text = "g (float[n, 4] x, float[m, 4] y) => (float[n, 4] z) { z = Add(x, y) }"
    found = _found(tmp_path, text)
    assert isinstance(found, str) and "Add" in found and "must be equal" in found


def test_a_fixed_batch_is_not_cut(tmp_path: Path) -> None:
    found = _found(
        tmp_path, "g (float[8, 16] x) => (float[8, 8] y) { y = MatMul(x, w) }", {"w": graphs.array(16, 8)}
    )
    assert isinstance(found, str)
    assert "its inputs have fixed lengths ('x' is [8, 16])" in found and "dynamic axes" in found


def test_one_name_for_the_batch_and_another_length(tmp_path: Path) -> None:
    """ONNX Runtime does not hold a model to its symbols; the first axis is the batch."""
    text = """g (float[n, n, 16] x, float[n, n] m) => (float[n, n, 8] y) {
      u = Constant<value = int64[1] {2}>() k = Unsqueeze(m, u) a = Mul(x, k) y = MatMul(a, w) }"""
    path = graphs.save(tmp_path / "model.onnx", text, {"w": graphs.array(16, 8)})
    assert batch_axes(read_model(path)) == BatchAxes({"x": 0, "m": 0}, {"y": 0})
    sharding.slice_model(path, 2, tmp_path / "slices", options=SliceOptions(strategy="data"))
    for batch, length in ((4, 3), (3, 3), (2, 5)):
        feeds = {"x": graphs.array(batch, length, 16), "m": graphs.array(batch, length, seed=1)}
        lockstep.assert_same(tmp_path / "slices", path, feeds)


@pytest.mark.parametrize(
    "options",
    [
        SliceOptions(strategy="data"),
        SliceOptions(mesh=Mesh.of(pipeline=2), micro_batches=2),
    ],
    ids=["data", "pipeline"],
)
def test_a_batch_of_no_rows_keeps_its_other_axes(options: SliceOptions, tmp_path: Path) -> None:
    text = "g (float[n, s, 16] x) => (float[n, s, 8] y) { a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2) }"
    weights = {"w1": graphs.array(16, 32), "w2": graphs.array(32, 8, seed=1)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "slices", options=options)
    for batch in (0, 3):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(batch, 5, 16)})


def test_a_fixed_number_of_rows_inside_is_named(tmp_path: Path) -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y) {
      t = Constant<value = int64[3] {2, -1, 4}>() a = Reshape(x, t) b = Relu(a)
      u = Constant<value = int64[2] {-1, 4}>() y = Reshape(b, u) }"""
    found = _found(tmp_path, text)
    assert isinstance(found, str) and "Reshape" in found


def _sum_of(p: str, s: str) -> tuple[Any, ...]:
    return (
        f"float[n, {p}, 4] past, float[n, {s}, 4] new, float[n, total] m",
        "x = Concat<axis = 1>(past, new) k = Gather(l, one)",
        {"total": f"{p} + {s}"},
        {"past": (4, 2, 4), "new": (4, 3, 4), "m": (4, 5)},
        {"m": (4, 2)},
    )


SUMS = {
    "a length that is the sum of two others": _sum_of("p", "s"),
    "a sum of names that mean something in Python": _sum_of("in", "lambda"),
    "a sum that is too long to be read": _sum_of("p" * 120, "s" * 120),
    "a length that the file calls a sum": (
        'float[n, p, 4] x, float[n, "p + 1"] m',
        "k0 = Gather(l, one) k = Sub(k0, one)",
        {"p + 1": "p + 1"},
        {"x": (4, 5, 4), "m": (4, 6)},
        {"m": (4, 3)},
    ),
}


@pytest.mark.parametrize("case", SUMS.values(), ids=SUMS)
def test_lengths_that_rows_depend_on_are_checked_when_fed(tmp_path: Path, case: Any) -> None:
    """Rows are gathered by one length of inputs that have another: only where both are equal are they a row's
    own. ONNX Runtime does not hold a model to its symbols, so others may be fed, and nothing is cut then."""
    inputs, length, sums, fits, odd = case
    nodes = f"l = Shape(m) {length} N = Gather(l, zero) r = Range(zero, N, one) o = Mul(r, k)"
    text = f"g ({inputs}) => (float[n, 4] z) {{ {NUMBERS} {nodes} f = Reshape(x, rest) z = Gather(f, o) }}"
    path = graphs.save(tmp_path / "model.onnx", text, {})
    found = batch_axes(read_model(path))
    assert isinstance(found, BatchAxes) and found.lengths == sums
    folder = tmp_path / "slices"
    sharding.slice_model(path, 2, folder, options=SliceOptions(strategy="data"))
    given = [{name: graphs.array(*shape) for name, shape in shapes.items()} for shapes in (fits, fits | odd)]

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(folder, communicator=world, threads=1)
        return [array for feeds in given for array in loaded.run(feeds)]

    plain = graphs.session(path, optimized=False)
    wanted = [array for feeds in given for array in plain.run(None, feeds)]
    for results in on_ranks(2, work):
        assert all(map(np.array_equal, results, wanted))


@pytest.mark.parametrize(
    "name", ["batch-size", "batch + size", "batch/size", "size*2", "batch·size", "8", "2 * 2"]
)
def test_a_name_that_reads_as_an_expression_demands_nothing(tmp_path: Path, name: str) -> None:
    """Where the rows are computed apart for any lengths, inputs are cut, whatever their axes are called."""
    inputs = f'float[n, "{name}", 4] x, float[n, batch] b, float[n, size] s'
    nodes = "{ y = Relu(x) c = Concat<axis = 1>(b, s) z = Relu(c) }"
    path = graphs.save(
        tmp_path / "model.onnx", f"g ({inputs}) => (float[n, k, 4] y, float[n, m] z) {nodes}", {}
    )
    found = batch_axes(read_model(path))
    assert isinstance(found, BatchAxes)
    assert (found.inputs, found.outputs, found.lengths) == ({"x": 0, "b": 0, "s": 0}, {"y": 0, "z": 0}, {})
    assert found.names == (() if name in {"8", "2 * 2", "batch·size"} else (name,))  # so ranks ask for none
    shapes = {"x": ("n", name, 4), "b": ("n", "batch"), "s": ("n", "size")}
    specs = [TensorSpec(key, np.dtype(np.float32), shape) for key, shape in shapes.items()]
    assert unlike(specs, [(4, 5, 4), (4, 3), (4, 7)], found.lengths) == ""  # so ranks cut the rows


NEEDED = """l = Shape(m) k0 = Gather(l, one) k = Sub(k0, one) N = Gather(l, zero) r = Range(zero, N, one)
 o = Mul(r, k) f = Reshape(x, rest) z = Gather(f, o)"""


def test_only_sums_that_rows_depend_on_are_demanded(tmp_path: Path) -> None:
    inputs = 'float[n, p, 4] x, float[n, "p + 1"] m, float[n, "p + 2"] a, float[n, "p*2"] b'
    text = (
        f"g ({inputs}) => (float[n, 4] z, float[n, c] y) {{ {NUMBERS} {NEEDED} y = Concat<axis = 1>(a, b) }}"
    )
    found = _found(tmp_path, text)
    assert isinstance(found, BatchAxes) and found.lengths == {"p + 1": "p + 1"}
    assert found.names == ("p + 2", "p*2")


def test_an_expression_of_a_sum_is_as_long_as_the_sum_makes_it(tmp_path: Path) -> None:
    inputs = 'float[n, p, 4] past, float[n, s, 4] new, float[n, total] t, float[n, "total + 1"] m'
    nodes = f"x = Concat<axis = 1>(past, new) {NEEDED} y = Relu(t)"
    found = _found(tmp_path, f"g ({inputs}) => (float[n, 4] z, float[n, total] y) {{ {NUMBERS} {nodes} }}")
    assert isinstance(found, BatchAxes), found
    assert found.lengths == {"total": "p + s", "total + 1": "total + 1"}


class _Proofs:
    """Proofs whose ends are given, of lengths that two nodes may want to be equal."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[str]()

    def proof(self, _: object, __: object, lengths: Any) -> Any:
        def run() -> Any:
            self.asked.append(lengths)
            return self.answers[lengths]

        node = SimpleNamespace(domain="", lengths=lengths)
        return SimpleNamespace(whole=SimpleNamespace(model=SimpleNamespace(graph=[node])), run=run)


@pytest.mark.parametrize(
    ("answers", "asked", "found"),
    [
        ({"equal": BatchAxes({"x": 0}), "one": "no", "other": BatchAxes()}, ["equal", "one"], "no"),
        ({"equal": "none", "one": "no", "other": BatchAxes()}, ["equal"], "none"),
        ({"equal": BatchAxes(), "other": BatchAxes({"x": 1})}, ["equal", "other"], BatchAxes({"x": 1})),
        ({}, [], "not known"),
        ({str(i): BatchAxes() for i in range(proofs_of_batches.MAX_CASES)}, [], "not known"),
    ],
)
def test_each_way_in_which_lengths_go_together_is_proved(
    answers: dict[str, Any], asked: list[str], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails ends it, whatever is proved of the others."""
    proofs = _Proofs(answers)
    monkeypatch.setattr(proofs_of_batches, "_Proof", proofs.proof)
    monkeypatch.setattr(proofs_of_batches, "meeting_of", lambda node: True if node.lengths == "all" else None)
    monkeypatch.setattr(proofs_of_batches, "_cases", lambda *_: list(answers))
    monkeypatch.setattr(proofs_of_batches, "shown_node", lambda _: "a node")
    given: Any = "all"
    result = proofs_of_batches._Attempt(given, {}).run(given)
    assert proofs.asked == asked and (result == found or found in str(result))
