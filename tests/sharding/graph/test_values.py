"""Values, nodes and bodies of graphs: what they are, use and hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sharding.graph import values
from sharding.graph.constants import constant_tensor, constants_to_initializers
from sharding.graph.symbols import all_known, is_made_up, shown, shown_shape

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (bool c, float[n, 2] x, float[2] z) => (float[n, 2] y) <float[2] w = {1, 2}> {
  h = Add(x, w)
  y = If(c) <then_branch = a () => (float[n, 2] one) {
    inner = If(c) <then_branch = b () => (float[n, 2] q) { q = Add(h, z) },
                   else_branch = d () => (float[n, 2] x) { }>
    one = Mul(inner, w)
  }, else_branch = e () => (float[n, 2] last) <float[2] v = {3, 4}> { m = Neg(h) last = Mul(m, v) }>
}"""


@pytest.fixture
def graph() -> ir.Graph:
    return ir.serde.deserialize_model(onnx.parser.parse_model(TEXT)).graph


def node_of(graph: ir.Graph, op: str) -> ir.Node:
    return next(node for node in values.in_turn(graph) if node.op_type == op)


def test_bodies_and_what_they_use_from_outside(graph: ir.Graph) -> None:
    node = node_of(graph, "If")
    assert [name for name, _ in values.bodies(node)] == ["then_branch", "else_branch"]
    assert [body.name for body in values.subgraphs(node)] == ["a", "e"]
    assert [value.name for value in values.captured(node)] == ["c", "h", "z", "x", "w"]
    assert values.captured_names(node) >= {"c", "h", "z", "x", "w"}
    assert list(values.bodies(node_of(graph, "Add"))) == [] and values.captured(node_of(graph, "Add")) == ()
    ops = [one.op_type for one in values.in_turn(graph)]
    assert ops == ["Add", "If", "If", "Add", "Mul", "Neg", "Mul"]


@pytest.mark.parametrize(
    ("attribute", "plain"),
    [
        (ir.AttrInt64("a", 3), 3),
        (ir.AttrInt64s("a", [1, 2]), [1, 2]),
        (ir.AttrFloat32("a", 0.5), 0.5),
        (ir.AttrString("a", "x"), "x"),
        (ir.AttrStrings("a", ["x", "y"]), ["x", "y"]),
    ],
)
def test_attributes_as_plain_values(attribute: ir.Attr, plain: object) -> None:
    found = values.plain_attribute(attribute)
    assert found == plain and type(found) is type(plain)
    node = ir.Node("", "Op", [], [attribute])
    assert values.integer_of(node, "a", 7) == (plain if isinstance(plain, int) else 7)
    assert (values.integer_of(node, "b", 7), values.integer_of(node, "b")) == (7, 0)


def test_a_tensor_as_a_plain_value() -> None:
    found: Any = values.plain_attribute(ir.AttrTensor("a", ir.tensor(np.arange(3))))
    assert isinstance(found, np.ndarray) and found.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "found"),
    [(ir.Shape(["n", 2, None]), ("n", 2, None)), (ir.Shape([]), ()), (None, None)],
)
def test_shapes(shape: Any, found: Any) -> None:
    value = ir.Value(name="v", shape=shape)
    assert values.shape_of(value) == shown_shape(value) == found
    assert values.shape_of(None) is shown_shape(None) is None


def test_symbols_as_the_file_names_them() -> None:
    assert shown("n\x1f12") == "n" and shown("a\x1e2\x1f3") == "a·2" and shown("n\x1f3·m\x1f4") == "n·m"
    assert shown(3) == 3 and shown(None) is None
    assert is_made_up("unk__3") and not is_made_up("n") and not is_made_up(3) and not is_made_up("xunk__3")
    assert all_known([1, 0]) and all_known([]) and not all_known([1, "n"]) and not all_known([None])


CONSTANTS: list[tuple[str, Any, str]] = [
    ("value_int = 3", 3, "int64"), ("value_ints = [1, 2]", [1, 2], "int64"),
    ("value_float = 0.5", 0.5, "float32"), ("value_floats = [0.5]", [0.5], "float32"),
    ("value = int32[2] {3, 4}", [3, 4], "int32"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "value", "dtype"), CONSTANTS)
@pytest.mark.parametrize("given", [False, True])
def test_constants_become_initializers(said: str, value: Any, dtype: str, given: bool) -> None:
    """But for one that is an output."""
    rest = "" if given else " y = Identity(k)"
    text = f"g () => (float {'k' if given else 'y'}) {{ k = Constant<{said}>(){rest} }}"
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(head + text))
    constants_to_initializers(model)
    if given:
        assert [node.op_type for node in model.graph] == ["Constant"] and not model.graph.initializers
        return
    assert [node.op_type for node in model.graph] == ["Identity"]
    held = model.graph.initializers["k"].const_value
    assert held is not None and held.numpy().tolist() == value and held.numpy().dtype == dtype
    assert next(iter(model.graph)).inputs[0] is model.graph.initializers["k"]


@pytest.mark.parametrize(
    "node",
    [
        ir.Node("", "Constant", [], [ir.AttrString("value_string", "x")]),
        ir.Node("mine", "Constant", [], [ir.AttrInt64("value_int", 3)]),
        ir.Node("", "Identity", [], [ir.AttrInt64("value_int", 3)]),
        ir.Node("", "Constant", [], [ir.RefAttr("value_int", "outer", ir.AttributeType.INT)]),
        ir.Node("", "Constant", [], [ir.RefAttr("value", "outer", ir.AttributeType.TENSOR)]),
    ],
)
def test_what_is_no_constant(node: ir.Node) -> None:
    assert constant_tensor(node) is None
