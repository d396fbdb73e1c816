"""What an ONNX file holds, without slicing it: inputs, outputs, weights, operators."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.inspection.inspection import tensors_json, weights_json
from sharding.graph.sizes import tensor_bytes
from sharding.onnx_files.kinds import declared_shape
from sharding.onnx_files.walk import nodes_in
from sharding.slices.state import Tensor

if TYPE_CHECKING:
    import onnx

    from sharding.common.encryption import Key


@dataclass(frozen=True)
class ModelSummary:
    """A model file; ``weights`` are name, element type, shape and bytes, the largest first."""

    path: Path
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[tuple[str, str, tuple[int, ...], int], ...]
    operators: dict[str, int]
    """Name, with its domain unless that is ONNX's own -> nodes, also those of functions and subgraphs."""
    functions: int
    annotated: tuple[str, ...]
    """Names of the multi-device configurations that the model carries, as ``NAME (N devices)``."""

    @property
    def bytes(self) -> int:
        """The bytes of all weights."""
        return sum(weight[3] for weight in self.weights)

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON values."""
        return {
            "file": str(self.path),
            "ir_version": self.ir_version,
            "opsets": self.opsets,
            "producer": self.producer,
            "inputs": tensors_json(self.inputs),
            "outputs": tensors_json(self.outputs),
            "weight_bytes": self.bytes,
            "weights": weights_json(self.weights),
            "operators": self.operators,
            "functions": self.functions,
            "device_configurations": list(self.annotated),
        }


def summarize(path: Path, key: Key | None = None) -> ModelSummary:
    """Reads a model without its external data; ``key`` is that of an encrypted one.

    Raises `ModelError` for a file that is no model.
    """
    from ranks.models.model_file import find, read_outline
    from sharding.importers import import_model, is_imported
    from sharding.onnx_files.validity import demand_text

    model = import_model(path, key=key) if is_imported(path) else read_outline(find(path).path)
    demand_text(model, path)
    graph = model.graph
    nodes = Counter(
        f"{node.domain}.{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type
        for node in nodes_in(graph, *model.functions)
    )
    return ModelSummary(
        path,
        model.ir_version,
        {item.domain or "ai.onnx": item.version for item in model.opset_import},
        f"{model.producer_name} {model.producer_version}".strip(),
        *signature(model),
        listed_weights(model),
        dict(sorted(nodes.items(), key=lambda item: (-item[1], item[0]))),
        len(model.functions),
        tuple(f"{item.name} ({item.num_devices} devices)" for item in getattr(model, "configuration", ())),
    )


def signature(model: onnx.ModelProto) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A model's inputs, without those that are weights, and its outputs."""
    graph = model.graph
    held = {tensor.name for tensor in graph.initializer}
    return (
        tuple(tensor_of(value) for value in graph.input if value.name not in held),
        tuple(tensor_of(value) for value in graph.output),
    )


def listed_weights(model: onnx.ModelProto) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
    """Name, element type, shape and bytes of a model's weights, the largest first."""
    return tuple(sorted(map(weight_of, model.graph.initializer), key=lambda weight: (-weight[3], weight[0])))


def tensor_of(value: onnx.ValueInfoProto) -> Tensor:
    """An input's or output's name, element type (or what it is, if no tensor) and shape."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return value.name, (kind or "unknown").removesuffix("_type"), ()
    return value.name, name_of_type(value.type.tensor_type.elem_type), declared_shape(value.type)


def weight_of(tensor: onnx.TensorProto) -> tuple[str, str, tuple[int, ...], int]:
    """An initializer's name, element type, shape and bytes."""
    dtype, shape = name_of_type(tensor.data_type), tuple(tensor.dims)
    return tensor.name, dtype, shape, tensor_bytes(dtype, shape, {})


def name_of_type(number: int) -> str:
    """The name of one of ONNX's element types, as numpy has it where it has one."""
    import onnx

    try:
        name: str = onnx.TensorProto.DataType.Name(number)
    except ValueError:
        return f"type {number}"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
