"""A model file to an `onnx_ir` graph, its weights left where they lie."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.nearby import hint, shown
from sharding.errors import ModelError
from sharding.graph.constants import constants_to_initializers, load_inner_weights, loaded
from sharding.graph.sizes import Sizes
from sharding.graph.symbols import tell_apart
from sharding.graph.values import captured
from sharding.importers import import_model, is_imported
from sharding.onnx_files.functions import inline_functions
from sharding.onnx_files.graph_library import import_graph_library
from sharding.onnx_files.placeholders import refuse_placeholder
from sharding.onnx_files.protobuf import MalformedError, not_a_model, without_weights
from sharding.onnx_files.tensors import WeightTensor, locate
from sharding.onnx_files.validity import check, check_nodes, first_cause
from sharding.reading.bodies import open_bodies
from sharding.reading.control_flow import fold_branches, lift_weights
from sharding.reading.declared import confirm, forget
from sharding.reading.groups import check_groups
from sharding.reading.shapes import infer, part_merged_axes
from sharding.rewrite.folded_weights import fold_weights
from sharding.rewrite.joined_directions import join_directions
from sharding.rewrite.packed_products import take_apart
from sharding.rewrite.recurrent_weights import recurrent_weights_to_initializers
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.manifest import FileEntry, sha256_of
from sharding.slices.state import StatePair

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.encryption import Key


@dataclass
class Source:
    """A model that was read: its graph, every constant an initializer, and its weights by name."""

    path: Path
    bytes: int
    hash_file: Callable[[], str]
    """Gives the file's SHA-256, which is made once; see `hashed`."""
    model: ir.Model
    weights: dict[str, WeightTensor]
    defaults: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    """Values of inputs that need not be fed; each is an ordinary input of the graph, so it is not cut."""
    sizes: Sizes = field(default_factory=Sizes)
    """What open lengths count as where a plan is estimated."""
    made_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For weights that are not in the file: the file's names of those that they were folded from."""
    state: tuple[StatePair, ...] = ()
    """The inputs that are fed what outputs gave in the step before, where a plan looks for them."""
    asked: frozenset[str] = frozenset()
    """Those of them that a user has named."""

    @property
    def file_name(self) -> str:
        """The file's name, in which what is no text is replaced."""
        return self.path.name.encode(errors="replace").decode()

    def hashed(self) -> FileEntry:
        """The file with its hash. The first time that takes as long as to read all of it: what may refuse a
        large file comes before."""
        return FileEntry(self.file_name, self.bytes, self.hash_file())


@WHOLE_FILES
def read_model(path: str | Path, key: Key | None = None) -> Source:
    """Reads an ONNX file, or one that is turned into it (`sharding.importers`); weights stay in their files.
    ``key`` is that of an encrypted file, whose weights are in memory then.

    Raises `ModelError`: the path is missing, a folder, empty, truncated or not ONNX; the graph is invalid; or
    external data does not lie inside the model's folder with the length that its shape needs.
    """
    path = Path(path)
    import_graph_library()
    proto, size = _read_proto(path, key)
    model = _deserialize(proto, path)
    declared = forget(model.graph)
    tell_apart(model.graph)
    defaults = _overridable(model, path)
    while True:
        constants_to_initializers(model)
        lift_weights(model)
        load_inner_weights(model, path)
        _check_tensors(model, path)
        infer(model, path)
        if confirm(model, path, declared):
            infer(model, path)
        if not fold_branches(model) and not open_bodies(model, path):
            break  # else what a body held may now be known better
    check_groups(model, path)
    join_directions(model.graph, model.opset_imports.get("", 1))
    part_merged_axes(model)
    made_of = fold_weights(model, path)
    made_of |= recurrent_weights_to_initializers(model, path)
    take_apart(model, path)
    weights = {
        name: locate(name, _data(value, path), path) for name, value in model.graph.initializers.items()
    }
    hash_file = functools.cache(functools.partial(sha256_of, path))
    return Source(path, size, hash_file, model, weights, defaults, made_of=made_of)


def _read_proto(path: Path, key: Key | None) -> tuple[onnx.ModelProto, int]:
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
            refuse_placeholder(path)
            if is_imported(path):
                return _checked(import_model(path, key=key), path), size
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                stripped = without_weights(data)
    except FileNotFoundError:
        raise ModelError(f"{shown(path)} does not exist{hint(path)}; expected an ONNX file.") from None
    except MalformedError as error:
        raise not_a_model(path, error) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(stripped)
    except Exception as error:  # protobuf's DecodeError, whose module differs between its implementations
        raise not_a_model(path, error) from None
    return _checked(proto, path), size


def _checked(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    try:
        check(proto, path)
        proto = inline_functions(proto, path)
        check_nodes(proto, path)
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not an ONNX file: it holds text that is not UTF-8.") from None
    return proto


def _deserialize(proto: onnx.ModelProto, path: Path) -> ir.Model:
    import onnx_ir as ir

    try:
        model = ir.serde.deserialize_model(proto)
        model.graph.sort()
    except Exception as error:  # a hostile file can fail anywhere in here, and is always a bad model
        raise ModelError(f"{path} is not a valid ONNX model: {first_cause(error)}.") from None
    graph = model.graph
    known: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in (*node.inputs, *captured(node)):
            if value is not None and value not in known:
                raise ModelError(
                    f"{path} is not valid: node {node.name or node.op_type!r} reads {value.name!r}, "
                    f"which nothing produces."
                )
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known:
            raise ModelError(f"{path} is not valid: nothing produces its output {value.name!r}.")
    return model


def _overridable(model: ir.Model, path: Path) -> dict[str, ir.TensorProtocol]:
    """Takes initializers that are listed as inputs off one of the two lists; what is given for the others.

    Up to IR version 3 every initializer had to be an input, and exporters kept to that later: where all of
    them are, they are weights, which nobody feeds. Where only some are, these are inputs with a default.
    """
    import onnx_ir as ir

    graph = model.graph
    listed = [value for value in graph.inputs if value.is_initializer()]
    if model.ir_version < 4 or len(listed) == len(graph.initializers):
        kept = [value for value in graph.inputs if not value.is_initializer()]
        graph.inputs.clear()
        graph.inputs.extend(kept)
        return {}
    defaults = {}
    for value in listed:
        name = value.name or ""
        tensor = _data(value, path)
        _check_tensor(name, tensor, path)
        defaults[name] = loaded(name, tensor, path)
        del graph.initializers[name]
        value.const_value = None
        value.type = value.type or ir.TensorType(tensor.dtype)
    return defaults


def _data(value: ir.Value, path: Path) -> ir.TensorProtocol:
    if value.const_value is None:
        raise ModelError(f"{path} is not valid: weight {value.name!r} has no data.")
    return value.const_value


def _check_tensors(model: ir.Model, path: Path) -> None:
    """Checks every tensor; what the model declares of its weights elsewhere does not count."""
    import onnx_ir as ir

    for name, value in model.graph.initializers.items():
        tensor = _data(value, path)
        _check_tensor(name, tensor, path)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(list(tensor.shape.numpy()))
    holders: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for holder in holders:
        for node in holder.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    _check_tensor(node.name or node.op_type, attribute.value, path)


def _check_tensor(name: str, tensor: ir.TensorProtocol, path: Path) -> None:
    """Checks that a tensor in the message has as many elements as its shape says."""
    import onnx_ir as ir

    if isinstance(tensor, ir.ExternalTensor):
        return  # `locate` does
    try:
        right = tensor.numpy().shape == tuple(tensor.shape.numpy())
    except Exception:  # data of the wrong length, an unknown type, ...
        right = False
    if not right:
        raise ModelError(f"{path} is not valid: weight {name!r} does not hold what its type and shape say.")
