"""Models whose weights are replaced, and what plain ONNX Runtime makes of the file with the new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.sharding import graphs

Array = np.ndarray[Any, np.dtype[Any]]
Values = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """A model and the weights of it that are replaced."""

    text: str
    """Its nodes."""
    weights: Values
    variable: tuple[str, ...] = ("w",)
    inputs: Mapping[str, Sequence[int | str]] = field(default_factory=lambda: {"x": ["n", 4]})
    outputs: tuple[str, ...] = ("y",)
    element: int = TensorProto.FLOAT
    inputs_too: tuple[str, ...] = ()
    """Weights that are inputs of the graph as well."""
    ir_version: int = 8
    external: bool = False
    out_element: int = TensorProto.FLOAT
    optimized: bool = True
    """Whether ONNX Runtime's optimised answer is exact: a DequantizeLinear before a MatMul it fuses into a
    product of 8-bit numbers, which rounds the inputs too."""

    def save(self, path: Path) -> Path:
        """Writes the model."""
        nodes = onnx.parser.parse_graph(f"g () => () {{ {self.text} }}").node
        inner = {name for item in nodes for name in _held(item)}
        values = [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in self.weights.items()
            if name not in inner
        ]
        tensors = {tensor.name: tensor for tensor in values}
        inputs = [helper.make_tensor_value_info(n, self.element, s) for n, s in self.inputs.items()]
        inputs += [
            helper.make_tensor_value_info(name, tensors[name].data_type, tensors[name].dims)
            for name in self.inputs_too
        ]
        outputs = [helper.make_tensor_value_info(name, self.out_element, None) for name in self.outputs]
        graph = helper.make_graph(nodes, "graph", inputs, outputs, list(tensors.values()))
        opsets = [helper.make_opsetid("", 19)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)
        onnx.save(
            model,
            path,
            save_as_external_data=self.external,
            location=f"{path.name}.data",
            size_threshold=0,
        )
        return path


def _held(item: onnx.NodeProto) -> list[str]:
    """The weights that a node itself holds."""
    held = list(item.output) if item.op_type == "Constant" else []
    for attribute in item.attribute:
        held += [tensor.name for tensor in attribute.g.initializer]
    return held


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    array = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return np.asarray(array).astype(dtype)


def others(case: Case, seed: int = 1) -> dict[str, Array]:
    """New values for the variable weights, of their types and shapes."""
    found = {}
    for name in case.variable:
        old = case.weights[name]
        if old.dtype.kind in "iu":
            found[name] = np.random.default_rng(seed).permutation(old.reshape(-1)).reshape(old.shape)
        else:
            found[name] = numbers(*old.shape, seed=seed + 1, dtype=old.dtype)
    return found


def replaced(path: Path, values: Values, target: Path) -> Path:
    """The model file with other weights, wherever in it they are, written by onnx alone."""
    model = onnx.load(path)
    left = set(values)

    def change(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.name in values:
                tensor.CopyFrom(numpy_helper.from_array(np.asarray(values[tensor.name]), tensor.name))
                left.discard(tensor.name)
        for item in graph.node:
            for attribute in item.attribute:
                if item.op_type == "Constant" and item.output[0] in values:
                    value = numpy_helper.from_array(np.asarray(values[item.output[0]]))
                    attribute.t.CopyFrom(value)
                    left.discard(item.output[0])
                if attribute.type == onnx.AttributeProto.GRAPH:
                    change(attribute.g)

    change(model.graph)
    assert not left, f"{path} has no {left}"
    onnx.save(model, target)
    return target


def oracle(path: Path, feeds: Values, *, optimized: bool = True) -> list[Array]:
    """Plain ONNX Runtime's answer."""
    session = graphs.session(path, optimized=optimized)
    return [np.asarray(array) for array in session.run(None, dict(feeds))]


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The greatest relative error of any output."""
    assert len(found) == len(wanted)
    worst = 0.0
    for ours, right in zip(found, wanted, strict=True):
        assert ours.shape == right.shape and ours.dtype == right.dtype
        a, b = ours.astype(np.float64), right.astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30)))
    return worst


def _written(array: Array) -> str:
    """The numbers of an array, as text has them."""
    return ", ".join(map(str, array.reshape(-1).tolist()))


W = numbers(4, 5)
OWN = numbers(4, 5, seed=8)
CASES = {
    "direct": Case("y = MatMul(x, w)", {"w": W}),
    "transposed": Case("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", {"w": W.T.copy()}),
    "several steps": Case(
        "c = Cast<to = 1>(w) m = Mul(c, scale) r = Reshape(m, shape) y = MatMul(x, r)",
        {
            "w": numbers(20, dtype=np.float16),
            "scale": np.array(2, np.float32),
            "shape": np.array([4, 5], np.int64),
        },
    ),
    "dequantized": Case(
        "d = DequantizeLinear<axis = 1>(w, scale, zero) y = MatMul(x, d)",
        {
            "w": np.random.default_rng(0).integers(-128, 128, (4, 5)).astype(np.int8),
            "scale": np.abs(numbers(5)) + 0.1,
            "zero": np.arange(5, dtype=np.int8),
        },
        ("w", "scale"),
        optimized=False,
    ),
    "used raw and prepared": Case(
        "t = Transpose<perm = [1, 0]>(w) h = MatMul(x, w) y = MatMul(h, t)", {"w": W}
    ),
    "two together": Case(
        """s = Add(w, v)
        m = Neg(v)
        h = MatMul(x, s)
        k = Add(h, b)
        m2 = Transpose<perm = [1, 0]>(m)
        y = MatMul(k, m2)""",
        {"w": W, "v": numbers(4, 5, seed=4), "b": numbers(5)},
        ("w", "v", "b"),
    ),
    "shape of a weight": Case(
        """s = Shape(w)
        ones = ConstantOfShape<value = float[1] {3.0}>(s)
        more = Add(w, ones)
        y = MatMul(x, more)""",
        {"w": W},
    ),
    "tied": Case(
        "rows = Gather(w, i) h = MatMul(x, w) z = MatMul(h, t) y = Add(z, rows)",
        {"w": numbers(4, 4), "t": numbers(4, 4, seed=3), "i": np.array([2], np.int64)},
    ),
    "convolution": Case(
        "c = Conv<pads = [1, 1, 1, 1]>(x, k, b) n = BatchNormalization(c, g, s, m, v) y = Relu(n)",
        {
            "k": numbers(8, 3, 3, 3),
            "b": numbers(8),
            **{name: numbers(8, seed=ord(name)) for name in "gsm"},
            "v": np.abs(numbers(8)) + 0.5,
        },
        ("k", "g"),
        {"x": ["n", 3, 9, 9]},
    ),
    # x @ w where the sum of x is positive, else x @ own, which the other body holds itself.
    "bodies of If": Case(
        f"""total = ReduceSum<keepdims = 0>(x)
        positive = Greater(total, zero)
        y = If (positive) <
          then_branch = then () => (float[] a) {{ a = MatMul(x, w) }},
          else_branch = other () => (float[] b) <float[4, 5] own = {{{_written(OWN)}}}> {{
            b = MatMul(x, own)
          }}
        >""",
        {"w": W, "zero": np.array(0, np.float32), "own": OWN},
        ("w", "own"),
    ),
    # Three times x = x @ w.
    "body of Loop": Case(
        """y = Loop (times, , x) <body = b (int64 i, bool go, float[] before) => (bool go_on, float[] after) {
          after = MatMul(before, w)
          go_on = Identity(go)
        }>""",
        {"w": numbers(4, 4), "times": np.array(3, np.int64)},
    ),
    "input as well": Case(
        "t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", {"w": W.T.copy()}, inputs_too=("w",)
    ),
    "IR version 3": Case(
        "t = Mul(w, c) y = MatMul(x, t)", {"w": W, "c": numbers(5)}, inputs_too=("w", "c"), ir_version=3
    ),
    "Constant node": Case(
        f"w = Constant<value = float[4, 5] {{{_written(W)}}}>() y = MatMul(x, w)", {"w": W}
    ),
    "outputs": Case("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, w)", {"w": W}, outputs=("y", "w", "t")),
    "external data": Case("h = MatMul(x, w) y = Add(h, b)", {"b": numbers(5), "w": W}, external=True),
    "a shape": Case(
        "h = MatMul(x, w) t = Transpose<perm = [1, 0]>(h) y = Reshape(t, s)",
        {"w": numbers(4, 6), "s": np.array([2, 3, -1], np.int64)},
        ("s",),
    ),
    "float16": Case(
        "y = MatMul(x, w)",
        {"w": W.astype(np.float16)},
        element=TensorProto.FLOAT16,
        out_element=TensorProto.FLOAT16,
    ),
    "bfloat16": Case("c = Cast<to = 1>(w) y = MatMul(x, c)", {"w": W.astype(ml_dtypes.bfloat16)}),
    "empty": Case("y = Concat<axis = 0>(x, w)", {"w": np.empty((0, 4), np.float32)}),
}
"""Ways in which models hold and use weights."""
