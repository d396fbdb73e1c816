"""The state pairs of a model that was read: by its graph, its folder, and what a user says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import OptionError
from sharding.graph.symbols import shown_shape
from sharding.onnx_files.tensors import dtype_name
from sharding.slices.state import StatePair, Tensor, find

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from sharding.reading.read import Source

CONFIG = "genai_config.json"
"""What ONNX Runtime GenAI says of a model, in the model's folder."""
MAX_BYTES = 1 << 20
_LAYERS = 4096


def found_state(source: Source, given: Mapping[str, str]) -> tuple[StatePair, ...]:
    """The pairs of a model; ``given``: those that a user says. Raises `OptionError` where one cannot be."""
    graph = source.model.graph
    nodes = (
        (
            node.domain,
            node.op_type,
            ["" if value is None else value.name or "" for value in node.inputs],
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
        for key, pattern in inputs.items():
            made = next((outputs[other] for other in _partners(key) if other in outputs), None)
            if not isinstance(pattern, str) or not isinstance(made, str):
                continue
            if "%d" not in pattern:
                yield pattern, made
            for layer in range(_LAYERS) if "%d" in pattern and "%d" in made else ():
                name = pattern.replace("%d", str(layer))
                if name in names:  # layers of another sort leave their numbers out
                    yield name, made.replace("%d", str(layer))


def _partners(key: str) -> Iterator[str]:
    """The keys that an input's output may have."""
    if "past" in key:
        yield key.replace("past", "present")
    if "prev" in key:
        for text in ("prev_", "_prev"):
            yield key.replace(text, "")


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
