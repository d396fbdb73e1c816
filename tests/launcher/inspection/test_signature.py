"""What a model file declares, and what a job may say of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from launcher.errors import ConfigError
from launcher.inspection.inspection import (
    Inspection,
    Layer,
    Talk,
    Weight,
    _source_name,
    _without_receives,
    sent_bytes,
    shape_of,
    shape_text,
    used,
)
from launcher.inspection.layers import SCOPES, Used
from launcher.inspection.rank_models import _tensor, _weight
from launcher.inspection.signature import (
    FIRST_OPTIONAL_IR,
    NO_TENSORS,
    check_dims,
    check_plan,
    declared_by,
    manifest_symbols,
    names_of_weights,
    signature_of,
)
from ranks.common.tensors import OBJECT
from sharding.slices.domains import OWN_DOMAIN
from sharding.slices.manifest import TensorEntry
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Split
from tests.launcher.cli_tools import save_mlp

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
m (float[batch, 3] x, float[2] listed) => (float[batch, other] y)
<float[2] listed = {1, 2}, float[2] held = {3, 4}, float[batch, between] v> {
    [named] v = Identity(x)
    y = Identity(v)
}"""


def parsed(ir_version: int = 8, *, all_listed: bool = False) -> onnx.ModelProto:
    message = onnx.parser.parse_model(TEXT)
    message.ir_version = ir_version
    if all_listed:
        message.graph.input.append(onnx.helper.make_tensor_value_info("held", 1, [2]))
    return message


@pytest.mark.parametrize(
    ("message", "optional"),
    [
        (parsed(), ["listed"]),
        (parsed(FIRST_OPTIONAL_IR), ["listed"]),
        (parsed(FIRST_OPTIONAL_IR - 1), []),  # every weight had to be listed
        (parsed(all_listed=True), []),
    ],
)
def test_which_inputs_have_a_default(message: onnx.ModelProto, optional: list[str]) -> None:
    found = signature_of(message)
    assert [entry.name for entry in found.inputs] == ["x"]
    assert [entry.name for entry in found.optional] == optional
    assert [(entry.name, entry.dtype, entry.shape) for entry in found.outputs] == [
        ("y", "float32", ("batch", "other"))
    ]
    assert found.symbols == {"batch", "other", "between"}
    assert found.operators == {"named", "Identity"} and found.weights == {"listed", "held"}
    inputs, outputs, others = found.specs()
    assert [spec.dtype for spec in (*inputs, *outputs)] == [np.float32] * 2
    assert [spec.name for spec in others] == optional


def test_inputs_that_are_no_tensors_or_of_any_number_of_axes() -> None:
    message = parsed()
    del message.graph.input[0].type.tensor_type.shape.dim[:]
    message.graph.input[0].type.tensor_type.ClearField("shape")
    message.graph.input[1].name = "more"
    message.graph.input[1].type.CopyFrom(
        onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, [2]))
    )
    found = signature_of(message)
    assert [entry.open_rank for entry in found.inputs] == [True, False]
    assert found.inputs[1].dtype == "sequence" and found.inputs[1].dtype in NO_TENSORS
    x, more = found.specs()[0]
    assert x.open_rank and x.is_tensor and x.shape == ()
    assert not more.is_tensor and more.dtype == OBJECT


def test_a_file_that_cannot_be_read_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"\xff" * 99)
    assert declared_by(tmp_path / "x.onnx") is None and declared_by(tmp_path / "absent") is None
    assert names_of_weights(tmp_path / "absent") == () and names_of_weights(tmp_path) == ()
    assert names_of_weights(save_mlp(tmp_path / "m.onnx"))


def test_symbols_of_a_manifest() -> None:
    def entry(*shape: Any) -> Any:
        return SimpleNamespace(shape=shape)

    manifest: Any = SimpleNamespace(
        inputs=[entry("a", 2)], optional_inputs=[entry("b")], outputs=[entry(None, "c")],
        collectives=[entry("d", "a")],
    )  # fmt: skip
    assert manifest_symbols(manifest) == {"a", "b", "c", "d"}


def test_dims_that_a_model_has_not() -> None:
    check_dims({"batch": 2}, ["batch", "seq"])
    check_dims({}, frozenset())
    with pytest.raises(ConfigError, match=r"--dim bacth=2: .*\(it has: batch, seq\).*batch"):
        check_dims({"batch": 1, "bacth": 2}, ["seq", "batch"])
    with pytest.raises(ConfigError, match=r"\(it has: none\)"):
        check_dims({"x": 2}, frozenset())


def test_plans_name_nodes_or_operators_of_the_model_or_of_onnx() -> None:
    check_plan(
        {"named": "float16", "Identity": "float16", "MatMul": "float32"}, frozenset({"named", "Identity"})
    )
    with pytest.raises(ConfigError, match=r"--execution-plan nmaed: .*of this name.*named"):
        check_plan({"nmaed": "float16"}, frozenset({"named"}))
    with pytest.raises(ConfigError, match=r"no node or operator of this name: expected the name of a node"):
        check_plan({"xyz": "float16"}, frozenset({"named"}))


@pytest.mark.parametrize(
    ("kind", "shape", "name", "size"),
    [
        (onnx.TensorProto.FLOAT, (2, 3), "float32", 24),
        (onnx.TensorProto.FLOAT16, (2, 3), "float16", 12),
        (onnx.TensorProto.INT64, (), "int64", 8),
        (onnx.TensorProto.INT8, (5,), "int8", 5),
        (onnx.TensorProto.INT4, (5,), "int4", 3),
        (onnx.TensorProto.UINT4, (4,), "uint4", 2),
        (onnx.TensorProto.FLOAT4E2M1, (3,), "float4e2m1", 2),
        (onnx.TensorProto.FLOAT8E4M3FN, (3,), "float8_e4m3fn", 3),
        (onnx.TensorProto.FLOAT8E8M0, (3,), "float8e8m0", 3),
        (onnx.TensorProto.BOOL, (0, 3), "bool", 0),
        (onnx.TensorProto.STRING, (3,), "string", 0),
    ],
)
def test_weights_of_rank_models(kind: int, shape: tuple[int, ...], name: str, size: int) -> None:
    found = _weight(onnx.TensorProto(data_type=kind, dims=shape))
    assert (found.dtype, tuple(found.shape), found.bytes) == (name, shape, size)


def test_inputs_of_rank_models() -> None:
    made = onnx.helper.make_tensor_value_info
    assert _tensor(made("x", onnx.TensorProto.FLOAT, ["b", 2, None])) == TensorEntry(
        "x", "float32", ("b", 2, None)
    )
    assert _tensor(made("t", onnx.TensorProto.STRING, [])) == TensorEntry("t", "string", ())
    assert _tensor(made("q", onnx.TensorProto.INT4, [3])) == TensorEntry("q", "int4", (3,))
    assert _tensor(made("e", onnx.TensorProto.FLOAT8E5M2, [3])) == TensorEntry("e", "float8_e5m2", (3,))
    assert _tensor(made("o", onnx.TensorProto.BOOL, None)) == TensorEntry("o", "bool", (), open_rank=True)


def test_shapes_as_people_read_them() -> None:
    assert [shape_text(shape) for shape in (None, (), (1, "b", None))] == ["[...]", "[]", "[1, b, ?]"]
    assert shape_of(TensorEntry("x", "bool", (), open_rank=True)) is None
    assert shape_of(TensorEntry("x", "bool", ("b", 2))) == ("b", 2)


@pytest.mark.parametrize(
    ("op", "ranks", "sent"),
    [
        ("AllReduce", 2, 100), ("AllReduce", 4, 150), ("AllGather", 4, 300), ("AllToAll", 4, 75),
        ("Send", 4, 100), ("Broadcast", 4, 100), ("AllReduce", 1, 0), ("AllGather", 1, 0),
    ],
)  # fmt: skip
def test_bytes_that_are_sent(op: str, ranks: int, sent: int) -> None:
    assert sent_bytes(op, 100, ranks) == sent


def test_weights_that_are_held_in_two_ways_are_led_back_to_their_own_name() -> None:
    known: Any = {"w": None, "a/replicated": None, "b": None}
    names = ["w", "w/split:0", "w/replicated", "a/replicated", "c/split:0", "b/split:1/2*2", "x"]
    assert [_source_name(name, known) for name in names] == [
        "w", "w", "w", "a/replicated", "c/split:0", "b", "x"
    ]  # fmt: skip
    nodes = [
        Used(OWN_DOMAIN, "Recv", [], ["r"]),
        Used("", "Recv", ["w/split:0"], ["r"]),
        Used(OWN_DOMAIN, "Send", ["a/replicated", "y"], []),
    ]
    found = list(_without_receives(nodes, known))
    assert [(node.domain, list(node.inputs)) for node in found] == [
        ("", ["w"]),
        (OWN_DOMAIN, ["a/replicated", "y"]),
    ]


def test_a_node_of_a_file() -> None:
    node = onnx.helper.make_node("Op", ["a", ""], ["b"], name="/encoder/layer.3/Op", domain="d")
    assert used(node) == Used("d", "Op", ["a", ""], ["b"], "encoder.layer.3")
    node.metadata_props.add(key=SCOPES, value="['', 'model', 'op']")
    assert used(node).scope == "model"


def test_figures_of_stages() -> None:
    def weight(name: str, size: int, held: int, placement: Any) -> Weight:
        return Weight(name, placement, "float32", (size // 4,), size, held)

    def talk(sent: int) -> Talk:
        return Talk("AllReduce", "t", "float32", (), 0, sent)

    layers = (
        Layer("a", 0, (weight("v", 40, 20, Split(0)), weight("w", 8, 8, REPLICATED)), (talk(5), talk(7))),
        Layer("b", 1, (weight("w", 8, 8, REPLICATED), weight("u", 16, 4, Split(0))), (talk(1),)),
        Layer("c", 1, (), (talk(2),)),
    )
    found = Inspection("t", Mesh.of(pipeline=2, tensor=2), 1, (), (), layers)
    assert [(layer.bytes, layer.rank_bytes, layer.split_bytes, layer.sent) for layer in layers] == [
        (48, 28, 20, 12), (24, 12, 4, 1), (0, 0, 0, 2)
    ]  # fmt: skip
    assert found.bytes == 40 + 8 + 16  # of one that two stages hold, once
    assert [(found.stage_bytes(stage), found.stage_sent(stage)) for stage in range(found.stages)] == [
        (28, 12), (12, 3)
    ]  # fmt: skip
