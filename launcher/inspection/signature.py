"""A model's inputs and outputs as its file declares them: known before it is sliced, so that what does not
fit them is refused before that costs anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from sharding.common.text import did_you_mean
from sharding.errors import ShardrunError
from sharding.onnx_files.kinds import refuse_others
from sharding.slices.manifest import TensorEntry

if TYPE_CHECKING:
    import onnx

    from ranks.common.tensors import TensorSpec
    from sharding.common.encryption import Key
    from sharding.slices.manifest import Manifest

NO_TENSORS = frozenset({"sequence", "map", "optional", "sparse_tensor", "opaque", "unknown"})
"""What stands for the element type of an input or output that is no tensor."""
FIRST_OPTIONAL_IR = 4
"""Before this IR version every initializer had to be listed as an input, and none was one."""


@dataclass(frozen=True)
class Signature:
    """Inputs that must be fed, inputs that have a default, outputs, and all symbols of lengths."""

    inputs: tuple[TensorEntry, ...]
    optional: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    symbols: frozenset[str] = frozenset()
    """Of inputs, outputs and what the file declares of values between them."""
    operators: frozenset[str] = frozenset()
    """The names of nodes and of their operators."""
    weights: frozenset[str] = frozenset()

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec], list[TensorSpec]]:
        """Inputs, outputs and optional inputs as a rank describes them."""
        inputs, outputs, optional = (
            [_spec(entry) for entry in entries] for entries in (self.inputs, self.outputs, self.optional)
        )
        return inputs, outputs, optional


def declared_by(model: Path, key: Key | None = None, *, runs: bool = True) -> Signature | None:
    """What a model file declares, read without its weights; None where it cannot be read: its reader says
    why.

    Raises `ModelError`, where the model is to run, for versions that ONNX Runtime does not run, and for
    inputs and outputs that ranks cannot take or give.
    """
    from ranks.sessions.versions import check_versions

    message = message_of(model, key)
    if message is None:
        return None
    if runs:
        check_versions(message, model)
        refuse_others(message.graph, model)
    return signature_of(message)


def message_of(model: Path, key: Key | None = None) -> onnx.ModelProto | None:
    """A model file without its weights; None where it cannot be read: its reader says why."""
    from sharding.importers.message import parse_without_weights

    try:
        return parse_without_weights(model, key)
    except (OSError, ValueError, ShardrunError):
        return None
    except Exception as error:  # protobuf's DecodeError, whose module differs between its implementations
        if type(error).__name__ == "DecodeError":
            return None
        raise


def signature_of(message: onnx.ModelProto) -> Signature:
    """What a model's message declares."""
    graph = message.graph
    held = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    listed = [value for value in graph.input if value.name in held]
    weights = message.ir_version < FIRST_OPTIONAL_IR or len(listed) == len(held)
    entries = [_entry(value) for value in graph.input]
    between = (_entry(value).shape for value in graph.value_info)
    outputs = tuple(map(_entry, graph.output))
    shapes = [*(entry.shape for entry in (*entries, *outputs)), *between]
    return Signature(
        tuple(entry for entry in entries if entry.name not in held),
        tuple(entry for entry in entries if entry.name in held and not weights),
        outputs,
        frozenset(dim for shape in shapes for dim in shape if isinstance(dim, str)),
        frozenset(name for node in graph.node for name in (node.name, node.op_type) if name),
        frozenset(held),
    )


def manifest_symbols(manifest: Manifest) -> frozenset[str]:
    """The symbols of lengths that a slice folder's manifest names."""
    shapes = [
        *(entry.shape for entry in (*manifest.inputs, *manifest.optional_inputs, *manifest.outputs)),
        *(item.shape for item in manifest.collectives),
    ]
    return frozenset(dim for shape in shapes for dim in shape if isinstance(dim, str))


def check_dims(dims: Mapping[str, int], symbols: Sequence[str] | frozenset[str]) -> None:
    """Raises `ConfigError` for a dimension that the model does not have."""
    names = sorted(symbols)
    for name, length in dims.items():
        if name not in symbols:
            raise ConfigError(
                f"--dim {name}={length}: the model has no such symbolic dimension (it has: "
                f"{', '.join(names) or 'none'}){did_you_mean(name, names)}"
            )


def check_plan(entries: Mapping[str, str], operators: frozenset[str]) -> None:
    """Raises `ConfigError` for an entry of an execution plan that names no node and no operator of the model.

    Slicing writes some nodes as others, so that any operator there is may be meant.
    """
    for name in entries:
        if name not in operators and not _is_operator(name):
            hint = did_you_mean(name, operators) or (
                ": expected the name of a node or of a type of operators, such as MatMul"
            )
            raise ConfigError(
                f"--execution-plan {name}: the model has no node or operator of this name{hint}"
            )


def _entry(value: onnx.ValueInfoProto) -> TensorEntry:
    from launcher.inspection.model_summary import tensor_of

    name, dtype, shape = tensor_of(value)
    declared = value.type
    is_open = declared.HasField("tensor_type") and not declared.tensor_type.HasField("shape")
    return TensorEntry(name, dtype, tuple(shape or ()), open_rank=is_open)


def _is_operator(name: str) -> bool:
    import onnx

    return any(schema.name == name for schema in onnx.defs.get_all_schemas())


def _spec(entry: TensorEntry) -> TensorSpec:
    from launcher.common.element_types import numpy_dtype
    from ranks.common.tensors import OBJECT, TensorSpec

    if entry.dtype in NO_TENSORS:
        return TensorSpec(entry.name, OBJECT, (), is_tensor=False)
    dtype = numpy_dtype(entry.dtype)
    return TensorSpec(entry.name, dtype, tuple(entry.shape), open_rank=entry.open_rank)


def fed_weight(name: str) -> str:
    """What to do where somebody feeds a weight."""
    return (
        f"; {name!r} is a weight, of which ranks hold parts: name it in variable_weights and replace it by "
        "update_weights. Only where a model lists some of its weights as inputs, and leaves others out, may "
        "those be fed"
    )


def names_of_weights(model: Path) -> Collection[str]:
    """The names of the weights of a model file or slice folder; none where it cannot be read."""
    from sharding.slices.manifest import read_manifest

    try:
        if model.is_dir():
            return read_manifest(model).weights.keys()
    except (OSError, ShardrunError):
        return ()
    message = message_of(model)
    return () if message is None else signature_of(message).weights
