"""Models whose weights are replaced, and what plain ONNX Runtime makes of the file with the new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

    nodes: Callable[[], list[onnx.NodeProto]]
    weights: Values
    variable: tuple[str, ...]
    inputs: Mapping[str, Sequence[int | str]]
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
        inner = {name for item in self.nodes() for name in _held(item)}
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
        graph = helper.make_graph(self.nodes(), "graph", inputs, outputs, list(tensors.values()))
        opsets = [helper.make_opsetid("", 19)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)
        onnx.save(
            model,
            path,
            save_as_external_data=self.external,
            location=f"{path.name}.data" if self.external else None,
            size_threshold=0,
        )
        return path


def _held(item: onnx.NodeProto) -> list[str]:
    """The weights that a node itself holds."""
    held = list(item.output) if item.op_type == "Constant" else []
    for attribute in item.attribute:
        held += [tensor.name for tensor in attribute.g.initializer]
    return held


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


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


def _body(outputs: Sequence[str], nodes: list[onnx.NodeProto], weights: Values | None = None) -> Any:
    return helper.make_graph(
        nodes,
        "body",
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )


def _if_nodes() -> list[onnx.NodeProto]:
    """x @ w where the sum of x is positive, else x @ own, which the other body holds itself."""
    then = _body(["a"], [node("MatMul", ["x", "w"], ["a"])])
    other = _body(["b"], [node("MatMul", ["x", "own"], ["b"])], {"own": numbers(4, 5, seed=8)})
    return [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
    ]


def _loop_nodes() -> list[onnx.NodeProto]:
    """Three times x = x @ w."""
    body = helper.make_graph(
        [node("MatMul", ["before", "w"], ["after"]), node("Identity", ["go"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, None),
        ],
    )
    return [node("Loop", ["times", "", "x"], ["y"], body=body)]


W = numbers(4, 5)
CASES = {
    "direct": Case(lambda: [node("MatMul", ["x", "w"], ["y"])], {"w": W}, ("w",), {"x": ["n", 4]}),
    "transposed": Case(
        lambda: [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])],
        {"w": W.T.copy()},
        ("w",),
        {"x": ["n", 4]},
    ),
    "several steps": Case(
        lambda: [
            node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
            node("Mul", ["c", "scale"], ["m"]),
            node("Reshape", ["m", "shape"], ["r"]),
            node("MatMul", ["x", "r"], ["y"]),
        ],
        {
            "w": numbers(20, dtype=np.float16),
            "scale": np.array(2, np.float32),
            "shape": np.array([4, 5], np.int64),
        },
        ("w",),
        {"x": ["n", 4]},
    ),
    "dequantized": Case(
        lambda: [
            node("DequantizeLinear", ["w", "scale", "zero"], ["d"], axis=1),
            node("MatMul", ["x", "d"], ["y"]),
        ],
        {
            "w": np.random.default_rng(0).integers(-128, 128, (4, 5)).astype(np.int8),
            "scale": np.abs(numbers(5)) + 0.1,
            "zero": np.arange(5, dtype=np.int8),
        },
        ("w", "scale"),
        {"x": ["n", 4]},
        optimized=False,
    ),
    "used raw and prepared": Case(
        lambda: [
            node("Transpose", ["w"], ["t"], perm=[1, 0]),
            node("MatMul", ["x", "w"], ["h"]),
            node("MatMul", ["h", "t"], ["y"]),
        ],
        {"w": W},
        ("w",),
        {"x": ["n", 4]},
    ),
    "two together": Case(
        lambda: [
            node("Add", ["w", "v"], ["s"]),
            node("Neg", ["v"], ["m"]),
            node("MatMul", ["x", "s"], ["h"]),
            node("Add", ["h", "b"], ["k"]),
            node("Transpose", ["m"], ["m2"], perm=[1, 0]),
            node("MatMul", ["k", "m2"], ["y"]),
        ],
        {"w": W, "v": numbers(4, 5, seed=4), "b": numbers(5)},
        ("w", "v", "b"),
        {"x": ["n", 4]},
    ),
    "shape of a weight": Case(
        lambda: [
            node("Shape", ["w"], ["s"]),
            node("ConstantOfShape", ["s"], ["ones"], value=helper.make_tensor("v", 1, [1], [3.0])),
            node("Add", ["w", "ones"], ["more"]),
            node("MatMul", ["x", "more"], ["y"]),
        ],
        {"w": W},
        ("w",),
        {"x": ["n", 4]},
    ),
    "tied": Case(
        lambda: [
            node("Gather", ["w", "i"], ["rows"]),
            node("MatMul", ["x", "w"], ["h"]),
            node("MatMul", ["h", "t"], ["z"]),
            node("Add", ["z", "rows"], ["y"]),
        ],
        {"w": numbers(4, 4), "t": numbers(4, 4, seed=3), "i": np.array([2], np.int64)},
        ("w",),
        {"x": ["n", 4]},
    ),
    "convolution": Case(
        lambda: [
            node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"]),
            node("Relu", ["n"], ["y"]),
        ],
        {
            "k": numbers(8, 3, 3, 3),
            "b": numbers(8),
            **{name: numbers(8, seed=ord(name)) for name in "gsm"},
            "v": np.abs(numbers(8)) + 0.5,
        },
        ("k", "g"),
        {"x": ["n", 3, 9, 9]},
    ),
    "bodies of If": Case(
        _if_nodes,
        {"w": W, "zero": np.array(0, np.float32), "own": numbers(4, 5, seed=8)},
        ("w", "own"),
        {"x": ["n", 4]},
    ),
    "body of Loop": Case(
        _loop_nodes,
        {"w": numbers(4, 4), "times": np.array(3, np.int64)},
        ("w",),
        {"x": ["n", 4]},
    ),
    "input as well": Case(
        lambda: [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])],
        {"w": W.T.copy()},
        ("w",),
        {"x": ["n", 4]},
        inputs_too=("w",),
    ),
    "IR version 3": Case(
        lambda: [node("Mul", ["w", "c"], ["t"]), node("MatMul", ["x", "t"], ["y"])],
        {"w": W, "c": numbers(5)},
        ("w",),
        {"x": ["n", 4]},
        inputs_too=("w", "c"),
        ir_version=3,
    ),
    "Constant node": Case(
        lambda: [
            node("Constant", [], ["w"], value=numpy_helper.from_array(W)),
            node("MatMul", ["x", "w"], ["y"]),
        ],
        {"w": W},
        ("w",),
        {"x": ["n", 4]},
    ),
    "outputs": Case(
        lambda: [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "w"], ["y"])],
        {"w": W},
        ("w",),
        {"x": ["n", 4]},
        outputs=("y", "w", "t"),
    ),
    "external data": Case(
        lambda: [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])],
        {"b": numbers(5), "w": W},
        ("w",),
        {"x": ["n", 4]},
        external=True,
    ),
    "a shape": Case(
        lambda: [
            node("MatMul", ["x", "w"], ["h"]),
            node("Transpose", ["h"], ["t"], perm=[1, 0]),
            node("Reshape", ["t", "s"], ["y"]),
        ],
        {"w": numbers(4, 6), "s": np.array([2, 3, -1], np.int64)},
        ("s",),
        {"x": ["n", 4]},
    ),
    "float16": Case(
        lambda: [node("MatMul", ["x", "w"], ["y"])],
        {"w": W.astype(np.float16)},
        ("w",),
        {"x": ["n", 4]},
        element=TensorProto.FLOAT16,
        out_element=TensorProto.FLOAT16,
    ),
    "bfloat16": Case(
        lambda: [
            node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
            node("MatMul", ["x", "c"], ["y"]),
        ],
        {"w": W.astype(ml_dtypes.bfloat16)},
        ("w",),
        {"x": ["n", 4]},
    ),
    "empty": Case(
        lambda: [node("Concat", ["x", "w"], ["y"], axis=0)],
        {"w": np.empty((0, 4), np.float32)},
        ("w",),
        {"x": ["n", 4]},
    ),
}
"""Ways in which models hold and use weights."""
