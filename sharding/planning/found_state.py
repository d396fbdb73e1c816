"""The state pairs of a model that was read: by its graph, its folder, and what a user says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import OptionError
from sharding.graph.symbols import shown_shape
from sharding.graph.values import captured
from sharding.onnx_files.tensors import dtype_name
from sharding.slices.state import StatePair, Tensor
from sharding.slices.state_names import of_layers, partners
from sharding.slices.state_search import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from sharding.reading.read import Source

CONFIG = "genai_config.json"
"""What ONNX Runtime GenAI says of a model, in the model's folder."""
MAX_BYTES = 1 << 20


def found_state(source: Source, given: Mapping[str, str]) -> tuple[StatePair, ...]:
    """The pairs of a model; ``given``: those that a user says. Raises `OptionError` where one cannot be."""
    graph = source.model.graph
    nodes = (
        (
            node.domain,
            node.op_type,
            ["" if value is None else value.name or "" for value in (*node.inputs, *captured(node))],
            [value.name or "" for value in node.outputs],
        )
        for node in graph
    )
    inputs, outputs = _tensors(graph.inputs), _tensors(graph.outputs)
    names = {name for name, _, _ in inputs}
    try:
        return find(inputs, outputs, nodes, given.items(), _named_beside(source.path, names))
    except OptionError as error:
        raise OptionError(f"{source.path}: {error}") from None


def _tensors(values: Sequence[ir.Value]) -> list[Tensor]:
    return [(value.name or "", dtype_name(value.dtype), shown_shape(value)) for value in values]


def _named_beside(model: Path, names: set[str]) -> Iterator[tuple[str, str]]:
    """Inputs and outputs that a configuration in the model's folder pairs, layer by layer."""
    for part in _parts(model.parent / CONFIG):
        inputs, outputs = part.get("inputs"), part.get("outputs")
        if not isinstance(inputs, dict) or not isinstance(outputs, dict):
            continue
        yield from of_layers(partners(inputs, outputs), names)


def _parts(path: Path) -> Iterator[dict[str, object]]:
    """The models that a configuration describes; none where it is not one."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    model = data.get("model") if isinstance(data, dict) else None
    for part in model.values() if isinstance(model, dict) else ():
        if isinstance(part, dict):
            yield part
