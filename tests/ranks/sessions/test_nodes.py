"""What nodes of rank models are, read and say."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from ranks.errors import ModelError
from ranks.sessions import nodes

OURS, MICROSOFT = "shardrun", "com.microsoft"
RECEIVED = {"peer": 1, "dtype": TensorProto.FLOAT, "shape": [2, 3]}


def node(op: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], domain=domain, name="n", **attributes)


@pytest.mark.parametrize(
    ("given", "attributes"),
    [
        (node("AllReduce", MICROSOFT), {}),
        (node("AllGather", MICROSOFT), {"axis": 1, "group_size": None}),
        (node("AllGather", MICROSOFT, axis=-1, group_size=4), {"axis": -1, "group_size": 4}),
        (node("AllToAll", MICROSOFT), {"group_size": None}),
        (node("Broadcast", OURS), {"root": 0}),
        (node("Send", OURS, peer=2), {"peer": 2, "announce": 0}),
        (node("Recv", OURS, **RECEIVED), {"peer": 1, "dtype": 1, "shape": (2, 3), "announce": 0}),
        (
            node("Recv", OURS, **{**RECEIVED, "shape": [-1, 0], "announce": 1}),
            {"peer": 1, "dtype": 1, "shape": (-1, 0), "announce": 1},
        ),
        (
            node("Recv", OURS, **{**RECEIVED, "shape": [1] * 13}),
            {"peer": 1, "dtype": 1, "shape": (1,) * 13, "announce": 0},
        ),
    ],
)
def test_attributes_of_collectives(given: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    assert nodes.is_collective(given) and nodes.attributes_of(given) == attributes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (node("AllReduce", MICROSOFT, axis=1), "AllReduce node 'n' has the attribute 'axis', which"),
        (node("AllGather", MICROSOFT, axis=1.0), "Attribute 'axis' of AllGather node 'n' must be of type"),
        (node("Broadcast", OURS, root="0"), "Attribute 'root' of .* must be of type INT"),
        (node("Send", OURS), "Send node 'n' lacks its attribute 'peer'"),
        (node("Recv", OURS, peer=1, dtype=1), "Recv node 'n' lacks its attribute 'shape'"),
        (node("Recv", OURS, peer=1, shape=[2]), "Recv node 'n' lacks its attribute 'dtype'"),
        (node("Recv", OURS, **{**RECEIVED, "shape": 2}), "Attribute 'shape' of .* must be of type INTS"),
        (node("Recv", OURS, **{**RECEIVED, "shape": [-1]}), "at least 0, or -1 where they are"),
        (node("Recv", OURS, **RECEIVED | {"shape": [-2], "announce": 1}), "lengths must be at least 0"),
        (node("Recv", OURS, **{**RECEIVED, "announce": 2}), "'announce' of .* must be 0 or 1, but is 2"),
        (node("Send", OURS, peer=1, announce=-1), "must be 0 or 1, but is -1"),
        (node("Recv", OURS, **{**RECEIVED, "shape": [1] * 14}), "receives 14 axes; at most 13 are possible"),
        (node("Recv", OURS, **RECEIVED | {"dtype": TensorProto.STRING}), "receives dtype 8, which"),
    ],
)  # fmt: skip
def test_collectives_that_are_none(given: onnx.NodeProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        nodes.attributes_of(given)


@pytest.mark.parametrize(
    ("given", "constant"),
    [
        (helper.make_node("Constant", [], ["y"], value_int=1), True),
        (helper.make_node("Constant", [], ["y"], value_int=1, domain="ai.onnx"), True),
        (helper.make_node("Constant", [], ["y"], domain="mine"), False),
        (helper.make_node("Constant", ["x"], ["y"]), False),
        (helper.make_node("ConstantOfShape", [], ["y"]), False),
    ],
)
def test_constants(given: onnx.NodeProto, constant: bool) -> None:
    assert nodes.is_constant(given) == constant
    assert not nodes.is_collective(given)


def test_a_node_without_a_name_is_named_by_what_it_gives() -> None:
    assert nodes.describe(helper.make_node("Split", ["x"], ["", "b"])) == "Split node 'b'"
    assert nodes.describe(helper.make_node("Split", ["x"], [""], name="me")) == "Split node 'me'"


MODEL = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (bool c, float[2] x, float[2] z) => (float[2] y) {
  h = Neg(x)
  y = If(c) <then_branch = a () => (float[2] one) <float[2] w = {1, 2}> {
    inner = If(c) <then_branch = b () => (float[2] q) { q = Add(h, w) },
                   else_branch = d () => (float[2] z) { }>
    two = Mul(inner, h)
    one = {OP}(two)
  }, else_branch = e () => (float[2] h) { }>
}"""


@pytest.mark.parametrize("op", ["Neg", "com.microsoft.AllReduce"])
def test_what_a_node_and_its_bodies_read(op: str) -> None:
    """From outside, each once: neither what a body makes nor what it holds."""
    model = onnx.parser.parse_model(MODEL.replace("{OP}", op))
    assert nodes.reads(model.graph.node[1]) == ["c", "h", "z"]
    assert nodes.reads(helper.make_node("Clip", ["x", "", "m", "x"], ["y"])) == ["x", "m"]
    assert nodes.has_collectives(model) == (op != "Neg")
