"""An ONNX file as the source of a conversion: its graph kept, its weights left or taken from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.common.text import one_line, shortened
from sharding.errors import ModelError
from sharding.importers.checkpoints.base import Checkpoint, Entry
from sharding.importers.checkpoints.match import Match, Target, match
from sharding.importers.checkpoints.rename import Rule
from sharding.importers.mapped import mapped
from sharding.onnx_files.external import put_place
from sharding.onnx_files.graph_library import import_graph_library
from sharding.onnx_files.protobuf import IN_MODEL_FILE, MalformedError, not_a_model, without_weights
from sharding.onnx_files.walk import tensors_in

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import DType

_DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data",
    "external_data",
)  # fmt: skip


@dataclass(frozen=True)
class Replacement:
    """A checkpoint's weight as elements of the type that the graph has."""

    entry: Entry
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.entry.nbytes // self.entry.dtype.itemsize * self.dtype.itemsize

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of a few MB."""
        return self.entry.chunks(self.dtype)


def read(path: Path) -> onnx.ModelProto:
    """Reads a file without its large weights; each says where exactly it lies.

    Raises `ModelError`: no ONNX file, truncated, or external data that is not in the model's folder.
    """
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(without_weights(mapped(path, "an ONNX model")))
    except MalformedError as error:
        raise not_a_model(path, error) from None
    except ModelError:
        raise
    except Exception as error:  # protobuf's DecodeError, whose module differs between its implementations
        raise not_a_model(path, error) from None
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no graph with an output.")
    outer = len(model.graph.initializer)  # which come first
    for place, tensor in enumerate(tensors_in(model.graph, *model.functions)):
        if tensor.data_location == tensor.EXTERNAL:
            _locate(tensor, path, place < outer)
    return model


def _locate(tensor: onnx.TensorProto, path: Path, outer: bool) -> None:
    """States a tensor's offset and length; one that is no initializer of the model comes into the message."""
    import_graph_library()
    import onnx_ir as ir

    from sharding.onnx_files.tensors import locate

    name = tensor.name or "without a name"
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    try:
        extent = locate(name, ir.serde.deserialize_tensor(tensor), path).extent
    except ModelError:
        raise
    except Exception as error:  # an unknown type, an offset that is no number, ...
        raise ModelError(
            f"{path}: weight {shortened(one_line(name), 100)!r} cannot be read: {one_line(str(error))[:200]}."
        ) from None
    if extent is None:
        return
    if outer:
        put_place(tensor, location, extent.offset, extent.length)
        return
    del tensor.external_data[:]
    with extent.path.open("rb") as file:
        file.seek(extent.offset)
        tensor.raw_data = file.read(extent.length)
    tensor.ClearField("data_location")


def put_weights(
    model: onnx.ModelProto, checkpoint: Checkpoint, rules: Sequence[Rule], **allowed: bool
) -> tuple[Match, dict[str, Replacement]]:
    """Replaces a graph's weights by those of a checkpoint, which are only declared in the message.

    A weight is missing if it is of floats, more than one, and the checkpoint does not have it: other
    initializers are mostly constants of the graph. Raises `ModelError` (`Match.check`).
    """
    targets = {item.name: target for item in model.graph.initializer if (target := _target(item)) is not None}
    result = match(checkpoint, targets, rules)
    result.check(checkpoint, **allowed)
    replaced = {name: Replacement(entry, targets[name].dtype) for name, entry in result.found.items()}
    for item in model.graph.initializer:
        if item.name in replaced:
            for name in _DATA_FIELDS:
                item.ClearField(name)
            item.data_location = item.EXTERNAL
            item.external_data.add(key="location", value=IN_MODEL_FILE)
    return result, replaced


def _target(item: onnx.TensorProto) -> Target | None:
    import onnx

    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(item.data_type))
    except (KeyError, TypeError):
        return None
    whole = not dtype.hasobject and "int4" not in dtype.name and "int2" not in dtype.name
    if not whole or "float4" in dtype.name:
        return None  # texts, and elements smaller than a byte
    shape = tuple(item.dims)
    floats = dtype.kind == "f" or "float" in dtype.name
    return Target(dtype, shape, needed=floats and int(np.prod(shape, dtype=np.float64)) > 1)
