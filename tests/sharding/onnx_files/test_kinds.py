"""Values that are no tensors: what they are in words, and what shapes files declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sharding.errors import ModelError
from sharding.onnx_files import kinds

TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
SEQUENCE = helper.make_sequence_type_proto(TENSOR)
MAP = helper.make_map_type_proto(TensorProto.INT64, TENSOR)
SPARSE = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])
KINDS: list[tuple[Any, str | None, bool]] = [
    (TENSOR, None, False),
    (onnx.TypeProto(), None, False),
    (SEQUENCE, "sequence of tensors", False),
    (helper.make_optional_type_proto(TENSOR), "optional tensor", False),
    (helper.make_optional_type_proto(SEQUENCE), "optional sequence of tensors", False),
    (MAP, "map", True),
    (helper.make_sequence_type_proto(MAP), "sequence of maps", True),
    (
        helper.make_optional_type_proto(helper.make_sequence_type_proto(MAP)),
        "optional sequence of maps",
        True,
    ),
    (SPARSE, "sparse tensor", False),
]


@pytest.mark.parametrize(("declared", "words", "has_map"), KINDS)
def test_a_kind_in_words(declared: onnx.TypeProto, words: str | None, has_map: bool) -> None:
    assert kinds.kind_of(declared) == words and kinds.has_map(declared) == has_map


@pytest.mark.parametrize("what", ["input", "output"])
@pytest.mark.parametrize(
    ("declared", "words"), [(kind, words) for kind, words, _ in KINDS if kind is not SPARSE]
)
def test_ranks_take_and_give_tensors_only(what: str, declared: onnx.TypeProto, words: str | None) -> None:
    value = helper.make_value_info("v", declared)
    values = [helper.make_value_info("x", TENSOR), value]
    graph = helper.make_graph([], "g", values if what == "input" else [], values if what == "output" else [])
    if words is None:
        kinds.refuse_others(graph, Path("m.onnx"))
        return
    article = "an" if words.startswith("optional") else "a"
    with pytest.raises(
        ModelError, match=rf"^m\.onnx cannot run on ranks: its {what} 'v' is {article} {words}, "
    ) as e:
        kinds.refuse_others(graph, Path("m.onnx"))
    assert ("zipmap=False" in str(e.value)) == (what == "output" and "map" in words)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ir.TensorType(ir.DataType.FLOAT), None),
        (None, None),
        (ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)), "a sequence of tensors"),
        (ir.OptionalType(ir.TensorType(ir.DataType.FLOAT)), "an optional tensor"),
        (
            ir.OptionalType(ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))),
            "an optional sequence of tensors",
        ),
    ],
)
def test_the_same_of_a_graph_that_was_read(what: str, kind: Any, words: str | None) -> None:
    value = ir.Value(name="v", type=kind)
    graph = ir.Graph([value] if what == "inputs" else [], [value] if what == "outputs" else [], nodes=[])
    if words is None:
        kinds.refuse_others_of(graph, Path("m.onnx"))
        return
    with pytest.raises(ModelError, match=f"its {what[:-1]} 'v' is {words}, and ranks"):
        kinds.refuse_others_of(graph, Path("m.onnx"))


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (None, None),
        (onnx.TypeProto(), None),
        (SEQUENCE, None),
        (helper.make_tensor_type_proto(TensorProto.FLOAT, None), None),
        (helper.make_tensor_type_proto(TensorProto.FLOAT, []), ()),
        (helper.make_tensor_type_proto(TensorProto.FLOAT, [0, 3, "n", None]), (0, 3, "n", None)),
        (helper.make_tensor_type_proto(TensorProto.FLOAT, [-1, 2]), (None, 2)),
    ],
)
def test_shapes_as_they_are_declared(declared: Any, shape: Any) -> None:
    assert kinds.declared_shape(declared) == shape
