"""Which inputs of a model carry state, and the shapes of their first values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ranks.collectives.buffers import Shape
from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
from ranks.sessions.nodes import reads
from sharding.onnx_files.kinds import declared_shape
from sharding.onnx_files.walk import subgraphs
from sharding.slices import state, state_search
from sharding.slices.domains import MICROSOFT
from sharding.slices.state import StatePair
from sharding.slices.state_use import SLOTS

if TYPE_CHECKING:
    import onnx

    from ranks.common.tensors import Dim
    from sharding.common.arrays import Array

_ATTENTION = {"GroupQueryAttention": tuple(slot.past for slot in SLOTS[MICROSOFT, "GroupQueryAttention"])}
"""Operators that know the head size where the file leaves it open, and which of their inputs are state."""


def pairs_of(model: onnx.ModelProto, where: str) -> tuple[StatePair, ...]:
    """The state of a model: what slicing wrote into a rank model, else what is found in the graph.

    Raises `ShardError` for metadata that slicing does not write; ``where`` names the file.
    """
    for item in model.metadata_props:
        if item.key == state.METADATA:
            return state.parse_metadata(item.value, where)
    graph = model.graph
    held = {tensor.name for tensor in graph.initializer}
    return state_search.find(
        [_described(value) for value in graph.input if value.name not in held],
        [_described(value) for value in graph.output],
        [(node.domain, node.op_type, _taken(node), list(node.output)) for node in graph.node],
    )


def _taken(node: onnx.NodeProto) -> list[str]:
    """A node's inputs, each in its place, and behind them what its subgraphs take from outside."""
    return [*node.input, *(reads(node) if any(True for _ in subgraphs(node)) else ())]


def least_rooms(model: onnx.ModelProto) -> dict[str, int]:
    """Input of state -> positions that its buffer must have room for: an attention that looks at a window of
    positions may ask for a buffer of that size from the first step on."""
    found: dict[str, int] = {}
    for node in model.graph.node:
        numbers = {item.name: item.i for item in node.attribute}
        if numbers.get("sliding_window_cache", 0) and numbers.get("local_window_size", -1) > 0:
            slots = _ATTENTION.get(node.op_type, ())
            found.update((node.input[slot], numbers["local_window_size"]) for slot in slots)
    return found


def head_sizes(model: onnx.ModelProto, pairs: Iterable[StatePair]) -> dict[str, int]:
    """Input of state -> the length of its last axis, as its output, what is joined to it, or attention
    operators have it.

    ONNX Runtime GenAI's model builder leaves it open. A query ``[batch, length, heads * size]`` says it; keys
    and values may be packed behind the queries.
    """
    graph = model.graph
    shapes = {value.name: value.type.tensor_type.shape for value in [*graph.value_info, *graph.input]}
    widths = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    made = {name: node for node in graph.node for name in node.output}
    found: dict[str, int] = {}
    made_as = {pair.output: pair.input for pair in pairs if pair.kind == "append"}
    grown = {name: {value.name} for value in graph.output if (name := made_as.get(value.name))}
    shapes |= {value.name: value.type.tensor_type.shape for value in graph.output}
    for node in graph.node:
        if node.op_type == "Concat":
            for name in grown.keys() & set(node.input):
                grown[name] |= set(node.input)
    for name, alike in grown.items():
        dims = [shapes[other].dim for other in alike if other in shapes]
        sizes = {dim[-1].dim_value for dim in dims if len(dim) > 3}
        if size := max(sizes, default=0):
            found[name] = size
    for node in graph.node:
        slots = _ATTENTION.get(node.op_type)
        if slots is None:
            continue
        numbers = {item.name: item.i for item in node.attribute}
        heads, groups = numbers.get("num_heads", 0), numbers.get("kv_num_heads", 0)
        packed = len(node.input) < 2 or not node.input[1]
        width = _width(node.input[0], shapes, widths, made)
        parts = heads + 2 * groups if packed else heads
        if width and parts and width % parts == 0:
            found.update((node.input[slot], width // parts) for slot in slots if slot < len(node.input))
    return found


def _width(
    name: str,
    shapes: Mapping[str, onnx.TensorShapeProto],
    widths: Mapping[str, int],
    made: Mapping[str, onnx.NodeProto],
) -> int:
    """The length of a value's last axis: as declared, or as the product that gives it has; 0 if unknown."""
    for _ in range(8):
        dims = shapes[name].dim if name in shapes else ()
        if dims and dims[-1].dim_value:
            return dims[-1].dim_value
        node = made.get(name)
        if node is None:
            return 0
        if node.op_type == "MatMulNBits":
            return next((item.i for item in node.attribute if item.name == "N"), 0)
        known = [widths[other] for other in node.input if other in widths]
        if known and node.op_type in {"MatMul", "Add"}:
            return known[0]
        name = node.input[0]
    return 0


def first_shapes(
    pairs: Sequence[StatePair],
    specs: Mapping[str, TensorSpec],
    sizes: Mapping[str, int],
    fresh: Sequence[TensorSpec],
    feeds: Mapping[str, Array],
) -> dict[str, Shape]:
    """The shape of each state input before the first step: nothing along the axis that grows.

    ``specs``: the state inputs of this rank's model; ``sizes``: `head_sizes`; ``fresh`` and ``feeds``: the
    other inputs and what the first step gives them. Raises `ShardrunError` for a length that nothing tells.
    """
    symbols: dict[Dim, int] = {}
    batch = None
    for spec in fresh:
        array = feeds.get(spec.name)
        if array is None or len(spec.shape) != array.ndim:
            continue
        symbols.update(zip(spec.shape, array.shape, strict=True))
        batch = array.shape[0] if batch is None and array.ndim >= 2 else batch
    return {pair.input: _first_shape(pair, specs[pair.input], sizes, symbols, batch) for pair in pairs}


def batch_axis(spec: TensorSpec, fresh: Sequence[TensorSpec]) -> int:
    """The axis of a state input that has the batch: the one named like the first axis of the other inputs."""
    names = {other.shape[0] for other in fresh if len(other.shape) > 1 and isinstance(other.shape[0], str)}
    return next((axis for axis, dim in enumerate(spec.shape) if dim in names), 0)


def _first_shape(
    pair: StatePair,
    spec: TensorSpec,
    sizes: Mapping[str, int],
    symbols: Mapping[Dim, int],
    batch: int | None,
) -> Shape:
    shape = []
    for axis, dim in enumerate(spec.shape):
        if axis == pair.axis:
            shape.append(0)
        elif isinstance(dim, int):
            shape.append(dim)
        elif axis == len(spec.shape) - 1 and spec.name in sizes:
            shape.append(sizes[spec.name])
        elif dim is not None and dim in symbols:
            shape.append(symbols[dim])
        elif axis == 0 and batch is not None:
            shape.append(batch)
        else:
            raise ShardrunError(
                f"The first value of the state {spec.name!r} cannot be made: axis {axis} of {spec} is open. "
                "Give it when the session is opened: session(initial={...})."
            )
    return tuple(shape)


def _described(value: onnx.ValueInfoProto) -> tuple[str, str, tuple[int | str | None, ...] | None]:
    return value.name, str(value.type.tensor_type.elem_type), declared_shape(value.type)
