"""What is computed while slicing is what ONNX Runtime computes: partly known shapes, small constants."""

import contextlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import ShardrunError
from sharding.graph import fold
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import Array, array

PICK = "one = Constant<value = int64 {1}>() p = Gather(r, one) y = Neg(p)"


@pytest.mark.parametrize(
    ("kind", "body", "constants"),
    [
        pytest.param(
            "int64", "f = Cast<to = 1>(s) d = Div(f, c) m = Mul(d, c) r = Cast<to = 7>(m)", {}, id="float"
        ),
        pytest.param("int64", "b = Cast<to = 9>(s) r = Cast<to = 7>(b)", {}, id="bool"),
        pytest.param("int64", "b = Cast<to = 3>(s) r = Cast<to = 7>(b)", {}, id="int8"),
        pytest.param(
            "int64", "m = Mul(s, k) r = Mul(m, k)", {"k": np.asarray([1, 1 << 40])}, id="int64 wraps"
        ),
        pytest.param(
            "int32",
            "i = Cast<to = 6>(s) m = Mul(i, k) r = Mul(m, k)",
            {"k": np.asarray([1, 1 << 20], np.int32)},
            id="int32 wraps",
        ),
        pytest.param(
            "int64",
            "n = Sub(s, k) r = Div(n, t)",
            {"k": np.asarray([600]), "t": np.asarray([7])},
            id="negative",
        ),
    ],
)
def test_partly_known_shapes(tmp_path: Path, kind: str, body: str, constants: dict[str, Array]) -> None:
    """Of [n, 500] the first length is a symbol, so that shape arithmetic alone follows the second."""
    head = "t2 = Shape(z) c = Cast<to = 1>(t2)" if "Div(f, c)" in body else ""
    text = f"g (float[n, 500] x, float[n, 3] z) => ({kind} y) {{ s = Shape(x) {head} {body} {PICK} }}"
    path = graphs.save(tmp_path / "model.onnx", text, constants)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(2, 500), "z": array(2, 3)}, tolerance=0)


def test_an_unsqueeze_to_two_axes(tmp_path: Path) -> None:
    text = """g (float[n, 5] x) => (int64[1, 2] y) {
      s = Shape(x)
      first = Constant<value = int64 {0}>()
      l = Gather(s, first)
      u = Unsqueeze(l, axes)
      c = Concat<axis = 1>(u, u)
      y = Neg(c)
    }"""
    path = graphs.save(tmp_path / "model.onnx", text, {"axes": np.asarray([0, 1])})
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(2, 5)}, tolerance=0)


INTEGERS = ["int64", "int32", "int8", "uint8", "uint64"]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Equal", "Less"]
UNARY = [
    "Neg",
    "Abs",
    "Sign",
    "ReduceSum",
    "ReduceProd",
    "ReduceMax",
    "ReduceSumSquare",
    "CumSum",
    "Identity",
]


@pytest.mark.parametrize("kind", INTEGERS)
def test_folded_integers(tmp_path: Path, kind: str) -> None:
    """Operators on small constants; ONNX Runtime says which it can run on this type."""
    a = np.asarray([-7, 7, -8, 5, 0, 127]).astype(kind)
    b = np.asarray([2, 1, 3, 4, 4, 1]).astype(kind)
    checked = 0
    for op in (*BINARY, *UNARY):
        inputs = "a, b" if op in BINARY else "a, zero" if op == "CumSum" else "a"
        result = "bool" if op in {"Equal", "Less"} else kind
        text = f"g () => ({result} y) {{ t = {op}({inputs}) y = Identity(t) }}"
        path = graphs.save(
            tmp_path / "model.onnx", text.replace(" y)", "[k] y)"), {"a": a, "b": b, "zero": np.asarray(0)}
        )
        try:
            lockstep.reference(path, {})
        except Exception:  # not implemented for this type
            continue
        sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
        lockstep.assert_same(tmp_path / "slices", path, {}, tolerance=0)
        checked += 1
    assert checked >= 8


@pytest.mark.parametrize("to", [1, 2, 3, 6, 7, 9, 10, 11, 13])
def test_folded_casts(tmp_path: Path, to: int) -> None:
    for kind in ("float32", "float64", "int64", "int8"):
        values = np.asarray([1.5, 2.5, 3.5, 0.0, 100.0, 7.9]).astype(kind)
        body = f"g () => (float[k] y) {{ t = Cast<to = {to}>(a) y = Cast<to = 1>(t) }}"
        path = graphs.save(tmp_path / "model.onnx", body, {"a": values})
        sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
        lockstep.assert_same(tmp_path / "slices", path, {}, tolerance=0)


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        pytest.param("t = Slice(a, s, e, zero, minus)", {"a": np.arange(5)}, id="Slice"),
        pytest.param("h = Shape(x) t = Slice(h, s, e, zero, minus)", {}, id="Slice of a shape"),
        pytest.param(  # whose length is not inferred before it could be computed
            "begin = Neg(far) t = Slice(a, begin, e, zero, minus)",
            {"a": np.arange(5), "far": np.asarray([100])},
            id="Slice from a computed place",
        ),
        pytest.param("t = ReduceProd(a)", {"a": np.asarray([1 << 40, 1 << 40])}, id="ReduceProd"),
        pytest.param("t = Pow(a, b)", {"a": np.asarray([2, 3]), "b": np.asarray([64])}, id="Pow"),
        pytest.param(
            "r = Range(a, b, c) f = Ceil(r) t = Cast<to = 7>(f)",
            {"a": np.float32(-1.5), "b": np.float32(0.9), "c": np.float32(0.3)},
            id="Range",
        ),
        pytest.param(
            "t = Slice(a, s, last, zero, minus)", {"a": np.arange(5), "s": [3]}, id="Slice to an end"
        ),
        pytest.param(
            "h = Shape(x) t = Slice(h, s, last, zero, minus)", {"s": [3]}, id="Slice of a shape to an end"
        ),
        pytest.param("t = ReduceSum(a)", {"a": np.asarray([(1 << 53) + 1, 2])}, id="ReduceSum"),
        pytest.param("t = Max(a, b)", {"a": np.asarray([8, 29]), "b": np.asarray(1 << 31)}, id="Max"),
        pytest.param("t = Min(a, b)", {"a": np.asarray([8, 29]), "b": np.asarray(1 << 31)}, id="Min"),
        pytest.param(
            "t = OneHot(a, b, c)",
            {"a": np.asarray([1, 3, -3, -4, 7]), "b": np.asarray(3), "c": np.asarray([0, 5])},
            id="OneHot",
        ),
        pytest.param(
            "r = ReduceSum(a) t = Cast<to = 7>(r)",
            {"a": np.asarray([1 << 30, 1 << 30, 1 << 30], np.int32)},
            id="ReduceSum of int32",
        ),
        pytest.param(
            "t = Mod<fmod = 1>(a, b)",
            {"a": np.asarray([1830973869675903070]), "b": np.asarray([-613756736215])},
            id="Mod",
        ),
        pytest.param(
            "r = ReduceMax(a) t = Cast<to = 7>(r)",
            {"a": np.asarray([1, 7, 1, 7, 2, -2, np.nan, 9, -2, 0, 8, 0], np.float32)},
            id="ReduceMax",
        ),
        pytest.param("t = Shape<end = -5>(a)", {"a": np.zeros((2, 2, 1), np.int64)}, id="Shape"),
        pytest.param(
            "t = GatherElements<axis = 0>(a, b)",
            {"a": np.arange(70).reshape(70, 1), "b": np.zeros((70, 1), np.int64)},
            id="GatherElements",
        ),
    ],
)
def test_where_onnxs_reference_answers_otherwise(
    tmp_path: Path, body: str, constants: dict[str, Array]
) -> None:
    text = f"g (float[n, 4] x) => (int64[k] y) {{ {body} flat = Reshape(t, one) y = Neg(flat) }}"
    bounds = {"s": [-100], "e": [-(1 << 62)], "zero": [0], "minus": [-1], "last": [(1 << 63) - 1]}
    used = {name: np.asarray(value) for name, value in bounds.items() if f" {name}" in body}
    constants = {name: np.asarray(value) for name, value in constants.items()}
    used["one"] = np.asarray([-1])
    path = graphs.save(tmp_path / "model.onnx", text, {**used, **constants})
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 4)}, tolerance=0)


def test_texts_of_numbers(tmp_path: Path) -> None:
    """Of 1.0 ONNX Runtime makes "1"."""
    text = (
        "g () => (int64[k] y) { c = Cast<to = 8>(a) f = Cast<to = 8>(b) q = Equal(c, f) y = Cast<to = 7>(q) }"
    )
    constants = {"a": np.asarray([1], np.float32), "b": np.asarray([1])}
    path = graphs.save(tmp_path / "model.onnx", text, constants, opset=19)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    assert lockstep.reference(path, {})["y"] == [1]
    lockstep.assert_same(tmp_path / "slices", path, {}, tolerance=0)


def test_axes_added_in_any_order_before_opset_13(tmp_path: Path) -> None:
    text = """g (float[n, 3] x) => (int64[1, k, 3] y) {
      u = Unsqueeze<axes = [1, 0, 3]>(a) f = Reshape(u, three) e = Cast<to = 7>(x) y = Add(f, e)
    }"""
    # ONNX Runtime makes [1, 1, 3, 1] of it.
    constants = {"a": np.asarray([-6, -10, 5]), "three": np.asarray([0, 0, -1])}
    path = graphs.save(tmp_path / "model.onnx", text, constants, opset=12)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(2, 3)}, tolerance=0)


@pytest.mark.parametrize("field", ["s", "e", "a", "d"])
@pytest.mark.parametrize("data", ["k", "x"])
def test_a_slice_with_bounds_that_do_not_fit(tmp_path: Path, data: str, field: str) -> None:
    """What no runtime takes stays as it is, and ends with no error of Python's."""
    bounds = {"s": [-9], "e": [-99], "a": [0], "d": [-1]}
    for wrong in ([], [7, 7], [7]):
        given = {name: np.asarray(value, np.int64) for name, value in {**bounds, field: wrong}.items()}
        made = graphs.model(
            f"g (float[n, 4] x) => (float[m] y) {{ t = Slice({data}, s, e, a, d) y = Neg(t) }}",
            {**given, "k": np.arange(5, dtype=np.float32)},
        )
        onnx.save(made, tmp_path / "model.onnx")
        with contextlib.suppress(ShardrunError):
            sharding.plan_model(tmp_path / "model.onnx", 2, allow_replicated=True)


def test_rows_repeated_as_often_as_a_one_hot_says(tmp_path: Path) -> None:
    """torch's older exporter writes ``repeat_interleave`` so: each row's copies stay its own."""
    text = """g (float[n, 16] x) => (float[a, b] y) {
      m = MatMul(x, w) u = Unsqueeze(m, one) marks = OneHot(one, three, ends) times = Reshape(marks, minus)
      t = Tile(u, times) f = Flatten<axis = 2>(t) y = Relu(f)
    }"""
    numbers = {"one": [1], "three": 3, "ends": [1, 2], "minus": [-1]}
    constants = {name: np.asarray(value) for name, value in numbers.items()}
    path = graphs.save(tmp_path / "model.onnx", text, {**constants, "w": array(16, 8)})
    sharding.slice_model(path, 2, tmp_path / "slices", options=SliceOptions(strategy="data"))
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(4, 16)})


@pytest.mark.parametrize(
    "grows",
    ["ConstantOfShape(n)", "Expand(one, n)", "Tile(one, n)", "Range(zero, last, step)", "Pad(one, ends)"],
)
def test_what_may_be_huge_is_not_computed(grows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing says how long it is: a small file could take all memory."""

    def computed(*_: object) -> None:
        pytest.fail("it is computed")

    numbers = {"n": [1 << 40], "one": [1], "zero": 0, "last": 1 << 40, "step": 1, "ends": [0, 1 << 40]}
    used = {name: np.asarray(value) for name, value in numbers.items() if re.search(rf"\b{name}\b", grows)}
    made = graphs.model(f"g (int64[1] x) => (int64[m] y) {{ t = {grows} y = Add(t, x) }}", used)
    node = onnx_ir.serde.deserialize_model(made).graph[0]
    monkeypatch.setattr(fold, "_evaluated", computed)
    assert node.outputs[0].shape is None and fold.evaluate(node, 17) is None
