"""A model file to an `onnx_ir` graph, its weights left where they lie."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.errors import ModelError
from sharding.manifest import FileEntry, sha256_of
from sharding.protobuf import MalformedError, without_weights
from sharding.recurrent_weights import recurrent_weights_to_initializers
from sharding.shapes import infer
from sharding.tensors import WeightTensor, locate
from sharding.validity import check, first_cause
from sharding.values import replace_by_constant

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


@dataclass
class Source:
    """A model that was read: its graph, every constant an initializer, and its weights by name."""

    path: Path
    file: FileEntry
    model: ir.Model
    weights: dict[str, WeightTensor]


def read_model(path: str | Path) -> Source:
    """Reads an ONNX file; weights stay in their files.

    Raises `ModelError`: the path is missing, a folder, empty, truncated or not ONNX; the graph is invalid; or
    external data does not lie inside the model's folder with the length that its shape needs.
    """
    path = Path(path)
    proto, file = _read_proto(path)
    model = _deserialize(proto, path)
    _constants_to_initializers(model)
    _load_inner_weights(model, path)
    for name, value in model.graph.initializers.items():
        _check_tensor(name, _data(value, path), path)
    infer(model, path)
    recurrent_weights_to_initializers(model, path)
    weights = {
        name: locate(name, _data(value, path), path) for name, value in model.graph.initializers.items()
    }
    return Source(path, file, model, weights)


def _read_proto(path: Path) -> tuple[onnx.ModelProto, FileEntry]:
    import onnx

    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder; expected an ONNX file (model.onnx).")
        if path.exists() and not path.is_file():  # to open a pipe would wait for who writes to it
            raise ModelError(f"{path} is not a file; expected an ONNX file (model.onnx).")
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise ModelError(f"{path} is empty; expected an ONNX model.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                stripped = without_weights(data)
            digest = sha256_of(path)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; expected an ONNX file.") from None
    except MalformedError as error:
        raise ModelError(f"{path} is not an ONNX file, or it is truncated: {error}.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(stripped)
    except Exception as error:  # protobuf's DecodeError, whose module differs between its implementations
        raise ModelError(f"{path} is not an ONNX file, or it is truncated: {error}.") from None
    check(proto, path)
    name = path.name.encode(errors="replace").decode()  # a name on disk may be no text
    return proto, FileEntry(name, size, digest)


def _deserialize(proto: onnx.ModelProto, path: Path) -> ir.Model:
    import onnx_ir as ir

    try:
        model = ir.serde.deserialize_model(proto)
        model.graph.sort()
    except Exception as error:  # a hostile file can fail anywhere in here, and is always a bad model
        raise ModelError(f"{path} is not a valid ONNX model: {first_cause(error)}.") from None
    graph = model.graph
    known: set[Any] = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                raise ModelError(
                    f"{path} is not valid: node {node.name or node.op_type!r} reads {value.name!r}, "
                    f"which nothing produces."
                )
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known:
            raise ModelError(f"{path} is not valid: nothing produces its output {value.name!r}.")
    # Up to IR version 3 every initializer was listed as an input too; a shard's weights cannot be fed.
    weights = set(graph.initializers.values())
    kept = [value for value in graph.inputs if value not in weights]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    return model


def _constants_to_initializers(model: ir.Model) -> None:
    graph = model.graph
    outputs = set(graph.outputs)
    for node in list(graph):
        if node.op_type != "Constant" or node.domain or node.outputs[0] in outputs:
            continue
        tensor = _constant_tensor(node)
        if tensor is not None:
            replace_by_constant(graph, node.outputs[0], tensor)


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    import onnx_ir as ir

    for name, kind in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if (attribute := node.attributes.get(name)) is not None and not attribute.is_ref():
            return ir.tensor(np.asarray(attribute.value, kind))
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def _data(value: ir.Value, path: Path) -> ir.TensorProtocol:
    if value.const_value is None:
        raise ModelError(f"{path} is not valid: weight {value.name!r} has no data.")
    return value.const_value


def _check_tensor(name: str, tensor: ir.TensorProtocol, path: Path) -> None:
    """Checks that a tensor in the message has as many elements as its shape says."""
    import onnx_ir as ir

    if isinstance(tensor, ir.ExternalTensor):
        return
    try:
        right = tensor.numpy().shape == tuple(tensor.shape.numpy())
    except Exception:  # data of the wrong length, an unknown type, ...
        right = False
    if not right:
        raise ModelError(f"{path} is not valid: weight {name!r} does not hold what its type and shape say.")


def _load_inner_weights(model: ir.Model, path: Path) -> None:
    """Brings external data of nodes and of control-flow bodies into memory: these are copied as they are."""
    import onnx_ir as ir

    def loaded(name: str, tensor: ir.ExternalTensor) -> ir.TensorProtocol:
        return ir.tensor(np.array(locate(name, tensor, path).array()), dtype=tensor.dtype, name=tensor.name)

    for graph in model.graphs():
        if graph is model.graph:
            continue
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = loaded(name, value.const_value)
    holders: list[Any] = [model.graph, *model.functions.values()]
    for holder in holders:
        for node in holder.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(
                    attribute.value, ir.ExternalTensor
                ):
                    node.attributes[name] = ir.AttrTensor(name, loaded(node.name or name, attribute.value))
