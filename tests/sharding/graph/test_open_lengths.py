"""Open lengths that follow through operators: what is said of a shape is what ONNX Runtime gives it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as errors

import sharding
from sharding.graph.open_lengths import _conv, refine_inputs
from sharding.graph.shape_values import known
from sharding.graph.symbols import MADE_UP
from sharding.graph.values import shape_of
from sharding.reading.read import read_model
from sharding.rules.products import length_of, product
from sharding.slices.expressions import MARK
from tests.sharding import graphs, lockstep

NUMBERS = {"zero": [0], "one": [1], "two": [2], "last": [2**63 - 1], "parts": [4, 4]}
CUT = "sh = Shape(x) n = Slice(sh, one, two) m = Slice(mask, zero, n, zero) "
CASES = {
    # What is computed, and the lengths of r: None where they are not known.
    "mask added": (CUT + "r = Add(x, m)", ("batch", "seq")),
    "mask first": (CUT + "r = Mul(m, x)", ("batch", "seq")),
    "mask chosen": (CUT + "c = Greater(m, x) r = Where(c, x, m)", ("batch", "seq")),
    "two masks": (CUT + "a = Add(m, m) c = Add(a, x) r = Sub(c, m)", ("batch", "seq")),
    "mask alone": (CUT + "r = Add(m, m)", (None,)),
    "mask of another length": (
        "sh = Shape(x) n = Slice(sh, zero, one) m = Slice(mask, zero, n, zero) u = Unsqueeze(m, one) "
        "r = Add(u, m)",
        (None, None),
    ),
    "mask from the second on": (
        "sh = Shape(x) n = Slice(sh, one, two) m = Slice(mask, one, n, zero) u = Unsqueeze(m, one) "
        "r = Add(x, u)",
        (None, "seq"),
    ),
    "one after the other": ("a = Neg(x) r = Concat<axis = 0>(x, a, x)", (f"3{MARK}batch", "seq")),
    "and apart": (
        "a = Neg(x) c = Concat<axis = 1>(x, a) d = Relu(c) r, e = Split<axis = 1, num_outputs = 2>(d)",
        ("batch", "seq"),
    ),
    "of two lengths": ("t = Transpose(x) s = Concat<axis = 0>(t, y) r = Neg(s)", (None, "batch")),
    "conv": ("u = Unsqueeze(x, one) r = Conv<kernel_shape = [1]>(u, w1)", ("batch", 4, "seq")),
    "conv with a bias": ("u = Unsqueeze(x, one) r = Conv<pads = [1, 1]>(u, w3, b)", ("batch", 4, "seq")),
    "conv to one side": ("u = Unsqueeze(x, one) r = Conv<pads = [2, 0]>(u, w3)", ("batch", 4, "seq")),
    "conv dilated": (
        "u = Unsqueeze(x, one) r = Conv<pads = [2, 2], dilations = [2]>(u, w3)",
        ("batch", 4, "seq"),
    ),
    "conv without padding": ("u = Unsqueeze(x, one) r = Conv(u, w3)", ("batch", 4, None)),
    "conv with steps": (
        "u = Unsqueeze(x, one) r = Conv<strides = [2], pads = [1, 1]>(u, w3)",
        ("batch", 4, None),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lengths(tmp_path: Path, name: str) -> None:
    body, expected = CASES[name]
    weights = {key: np.asarray(value, np.int64) for key, value in NUMBERS.items()}
    weights |= {"mask": graphs.array(8), "w1": graphs.array(4, 1, 1), "w3": graphs.array(4, 1, 3)}
    weights |= {"b": graphs.array(4)}
    axes = ", ".join("abcd"[: len(expected)])
    given = "float[batch, seq] x" + (", float[other, batch] y" if "y)" in body else "")
    text = f"g ({given}) => (float[{axes}] r) {{ {body} }}"
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    graph = read_model(path).model.graph
    (found,) = (shape_of(value) for node in graph for value in node.outputs if value.name == "r")
    lengths = tuple(None if str(length).startswith("unk__") else length for length in found or ())
    assert lengths == expected
    session = onnxruntime.InferenceSession(
        onnx.load(path).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for batch, seq in ((3, 5), (1, 1), (2, 8), (8, 1), (1, 3)):
        feeds = {"x": graphs.array(batch, seq)} | ({"y": graphs.array(6, batch)} if "y)" in body else {})
        try:
            shape = session.run(["r"], feeds)[0].shape
        except (errors.Fail, errors.InvalidArgument):
            continue  # a mask and a length that do not fit, a kernel longer than what it is for
        known = {"batch": batch, "seq": seq, f"3{MARK}batch": 3 * batch}
        assert all(
            length is None or known.get(length, length) == own
            for length, own in zip(lengths, shape, strict=True)
        )


def test_resized_to_the_size_of_another(tmp_path: Path) -> None:
    """Batch and channels stay as many where the sizes say so, and each rank resizes its own channels."""
    text = """g (float[batch, 3, high, wide] x) => (float[batch, 8, high, wide] y) {
      d = Conv<strides = [2, 2]>(x, w1) sd = Shape(d) own = Slice(sd, zero, two)
      sx = Shape(x) space = Slice(sx, two, last) sizes = Concat<axis = 0>(own, space)
      r = Resize<mode = "nearest">(d, , , sizes) y = Conv(r, w2)
    }"""
    weights = {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}
    weights |= {"w1": graphs.array(16, 3, 1, 1), "w2": graphs.array(8, 16, 1, 1)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    for ranks in (2, 4):
        assert sharding.plan_model(path, ranks).collective_counts() == {"AllReduce": 1}
        sharding.slice_model(path, ranks, tmp_path / str(ranks))
        for shape in ((2, 3, 8, 6), (1, 3, 5, 7)):
            lockstep.assert_same(tmp_path / str(ranks), path, {"x": graphs.array(*shape)}, tolerance=1e-5)


U = MADE_UP


@pytest.mark.parametrize(
    ("shape", "operator", "target", "found"),
    [
        # The rows of the matrix, wherever the axis is not a number already.
        (["n", f"{U}1"], "MatMul", [5, 3], ["n", 5]),
        (["n", "m"], "MatMul", [5, 3], ["n", 5]),
        (["n", f"{U}1"], "MatMul", ["m", 3], ["n", "m"]),
        (["n", "m"], "MatMul", ["k", 3], None),
        (["n", 5], "MatMul", ["k", 3], None),
        (["n", f"{U}1"], "MatMul", [5], None),
        (["n", f"{U}1"], "MatMul", [f"{U}2", 3], None),
        # As many elements as the shape that it is given.
        (["n", f"{U}1", 4], "Reshape", ["n", 24], ["n", 6, 4]),
        (["n", f"{U}1", 4], "Reshape", ["n", "m", 8], ["n", f"2{MARK}m", 4]),
        (["n", None], "Reshape", ["n", 24], ["n", 24]),
        (["n", f"{U}1"], "Reshape", ["n", -1], None),
        (["n", f"{U}1"], "Reshape", ["n", 0], None),
        (["n", f"{U}1", 5], "Reshape", ["n", 24], None),
        (["n", f"{U}1"], "Reshape", None, None),
        (["n", f"{U}1", f"{U}2"], "Reshape", ["n", 24], None),
        (["n", 24], "Reshape", ["n", 24], None),
    ],
)
def test_lengths_that_a_reader_demands(
    shape: list[Any], operator: str, target: list[Any] | None, found: list[Any] | None
) -> None:
    value, other = ir.Value(name="v", shape=ir.Shape(shape)), ir.Value(name="w")
    if operator == "MatMul":
        other.shape = ir.Shape(target)
    node = ir.Node("", operator, [value, other])
    changed = refine_inputs(node, lambda _: None if target is None else known(target))
    assert changed == (set() if found is None else {value})
    assert value.shape == ir.Shape(shape if found is None else found)


@pytest.mark.parametrize(("steps", "found"), [(0, True), (3, True), (4, False)])
def test_scores_are_as_long_as_without_their_mask(steps: int, found: bool) -> None:
    """Where two axes are open: by the nodes before, a few of them, that take each element by itself."""
    scores = ir.Value(name="s", shape=ir.Shape(["batch", "seq", "seq"]))
    mask = ir.Value(name="m", shape=ir.Shape(["rows", 1, "keys"]))
    value, vague = scores, ir.Shape(["batch", f"{U}1", f"{U}2"])
    for place in range(steps + 1):
        inputs = [value, mask] if place == 0 else [value]
        (value,) = ir.Node("", "Neg" if place else "Add", inputs).outputs
        value.shape = vague
    target = known(["batch", length_of(product(["seq", "seq"]))])
    changed = refine_inputs(ir.Node("", "Reshape", [value, ir.Value(name="to")]), lambda _: target)
    assert changed == ({value} if found else set())
    assert value.shape == (scores.shape if found else vague)


@pytest.mark.parametrize(
    ("more", "data", "kernel", "found"),
    [
        ({"pads": [1, 1]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, "l"]),
        ({"pads": [2, 0]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, "l"]),
        ({"pads": [1, 2]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, None]),
        ({"pads": [1, 1]}, ["n", 3, "l"], [4, 3, 5], ["n", 4, None]),
        ({"pads": [1, 1]}, ["n", 3, "l"], [4, 3, None], ["n", 4, None]),
        ({"pads": [1, 1], "strides": [2]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, None]),
        ({"pads": [2, 2], "dilations": [2]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, "l"]),
        ({"pads": [1, 1], "dilations": [2]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, None]),
        ({}, ["n", 3, "l"], [4, 3, 1], ["n", 4, "l"]),
        ({"pads": [1, 0, 1, 0]}, ["n", 3, "h", "w"], [4, 3, 3, 3], ["n", 4, "h", None]),
        ({"pads": [0, 1, 0, 1]}, ["n", 3, "h", "w"], [4, 3, 1, 3], ["n", 4, "h", "w"]),
        ({"auto_pad": "SAME_UPPER"}, ["n", 3, "l"], [4, 3, 3], None),
        ({"auto_pad": "NOTSET", "pads": [1, 1]}, ["n", 3, "l"], [4, 3, 3], ["n", 4, "l"]),
        ({"pads": [1]}, ["n", 3, "l"], [4, 3, 3], None),
        ({"pads": [1, 1], "strides": [1, 1]}, ["n", 3, "l"], [4, 3, 3], None),
        ({"pads": [1, 1], "dilations": [1, 1]}, ["n", 3, "l"], [4, 3, 3], None),
        ({"pads": [1, 1]}, ["n", "l"], [4, 3, 3], None),
        ({"pads": [1, 1]}, ["n", 3, "l"], None, None),
    ],
)
def test_axes_that_a_convolution_keeps(
    more: dict[str, Any], data: list[Any], kernel: list[Any] | None, found: list[Any] | None
) -> None:
    attributes = [
        ir.AttrString(name, item) if isinstance(item, str) else ir.AttrInt64s(name, item)
        for name, item in more.items()
    ]
    node = ir.Node("", "Conv", [ir.Value(name="x"), ir.Value(name="w")], attributes)
    shapes: list[Any] = [data] if kernel is None else [data, kernel]
    assert _conv(node, shapes, ["n", 4, *[None] * (len(data) - 2)]) == found
