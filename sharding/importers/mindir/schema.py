"""MindIR's messages, as protobuf classes that are made from the field numbers below.

The numbers and names are facts of the format (``mindspore/core/proto/mind_ir.proto``, proto2); they were
checked by reading files of MindSpore 2.0 and 2.10. Enumerations are read as plain numbers, so that a value
that is not known is seen and not dropped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

from sharding.onnx_files.made_messages import Fields, message_classes

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from sharding.importers.mindir.messages import Model

PACKAGE = "shardrun.mindir"

_MESSAGES: dict[str, Fields] = {
    "External": {"location": (1, "string"), "offset": (2, "int64"), "length": (3, "int64")},
    "Tensor": {
        "dims": (1, "int64*"),
        "data_type": (2, "int32"),
        "float_data": (3, "float*"),
        "int32_data": (4, "int32*"),
        "string_data": (5, "bytes*"),
        "int64_data": (6, "int64*"),
        "name": (7, "string"),
        "raw_data": (9, "bytes"),
        "double_data": (10, "double*"),
        "uint64_data": (11, "uint64*"),
        "external_data": (12, "External"),
        "ref_key": (13, "string"),
        "compression_type": (16, "int32"),
        "quant_params": (17, "bytes*"),
    },
    "Attribute": {
        "name": (1, "string"),
        "f": (2, "float"),
        "i": (3, "int64"),
        "d": (4, "double"),
        "s": (5, "bytes"),
        "floats": (8, "float*"),
        "doubles": (9, "double*"),
        "ints": (10, "int64*"),
        "strings": (11, "bytes*"),
        "tensors": (12, "Tensor*"),
        "type": (16, "int32"),
        "values": (17, "Attribute*"),
    },
    "ValueInfo": {
        "name": (1, "string"),
        "tensor": (2, "Tensor*"),
        "denotation": (4, "string"),
        "attr_info": (5, "Attribute"),
    },
    "Node": {
        "input": (1, "string*"),
        "output": (2, "string*"),
        "name": (3, "string"),
        "op_type": (4, "string"),
        "attribute": (5, "Attribute*"),
        "domain": (7, "string"),
    },
    "Graph": {
        "node": (1, "Node*"),
        "name": (2, "string"),
        "parameter": (3, "Tensor*"),
        "input": (5, "ValueInfo*"),
        "output": (6, "ValueInfo*"),
        "attribute": (8, "Attribute*"),
        "map_parameter": (10, "bytes*"),
    },
    "Primitive": {
        "name": (1, "string"),
        "op_type": (2, "string"),
        "attribute": (3, "Attribute*"),
        "instance_name": (4, "string"),
        "prim_type": (5, "int32"),
    },
    "Model": {
        "ir_version": (1, "string"),
        "producer_name": (2, "string"),
        "producer_version": (3, "string"),
        "model_version": (5, "string"),
        "graph": (7, "Graph"),
        "functions": (8, "Graph*"),
        "little_endian": (10, "bool"),
        "primitives": (12, "Primitive*"),
        "mind_ir_version": (13, "int64"),
    },
}

MODEL_GRAPH, GRAPH_PARAMETER, TENSOR_RAW_DATA, TENSOR_EXTERNAL_DATA = 7, 3, 9, 12
"""The path to a weight's bytes, for walking a file without parsing it."""
EXTERNAL_LOCATION, EXTERNAL_OFFSET, EXTERNAL_LENGTH = 1, 2, 3


@lru_cache(maxsize=1)
def messages() -> dict[str, type[Message]]:
    """The message classes by name: Model, Graph, Node, Attribute, Tensor, ..."""
    return message_classes(PACKAGE, _MESSAGES)


def empty_model() -> Model:
    """A whole file's message, to be parsed into."""
    return cast("Model", messages()["Model"]())
