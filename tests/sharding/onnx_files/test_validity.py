"""Nodes that their operators do not allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import sharding
from sharding.errors import ModelError
from sharding.onnx_files.validity import MAX_VERSION, check, check_nodes, demand_text, first_cause


@pytest.mark.parametrize("axes", [-1, -2, -(1 << 62)])
def test_batch_axes_below_zero_are_refused(tmp_path: Path, axes: int) -> None:
    """The onnx library and ONNX Runtime would end the process."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 3, 4] x, int64[2, 3, 1] i) => (float[n] y) '
        f"{{ y = GatherND<batch_dims = {axes}>(x, i) }}"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=f"GatherND.*batch_dims: expected 0 or more, found {axes}"):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")


@pytest.mark.parametrize("opset", [18, 20, 21])
@pytest.mark.parametrize(
    ("attributes", "inputs", "why"),
    [
        ("epsilon = 0.1", "x, s, b", "Required attribute 'num_groups' is missing"),
        ('num_groups = "4"', "x, s, b", "num_groups'. Expected: 'INT', actual: 'STRING'"),
        (
            "num_groups = 4, other = 3",
            "x, s, b",
            "Unrecognized attribute: other for",
        ),
        ("num_groups = 4", "x", "has input size 1 not in range"),
        ("num_groups = 0", "x, s, b", "num_groups: expected 1 or more, found 0"),
        ("num_groups = 5", "x, s, b", "12 channels cannot be cut into 5 groups"),
        ("num_groups = 4", "x, x, b", r"its scale has the shape \['n', 12, 5\]; expected \["),
        ("num_groups = 4", "x, s, t", r"its bias has the shape \[6\]; expected \["),
    ],
)
def test_group_normalizations_that_cannot_be(
    tmp_path: Path, opset: int, attributes: str, inputs: str, why: str
) -> None:
    """The versions in which ONNX withdrew the operator are checked as the others."""
    length = 4 if opset < 21 else 12
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (float[n, 12, 5] x, float[{length}] s, '
        f"float[{length}] b, float[6] t) => (float[n, 12, 5] y) "
        f"{{ z = Relu(x) y = GroupNormalization<{attributes}>({inputs}) }}"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=why):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")


def test_a_withdrawn_group_normalization_has_no_newer_attributes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[n, 12, 5] x, float[4] s, float[4] b) => '
        "(float[n, 12, 5] y) { y = GroupNormalization<num_groups = 4, stash_type = 1>(x, s, b) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="Unrecognized attribute: stash_type"):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")


def model(*changes: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> '
        "{ y = Add(x, w) }"
    )
    for change in changes:
        change(made)
    return made


def weight(made: onnx.ModelProto) -> onnx.TensorProto:
    return made.graph.initializer[0]


def elsewhere(made: onnx.ModelProto, **told: str) -> None:
    weight(made).data_location = onnx.TensorProto.EXTERNAL
    for key, value in told.items():
        weight(made).external_data.add(key=key, value=value)


def attribute(made: onnx.ModelProto, data_type: int) -> None:
    made.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.data_type = data_type


WRONG: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "no graph": (lambda m: m.ClearField("graph"), "is not an ONNX model"),
    "no opset": (lambda m: m.ClearField("opset_import"), "is not an ONNX model"),
    "no output": (lambda m: m.graph.ClearField("output"), "is not an ONNX model"),
    "IR 0": (lambda m: setattr(m, "ir_version", 0), "its IR version is 0; expected 1 to"),
    "opset 0": (lambda m: setattr(m.opset_import[0], "version", 0), "version 0 of the .* of domain ''"),
    "opset -1": (lambda m: m.opset_import.add(domain="mine", version=-1), "version -1 .* of domain 'mine'"),
    "too new": (lambda m: setattr(m, "ir_version", MAX_VERSION + 1), f"its IR version is {MAX_VERSION + 1}"),
    "a function's": (lambda m: m.functions.add().opset_import.add(version=0), "version 0 of the operators"),
    "two inputs": (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs named 'x'"),
    "two outputs": (lambda m: m.graph.output.append(m.graph.output[0]), "two outputs named 'y'"),
    "two weights": (lambda m: m.graph.initializer.append(weight(m)), "two weights named 'w'"),
    "no type": (lambda m: m.graph.input[0].ClearField("type"), "its input 'x' has no element type"),
    "no element": (
        lambda m: m.graph.input[0].type.tensor_type.ClearField("elem_type"),
        "its input 'x' has no element type",
    ),
    "weight without": (lambda m: setattr(weight(m), "data_type", 0), "weight 'w' has no element type[.]"),
    "weight of an odd one": (lambda m: setattr(weight(m), "data_type", 999), "no element type: 999 is not"),
    "attribute without": (lambda m: attribute(m, 0), "weight '' has no element type"),
    "strings elsewhere": (
        lambda m: (setattr(weight(m), "data_type", onnx.TensorProto.STRING), elsewhere(m, location="a")),
        "is of strings, which cannot lie in another file",
    ),
    "odd offset": (lambda m: elsewhere(m, location="a", offset="-1"), "has the offset '-1'; expected"),
    "odd length": (lambda m: elsewhere(m, location="a", length="1.0"), "has the length '1.0'; expected"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_models_that_are_not_valid(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ModelError, match=rf"^m\.onnx .*{message}"):
        check(model(change), Path("m.onnx"))


GOOD: list[Callable[[onnx.ModelProto], object]] = [
    lambda m: None,
    lambda m: setattr(m, "ir_version", 1),
    lambda m: setattr(m, "ir_version", MAX_VERSION),
    lambda m: setattr(m.opset_import[0], "version", 1),
    lambda m: setattr(m.opset_import[0], "version", MAX_VERSION),
    lambda m: m.graph.input.add(name="w"),  # a weight's default, which has its type
    lambda m: elsewhere(m, location="a", offset="0", length="8", checksum="?"),
    lambda m: setattr(weight(m), "data_type", onnx.TensorProto.STRING),
]


@pytest.mark.parametrize("change", GOOD)
def test_models_that_are_valid(change: Callable[[onnx.ModelProto], object]) -> None:
    check(model(change), Path("m.onnx"))


def test_what_can_be_written_in_two_ways_is_written_in_one() -> None:
    made = model()
    made.opset_import.add(domain="ai.onnx", version=19)
    made.opset_import.add(domain="mine", version=2)
    made.graph.node[0].domain = "ai.onnx"
    made.graph.node.add(op_type="F", domain="mine")
    function = made.functions.add(name="F", domain="mine")
    function.opset_import.add(domain="ai.onnx", version=18)
    function.node.add(op_type="Neg", domain="ai.onnx")
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    unknown = made.graph.value_info.add(name="v")
    unknown.type.tensor_type.elem_type = 0
    unknown.type.tensor_type.shape.dim.add(dim_value=3)
    given = made.graph.output.add(name="x")
    given.type.tensor_type.elem_type = onnx.TensorProto.INT64
    sparse = made.graph.sparse_initializer.add(dims=[3])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([5]), "sparse"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([1])))
    check(made, Path("m.onnx"))
    assert not made.graph.sparse_initializer and made.graph.initializer[-1].name == "sparse"
    assert [(item.domain, item.version) for item in made.opset_import] == [("", 19), ("mine", 2)]
    assert [(item.domain, item.version) for item in function.opset_import] == [("", 18)]
    assert [node.domain for node in (*made.graph.node, *function.node)] == ["", "mine", ""]
    axes = made.graph.input[0].type.tensor_type.shape.dim
    assert [axis.WhichOneof("value") for axis in axes] == ["dim_param", None]
    assert unknown.type.WhichOneof("value") is None
    assert given.type == made.graph.input[0].type


def test_the_innermost_error_in_one_line() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("middle")
    error.__cause__.__cause__ = ValueError("\n the reason.\nmore\n")
    assert first_cause(error) == "the reason" and first_cause(ValueError()) == "ValueError"


@pytest.mark.parametrize("place", ["doc_string", "producer_name"])
def test_names_that_are_no_text(place: str) -> None:
    made = model(lambda m: setattr(m.graph if place == "doc_string" else m, place, "QQQQ"))
    demand_text(made, Path("m.onnx"))
    made.ParseFromString(made.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ModelError, match=rf"^m\.onnx is damaged: a text in it \({place}\) is not UTF-8"):
        demand_text(made, Path("m.onnx"))


def of_node(node: onnx.NodeProto, opset: int = 18) -> onnx.ModelProto:
    graph = onnx.helper.make_graph([node], "g", [], [])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def constant_elsewhere(op: str) -> onnx.NodeProto:
    node = onnx.helper.make_node(op, ["s"] if op == "ConstantOfShape" else [], ["y"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    node.attribute[0].t.CopyFrom(onnx.TensorProto(data_type=1, dims=[1]))
    node.attribute[0].t.data_location = onnx.TensorProto.EXTERNAL
    node.attribute[0].t.external_data.add(key="location", value="w.data")
    return node


BODY = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["outer"], ["z"])], "b", [], [])
NODES: list[tuple[onnx.ModelProto, str]] = [
    (of_node(onnx.helper.make_node("Add", ["a", "b"], ["y"])), ""),
    (of_node(onnx.helper.make_node("Add", ["a"], ["y"])), "has input size 1 not in range"),
    (of_node(onnx.helper.make_node("Add", ["a"], ["y"], domain="mine")), ""),
    (of_node(onnx.helper.make_node("If", ["c"], ["y"], then_branch=BODY, else_branch=BODY)), ""),
    (of_node(onnx.helper.make_node("If", ["c"], ["y"])), "Required attribute"),
    (of_node(onnx.helper.make_node("Add", ["a"], ["y"], body=BODY)), "is not valid: node 'Add': "),
    (of_node(constant_elsewhere("Constant")), ""),
    (of_node(constant_elsewhere("ConstantOfShape")), ""),
    (of_node(onnx.helper.make_node("Constant", ["x"], ["y"], value_int=1)), "has input size 1 not in range"),
    (of_node(onnx.helper.make_node("LayerNormalization", ["x"], ["y"]), 16), ""),
    (of_node(onnx.helper.make_node("LayerNormalization", ["x"], ["y"]), 17), "has input size 1 not in range"),
    (of_node(onnx.helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=0)), ""),
    (of_node(onnx.helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-1)), "0 or more, found -1"),
    (of_node(onnx.helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=1), 21), ""),
]


@pytest.mark.parametrize(("given", "message"), NODES)
def test_nodes_as_their_operators_demand_them(given: onnx.ModelProto, message: str) -> None:
    """But for what onnx's checker cannot see: outer values of bodies, data in other files."""
    if not message:
        check_nodes(given, Path("m.onnx"))
        return
    with pytest.raises(ModelError, match=message):
        check_nodes(given, Path("m.onnx"))
