"""Finds and reads the model that a rank runs: a slice folder, a rank model, or a plain ONNX file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ranks.cache.locks import hold
from ranks.common.tensors import Dim, element_dtype
from ranks.errors import ModelError, ShardError
from sharding.common.nearby import hint, shown
from sharding.onnx_files.external import find_data, place_of
from sharding.onnx_files.placeholders import refuse_placeholder
from sharding.onnx_files.protobuf import (
    MESSAGE_BYTES,
    MalformedError,
    not_a_model,
    without_weights,
)
from sharding.onnx_files.protobuf import read_message as without_large_weights
from sharding.onnx_files.walk import nodes_in, tensors_in
from sharding.slices.domains import MICROSOFT
from sharding.slices.manifest import FILE_NAME, Manifest, read_manifest, verify_shard

if TYPE_CHECKING:
    import onnx

_LONG = 64 << 20
"""Bytes of a model file, from which on its weights are not looked through."""
_COLLECTIVE_NAMES = (b"AllReduce", b"AllGather", b"AllToAll", b"shardrun", b"ShardedMoE", b"Distributed")
_ONLY_WITH_NCCL = {
    "ShardedMoE",
    *(
        f"Distributed{name}"
        for name in (
            *("MatMul", "Slice", "Reshape", "Expand", "ReduceSum", "ReduceMax", "ReduceMean"),
            *("Unsqueeze", "Squeeze"),
        )
    ),
}


def of_any_rank(model: onnx.ModelProto) -> frozenset[str]:
    """The inputs whose number of axes the model does not say."""
    return frozenset(
        value.name
        for value in model.graph.input
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    )


@dataclass(frozen=True)
class Shard:
    """A model file, and the manifest that it belongs to if it is one of a slice folder."""

    path: Path
    manifest: Manifest | None
    ranks: tuple[int, ...] | None = None
    """The ranks to which this file belongs, by the manifest; None for a folder, where each rank takes its own
    file."""

    def verify(self, rank: int, world_size: int, *, hashes: bool = True) -> Path:
        """The model file that this rank may run. Raises `ShardError` where the manifest says otherwise."""
        if self.manifest is None:
            return self.path
        folder = self.path if self.ranks is None else self.path.parent
        if self.ranks is not None and rank not in self.ranks and self.manifest.world_size == world_size:
            whose = " and ".join(map(str, self.ranks))
            raise ShardError(f"{self.path} is the shard of rank {whose}, but this process is rank {rank}.")
        cached = False
        if folder.parent.name.startswith("slices"):  # saves the import for most
            from ranks.cache.folder import is_cached

            if cached := is_cached(folder, "slices"):
                hold(folder)
        try:
            entry = verify_shard(folder, self.manifest, rank, world_size, hashes=hashes)
        except ShardError as error:
            if not cached or self.manifest.world_size != world_size:
                raise
            from ranks.cache.intact import unseal

            unseal(folder)
            raise ShardError(f"{error} It lies in the cache: the next run makes it anew.") from None
        return folder / entry.model

    def hashes(self, rank: int) -> dict[str, str]:
        """SHA-256 of the rank's files by name, as its manifest has them."""
        if self.manifest is None:
            return {}
        return {entry.file: entry.sha256 for entry in self.manifest.ranks[rank].files}


def find(path: str | Path) -> Shard:
    """Looks at a path. Raises `ModelError` if nothing is there, `ShardError` for a folder that is no slice
    folder."""
    path = Path(path)
    if path.is_dir():
        return Shard(path, read_manifest(path))
    if not path.is_file():
        state = "is neither a file nor a folder" if path.exists() else f"does not exist{hint(path)}"
        raise ModelError(f"The model {shown(path)} {state}.")
    if (path.parent / FILE_NAME).is_file():
        manifest = read_manifest(path.parent)
        ranks = tuple(entry.rank for entry in manifest.ranks if entry.model == path.name)
        if ranks:
            return Shard(path, manifest, ranks)
    return Shard(path, None)


def may_have_collectives(path: Path) -> bool:
    """Whether a name of collectives or of our metadata occurs in the file; much quicker than parsing it."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if len(data) < _LONG:
                return any(data.find(name) >= 0 for name in _COLLECTIVE_NAMES)
            with memoryview(data) as whole:
                stripped = without_weights(whole)
            return any(name in stripped for name in _COLLECTIVE_NAMES)
    except MalformedError as error:
        raise not_a_model(path, error) from None
    except ValueError:
        raise ModelError(f"The model {path} is empty.") from None
    except OSError as error:
        raise ModelError(f"The model {path} cannot be read: {error}.") from None


def read(path: Path) -> onnx.ModelProto:
    """Parses a model without its external data, and checks that these are where it says. Raises
    `ModelError`."""
    return read_placed(path)[0]


def read_outline(path: Path) -> onnx.ModelProto:
    """The same of a file of any length: from 2 GiB on its large weights are in the message by name, type and
    shape alone."""
    try:
        if path.stat().st_size < MESSAGE_BYTES:
            return read(path)
        return without_large_weights(path)
    except MalformedError as error:
        raise not_a_model(path, error) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ModelError:
        raise
    except Exception as error:  # protobuf's own error is not a ValueError
        raise not_a_model(path, error) from None


def read_placed(path: Path) -> tuple[onnx.ModelProto, Path]:
    """The same, and the path beside which its external data lie: the model's own, but where it and its data
    are links, one in the folder of their targets."""
    from sharding.onnx_files.messages import read_message

    refuse_placeholder(path)
    try:
        model = read_message(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ModelError:
        raise
    except Exception as error:  # protobuf's own error is not a ValueError, and onnx's readers raise many
        raise not_a_model(path, error) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it has no nodes and no outputs.")
    folder = _place_external_data(model, path)
    return model, path if folder == path.parent else folder / path.resolve().name


def check_operators(model: onnx.ModelProto, file: Path) -> None:
    """Refuses the operators of multi-GPU models that exist only in builds of ONNX Runtime with NCCL inside.

    (``AllReduce``, ``AllGather`` and ``AllToAll`` are of these, too, but are run here by collectives.)
    """
    for node in nodes_in(model.graph, *model.functions):
        if node.domain == MICROSOFT and node.op_type in _ONLY_WITH_NCCL:
            raise ModelError(
                f"{file} holds the operator {node.op_type} (node {node.name!r}), which computes and "
                "communicates in one and exists only in builds of ONNX Runtime with NCCL: export the rank "
                "models with AllReduce, AllGather and AllToAll, or slice the whole model with `shardrun "
                "slice`."
            )


def serialized(model: onnx.ModelProto, file: Path) -> bytes:
    """A model as bytes. Raises `ModelError` where it is too large for that."""
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf's own types differ between its implementations
        raise ModelError(
            f"{file} holds more than 2 GB inline; store its weights as external data ({error})."
        ) from None


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all initializers."""
    return sum(_tensor_bytes(tensor) for tensor in model.graph.initializer)


def resize(model: onnx.ModelProto, dims: Mapping[str, Sequence[Dim]], path: Path) -> None:
    """Gives inputs new dimensions, and forgets the shapes that followed from the old ones."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in initializers}
    for name, shape in dims.items():
        if name not in inputs:
            raise ModelError(
                f"{path} has no input {name!r} to resize; it has {', '.join(map(repr, inputs))}."
            )
        tensor = inputs[name].type.tensor_type
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
            raise ModelError(
                f"Input {name!r} of {path} has {len(tensor.shape.dim)} axes and cannot be resized to "
                f"{list(shape)}."
            )
        tensor.shape.Clear()
        for dim in shape:
            axis = tensor.shape.dim.add()
            if isinstance(dim, str):
                axis.dim_param = dim
            elif dim is not None and dim >= 0:
                axis.dim_value = dim
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    dtype = element_dtype(tensor.data_type)
    return 0 if dtype.hasobject else count * dtype.itemsize


def bytes_of(tensor: onnx.TensorProto, path: Path) -> memoryview:
    """A tensor's bytes as the file of its model has them, which `read` has checked; mapped if external.

    A tensor whose numbers stand in a field of their type gives the bytes of that field.
    """
    if tensor.data_location != tensor.EXTERNAL:
        return memoryview(tensor.raw_data or tensor.SerializeToString())
    location, offset, told = place_of(tensor)
    length = _tensor_bytes(tensor) if told is None else told
    if length == 0:
        return memoryview(b"")
    return np.memmap(path.parent / location, np.uint8, "r", offset, (length,)).data


def _place_external_data(model: onnx.ModelProto, path: Path) -> Path:
    """Refuses external data outside the model's folder, missing, or shorter than the model says.

    Such data are mapped into memory, where reading past a file's end would kill the process. Returns the
    folder that the locations are relative to: they are rewritten where links lead out of the model's own.
    """
    found: dict[str, tuple[Path, int]] = {}
    external = [item for item in tensors_in(model.graph) if item.data_location == item.EXTERNAL]
    for tensor in external:
        where = f"The weight {tensor.name!r} of {path}"
        try:
            location, offset, told = place_of(tensor)
        except ValueError:
            raise ModelError(f"{where} has an offset or length that is not a number.") from None
        if location not in found:
            place = find_data(path, location, where)
            try:
                found[location] = (place, place.stat().st_size)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise ModelError(f"{where} needs the file {location!r}: {why}.") from None
        expected = _tensor_bytes(tensor)
        length = expected if told is None else told
        if expected and length != expected:
            raise ModelError(f"{where} takes {expected} bytes, but the model says it has {length}.")
        place, size = found[location]
        if offset < 0 or length < 0 or offset + length > size:
            raise ModelError(
                f"{where} ends at byte {offset + length} of {location!r}, which has {size} bytes: the file "
                "is truncated or belongs to another model."
            )
    places = {name: place.resolve() for name, (place, _) in found.items()}
    if all(place.is_relative_to(path.parent.resolve()) for place in places.values()):
        return path.parent
    # ONNX Runtime reads only what lies in one folder and below.
    folder = Path(os.path.commonpath([place.parent for place in places.values()]))
    for tensor in external:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(places[entry.value].relative_to(folder))
    return folder
