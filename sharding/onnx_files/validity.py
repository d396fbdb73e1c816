"""What must be true of an ONNX message before its graph is built; each failure is one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.text import parse_whole
from sharding.errors import ModelError
from sharding.onnx_files.kinds import has_map, kind_of, refused
from sharding.onnx_files.sparse import make_dense
from sharding.onnx_files.walk import graphs_in, nodes_in, subgraphs

if TYPE_CHECKING:
    import onnx

MAX_VERSION = 10_000
"""The highest version of the format and of operators: far beyond any that there will be."""

_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_CONSTANTS = frozenset({"Constant", "ConstantOfShape"})

_ALIAS = "ai.onnx"
"""The other name of the domain of ONNX's own operators, whose name is empty."""


def check(proto: onnx.ModelProto, path: Path) -> None:
    """Checks a model. What can be written in two ways is then written in one: the default domain as an empty
    name, an unknown type as no type, a sparse tensor as a dense one."""
    if not proto.HasField("graph") or not proto.opset_import or not proto.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no graph with outputs and an opset version.")
    _check_versions(proto, path)
    _name_domains(proto)
    make_dense(proto, path)
    _check_graph(proto.graph, path)
    _check_tensors(proto, path)
    _forget_unknown(proto.graph)
    _forget_repeated(proto.graph)
    _forget_maps(proto, path)


def first_cause(error: BaseException) -> str:
    """The first line of the innermost of the errors that an error wraps."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_versions(proto: onnx.ModelProto, path: Path) -> None:
    if not 1 <= proto.ir_version <= MAX_VERSION:
        raise ModelError(
            f"{path} is not valid: its IR version is {proto.ir_version}; expected 1 to {MAX_VERSION}."
        )
    holders: list[onnx.ModelProto | onnx.FunctionProto] = [proto, *proto.functions]
    for holder in holders:
        for item in holder.opset_import:
            if not 1 <= item.version <= MAX_VERSION:
                raise ModelError(
                    f"{path} is not valid: it wants version {item.version} of the operators of domain "
                    f"{item.domain[:80]!r}; expected 1 to {MAX_VERSION}."
                )


def _name_domains(proto: onnx.ModelProto) -> None:
    holders: list[onnx.ModelProto | onnx.FunctionProto] = [proto, *proto.functions]
    for holder in holders:
        versions = {}
        for item in holder.opset_import:  # where a domain is imported twice, the last one counts
            versions["" if item.domain == _ALIAS else item.domain] = item.version
        del holder.opset_import[:]
        for domain, version in versions.items():
            holder.opset_import.add(domain=domain, version=version)
    for node in nodes_in(proto.graph, *proto.functions):
        if node.domain == _ALIAS:
            node.domain = ""


def _check_tensors(proto: onnx.ModelProto, path: Path) -> None:
    """Checks that tensors have a type, and how they say where their data lies; whether it lies there is known
    when it is looked for."""
    import onnx

    tensors: list[onnx.TensorProto] = []
    for holder in graphs_in(proto.graph, *proto.functions):
        tensors += getattr(holder, "initializer", ())  # a function has none
        for attribute in (item for node in holder.node for item in node.attribute):
            is_tensor = attribute.type == onnx.AttributeProto.TENSOR and not attribute.ref_attr_name
            if is_tensor or attribute.HasField("t"):
                tensors.append(attribute.t)
    known = set(onnx.TensorProto.DataType.values())
    for tensor in tensors:
        what = f"{path} is not valid: weight {tensor.name!r}"
        if tensor.data_type == onnx.TensorProto.UNDEFINED:
            raise ModelError(f"{what} has no element type.")
        if tensor.data_type not in known:
            raise ModelError(f"{what} has no element type: {tensor.data_type} is not a valid one.")
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelError(f"{what} is of strings, which cannot lie in another file.")
        for entry in tensor.external_data:
            if entry.key in {"offset", "length"} and parse_whole(entry.value) is None:
                raise ModelError(f"{what} has the {entry.key} {entry.value!r}; expected a number of bytes.")


def _check_graph(graph: onnx.GraphProto, path: Path) -> None:
    import onnx

    for what, values in (("input", graph.input), ("weight", graph.initializer), ("output", graph.output)):
        seen: set[str] = set()
        for value in values:
            if value.name and value.name in seen:
                raise ModelError(f"{path} is not valid: it has two {what}s named {value.name!r}.")
            seen.add(value.name)
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        unknown = kind == "tensor_type" and value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED
        if value.name not in weights and (kind is None or unknown):
            raise ModelError(f"{path} is not valid: its input {value.name!r} has no element type.")


def _forget_unknown(graph: onnx.GraphProto) -> None:
    import onnx

    for value in (*graph.value_info, *graph.output, *graph.input):
        undefined = value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED
        if value.type.WhichOneof("value") == "tensor_type" and undefined:
            value.ClearField("type")
        for axis in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if axis.dim_value < 0:  # what some exporters write for a length that is not known
                axis.Clear()


def _forget_repeated(graph: onnx.GraphProto) -> None:
    """An input that is an output too is what it is called as an input: ONNX Runtime takes it as that."""
    inputs = {value.name: value for value in graph.input}
    for value in (*graph.value_info, *graph.output):
        if value.name in inputs:
            value.type.CopyFrom(inputs[value.name].type)


def _forget_maps(proto: onnx.ModelProto, path: Path) -> None:
    """`onnx_ir` cannot describe maps: inside the graph their type is dropped, as inputs and outputs they are
    refused."""
    for what, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if has_map(value.type):
                raise refused(path, what, value.name, kind_of(value.type) or "map")
    holders: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    for holder in holders:
        for value in [value for value in holder.value_info if has_map(value.type)]:
            holder.value_info.remove(value)


def demand_text(proto: onnx.ModelProto, path: Path) -> None:
    """Raises `ModelError` for names and the like that are not UTF-8: protobuf gives them as bytes.

    For models that are shown, and not checked.
    """
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

    pending: list[Message] = [proto]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.type not in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE}:
                continue
            single = isinstance(value, str | bytes | Message)
            for item in value if isinstance(value, Iterable) and not single else [value]:
                if isinstance(item, Message):
                    pending.append(item)
                elif isinstance(item, bytes):
                    raise ModelError(f"{path} is damaged: a text in it ({field.name}) is not UTF-8.")


RUNTIME_OWN = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that ONNX Runtime's optimizer writes into the standard domain, whichever version it is of."""
WITHDRAWN = {"GroupNormalization": range(18, 21)}
"""Operators and the versions in which ONNX withdrew them; ONNX Runtime runs them in these all the same."""


def check_nodes(proto: onnx.ModelProto, path: Path) -> None:
    """Checks that nodes of ONNX's own operators have the inputs and attributes that these demand."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {item.domain: item.version for item in proto.opset_import}
    for node in nodes_in(proto.graph):
        bodies = any(True for _ in subgraphs(node))
        elsewhere = any(item.t.data_location == onnx.TensorProto.EXTERNAL for item in node.attribute)
        # The checker knows no outer values, and no folder.
        beyond_it = (bodies and node.op_type in _WITH_BODIES) or (elsewhere and node.op_type in _CONSTANTS)
        if node.domain or beyond_it:
            continue
        version = context.opset_imports.get("", 1)
        if node.op_type in RUNTIME_OWN and not onnx.defs.has(node.op_type, version, ""):
            continue
        what = f"node {node.name or node.op_type!r}"
        try:
            if version in WITHDRAWN.get(node.op_type, ()):
                _check_withdrawn(node, version, proto.ir_version)
            else:
                onnx.checker.check_node(node, context)
        except Exception as error:  # ValidationError, or UnicodeDecodeError for text that is not UTF-8
            raise ModelError(f"{path} is not valid: {what}: {first_cause(error)}.") from None
        if node.op_type == "GatherND":  # onnx and ONNX Runtime would end the process
            for item in node.attribute:
                if item.name == "batch_dims" and item.i < 0:
                    raise ModelError(
                        f"{path} is not valid: {what}: batch_dims: expected 0 or more, found {item.i}."
                    )
        if node.op_type == "GroupNormalization":
            for item in node.attribute:
                if item.name == "num_groups" and item.i < 1:
                    raise ModelError(
                        f"{path} is not valid: {what}: num_groups: expected 1 or more, found {item.i}."
                    )


def _check_withdrawn(node: onnx.NodeProto, version: int, ir_version: int) -> None:
    """Checks a node as the version does in which ONNX took its operator up again, which has the same inputs;
    it may know attributes that the withdrawn one does not."""
    import onnx

    again = onnx.checker.C.CheckerContext()
    again.ir_version = ir_version
    again.opset_imports = {"": WITHDRAWN[node.op_type].stop}
    onnx.checker.check_node(node, again)
    known = onnx.defs.get_schema(node.op_type, version).attributes
    for item in node.attribute:
        if item.name not in known:
            raise ValueError(f"Unrecognized attribute: {item.name} for operator {node.op_type}")
