"""Nodes that are alike but for names are asked about once; those that differ otherwise are told apart."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import onnx.reference
import onnx_ir as ir
import pytest

from sharding.graph import fold, node_types
from sharding.graph.alike import alike, array_of, content
from sharding.graph.fold import evaluate
from sharding.graph.values import initializer


def node(op_type: str, *arrays: Any, name: str = "a", **attributes: Any) -> ir.Node:
    """A node on constants; all names start with ``name``."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18})
    inputs = [initializer(f"{name}{i}", ir.tensor(array), graph) for i, array in enumerate(arrays)]
    made = ir.node(op_type, inputs, attributes)
    made.outputs[0].name = f"{name}_out"
    graph.append(made)
    return made


def value(made: ir.Node) -> Any:
    found = evaluate(made, 18)
    assert found is not None
    return found.numpy()


def test_what_is_alike_is_evaluated_once() -> None:
    fold._known_result.cache_clear()
    array = np.arange(7, 13, dtype=np.int64)
    with mock.patch.object(
        onnx.reference, "ReferenceEvaluator", wraps=onnx.reference.ReferenceEvaluator
    ) as asked:
        first, second = (value(node("Neg", array, name=name)) for name in "ab")
    assert asked.call_count == 1
    np.testing.assert_array_equal(first, -array)
    second[:] = 0  # each has its own
    np.testing.assert_array_equal(value(node("Neg", array, name="c")), -array)


DIFFERING: dict[str, list[tuple[ir.Node, Any]]] = {
    "values": [(node("Neg", np.array([n])), [-n]) for n in (1, 2)],
    "shapes": [(node("Shape", np.zeros(shape, np.int64)), list(shape)) for shape in ((2, 3), (3, 2), (6,))],
    "types": [(node("Abs", np.array([-128], kind)), [n]) for kind, n in ((np.int8, -128), (np.int16, 128))],
    "attributes": [(node("Concat", *[np.zeros((1, 2), np.int64)] * 2, axis=axis), rows) for axis, rows in (
        (0, [[0, 0], [0, 0]]), (1, [[0, 0, 0, 0]]))],
    "tensors": [(node("ConstantOfShape", np.array([2]), value=ir.tensor([n])), [n, n]) for n in (5, 6)],
    "operators": [(node(op, np.array([3]), np.array([2])), [n]) for op, n in (("Add", 5), ("Mul", 6))],
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERING)
def test_what_differs_is_not_mixed_up(what: str) -> None:
    for _ in range(2):
        for made, expected in DIFFERING[what]:
            made.outputs[0].shape = ir.Shape(np.shape(expected))
            assert value(made).tolist() == expected


def test_the_two_zeros_are_told_apart() -> None:
    """They are equal, but what is divided by them is not."""
    for zero in (0.0, -0.0, 0.0):
        made = node("Pad", np.array([1.0], np.float32), pads=[0, 1], mode="constant", value=zero)
        made.outputs[0].shape = ir.Shape([2])
        found = evaluate(made, 10)
        assert found is not None
        assert np.signbit(found.numpy()).tolist() == [False, np.signbit(zero)]


def test_types_follow_from_what_is_given() -> None:
    """The same node with other shapes, symbols and constants."""
    for shape, axes, expected in (
        (["n", 3], [0], [1, "n", 3]),
        (["m", 3], [0], [1, "m", 3]),
        (["m", 3], [1], ["m", 1, 3]),
        ([2, 3], [1], [2, 1, 3]),
    ):
        made = node("Unsqueeze", np.zeros(1, np.float32), np.array(axes))
        made.replace_input_with(
            0, ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        )
        found = node_types.infer(made, 18, 9)["a_out"].tensor_type
        assert [axis.dim_param or axis.dim_value for axis in found.shape.dim] == expected
        assert found.elem_type == onnx.TensorProto.FLOAT


@pytest.mark.parametrize(
    "array", [np.array(3), np.zeros((0, 2), np.int32), np.array([[1.5, -0.0]]), np.array(True)]
)
def test_an_array_is_known_by_its_content(array: Any) -> None:
    known = content(array)
    assert known is not None and known == content(array.copy())
    again = array_of(known)
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_texts_and_bodies_are_not_compared() -> None:
    for texts in (np.array(["a"], object), np.array(["a"]), np.array([b"a"])):
        assert content(texts) is None
    texts = ir.serde.deserialize_tensor(onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [1], [b"a"]))
    assert alike(ir.node("ConstantOfShape", [ir.Value(name="n")], {"value": texts})) is None
    body = ir.Graph([], [], nodes=[], name="body")
    assert alike(ir.node("If", [ir.Value(name="c")], {"then_branch": body, "else_branch": body})) is None
