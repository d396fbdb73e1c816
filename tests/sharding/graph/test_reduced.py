"""Reductions over the last axis of what is empty elsewhere: ONNX Runtime leaves that axis as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import sharding
from sharding.demands.options import SliceOptions
from tests.sharding import lockstep

WIDTH = 16
REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
    "ReduceSumSquare",
)
SHAPES = ((2, 3, WIDTH), (0, 3, WIDTH), (2, 0, WIDTH), (0, 0, WIDTH))

GRAPHS = {
    # The columns of a product are cut, and the sums of the parts are joined.
    "of a part": "h = MatMul(x, w) a = Abs(h) r = REDUCE<keepdims = 1>(a, last) e = Add(r, small) "
    "q = Reciprocal(e) n = Mul(h, q) y = MatMul(n, v)",
    "of a part, for the whole": "h = MatMul(x, w) a = Abs(h) r = REDUCE<keepdims = 1>(a, last) y = Mul(x, r)",
    # Whole on each rank, and broadcast to what is cut.
    "of the whole": "t = MatMul(x, w) u = MatMul(t, v) a = Abs(u) r = REDUCE<keepdims = 1>(a, last) "
    "e = Add(r, small) c = Sqrt(e) q = Cast<to = 1>(c) n = Div(u, q) h = MatMul(n, w) y = MatMul(h, v)",
    "of the whole, the part on the left": "h = MatMul(x, w) a = Abs(x) r = REDUCE<keepdims = 1>(a, last) "
    "n = Mul(h, r) y = MatMul(n, v)",
    "of two axes": "h = MatMul(x, w) a = Abs(h) r = REDUCE<keepdims = 1>(a, two) n = Mul(h, r) "
    "y = MatMul(n, v)",
}


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    """The weights are the constants of ``body``."""
    text = (
        f'<ir_version: 8, opset_import: ["": {opset}]> '
        f"g (float[batch, sequence, {WIDTH}] x) => (float[batch, sequence, {WIDTH}] y) "
        f"<float[{WIDTH}, {WIDTH}] w, float[{WIDTH}, {WIDTH}] v, "
        "float[1] small, int64[1] last, int64[2] two> "
        f"{{ {body} }}"
    )
    made = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    values = {
        "w": draw.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4,
        "v": draw.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4,
        "small": np.array([1e-3], np.float32),
        "last": np.array([-1]),
        "two": np.array([1, 2]),
    }
    del made.graph.initializer[:]
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name in used
    )
    return made


CASES = [("of a part", reduction) for reduction in REDUCTIONS]
CASES += [(graph, "ReduceMean") for graph in GRAPHS if graph != "of a part"]


@pytest.mark.parametrize(("graph", "reduction"), CASES)
def test_parts_are_as_long_as_the_whole(tmp_path: Path, graph: str, reduction: str) -> None:
    onnx.save(model(GRAPHS[graph].replace("REDUCE", reduction)), tmp_path / "model.onnx")
    _same(tmp_path)


def test_axes_as_an_attribute(tmp_path: Path) -> None:
    body = GRAPHS["of a part"].replace("REDUCE<keepdims = 1>(a, last)", "ReduceMean<axes = [-1]>(a)")
    onnx.save(model(body, 13), tmp_path / "model.onnx")
    _same(tmp_path)


def _same(folder: Path) -> None:
    path = folder / "model.onnx"
    sharding.slice_model(path, 2, folder / "slices", options=SliceOptions(allow_replicated=True))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        assert session.run(None, feeds)[0].shape == shape  # else it would say nothing of the parts
        lockstep.assert_same(folder / "slices", path, feeds)
