"""Detours of exporters written as the plain operators they stand for, before anything is planned.

Only rewrites that give the same elements in the same order, for shapes that are known to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.values import initializer, integer_of, shape_of
from sharding.rules.base import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

Shape = tuple[Dim, ...]
Three = tuple["ir.Node", "ir.Node", "ir.Node"]
Span = tuple[int, int, int]
"""An axis, a place on it, and the one after the last."""
EXPAND_OPSET = 8
"""The first with Expand."""


def simplify(graph: ir.Graph, opset: int) -> None:
    """Rewrites the graph in place. Values that others read stay the same; what is left over stays too.

    ``opset`` is the version of the default opset.
    """
    for node in list(graph):
        if node.op_type == "Reshape" and not node.domain:
            _turned(graph, node)
        elif node.op_type == "Tile" and not node.domain and opset >= EXPAND_OPSET:
            _repeated(node)
        elif node.op_type == "ScatterND" and not node.domain:
            _assigned(graph, node)


def _turned(graph: ir.Graph, last: ir.Node) -> None:
    """Rewrites a Reshape, a Transpose and a Reshape, of which nothing else uses what is in between."""
    turn = _only_use(last.inputs[0], "Transpose")
    first = None if turn is None else _only_use(turn.inputs[0], "Reshape")
    attribute = None if turn is None else turn.attributes.get("perm")
    if turn is None or first is None or attribute is None or attribute.is_ref():
        return
    shapes = [shape_of(value) for value in (first.inputs[0], turn.inputs[0], last.outputs[0])]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        for rewrite in (_transposed_in_between, _heads_of_batch):
            rewrite(graph, (first, turn, last), list(attribute.as_ints()), known)


def _transposed_in_between(graph: ir.Graph, nodes: Three, perm: list[int], shapes: list[Shape]) -> None:
    """Reshape, Transpose, Reshape that merge leading axes, turn the others, and take the axes apart again.

    Exporters write so the transposed keys of attention: [batch, heads, length, size] as [-1, length, size],
    [-1, size, length], [batch, heads, size, length]. With a symbolic batch the merged axis has no known
    length, and nothing could be said of the heads in it. One Transpose does the same.
    """
    (first, turn, last), (source, merged, result) = nodes, shapes
    leading = len(source) - len(merged) + 1
    if leading < 1 or sorted(perm) != list(range(len(merged))) or perm[0] != 0:
        return
    moved = [source[leading - 1 + axis] for axis in perm[1:]]
    if not _equal(merged[1:], source[leading:]) or not _equal(result, [*source[:leading], *moved]):
        return
    _becomes_transpose(last, first.inputs[0], [*range(leading), *(leading - 1 + axis for axis in perm[1:])])
    graph.remove([turn, first], safe=True)


def _heads_of_batch(graph: ir.Graph, nodes: Three, perm: list[int], shapes: list[Shape]) -> None:
    """Heads taken out of the last axis into that of the batch, brought to the front, and apart again.

    Attention with the sequence first is written so: [length, batch, heads * size] as [length, batch * heads,
    size], [batch * heads, length, size], [batch, heads, length, size]. With a symbolic batch the middle axis
    has no known length. One Reshape of the last axis and one Transpose do the same.
    """
    import onnx_ir as ir

    (first, turn, last), (source, merged, result) = nodes, shapes
    if perm != [1, 0, 2] or len(first.inputs) < 2 or (len(source), len(result)) != (3, 4):
        return
    (length, batch, width), (heads, size) = source, (result[1], result[3])
    if not isinstance(heads, int) or not isinstance(size, int) or heads * size != width or width == 0:
        return
    if not _equal((merged[0], merged[2], *result), (length, size, batch, heads, length, size)):
        return
    shape = ir.tensor([0, 0, heads, size], dtype=ir.DataType.INT64)
    name = f"{last.outputs[0].name}/heads"
    taken = {value.name for node in graph for value in node.outputs} | {value.name for value in graph.inputs}
    if name in taken or name in graph.initializers:
        return
    target = initializer(name, shape, graph)
    # The three nodes become two: the first one's value changes, but nothing else reads it.
    first.replace_input_with(1, target)
    first.attributes.clear()
    first.outputs[0].shape = ir.Shape([length, batch, heads, size])
    _becomes_transpose(last, first.outputs[0], [1, 2, 0, 3])
    graph.remove([turn], safe=True)


def _becomes_transpose(node: ir.Node, value: ir.Value | None, axes: list[int]) -> None:
    import onnx_ir as ir

    node.op_type = "Transpose"
    node.replace_input_with(0, value)
    node.resize_inputs(1)
    node.attributes.clear()
    node.attributes.add(ir.AttrInt64s("perm", axes))


def _repeated(node: ir.Node) -> None:
    """Tile of nothing but axes of length 1 is Expand, of which each row needs its own row alone.

    An axis of another length that stays as long as it is has 1 repeat, which leaves it as it is in both.
    """
    source, result = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if len(node.inputs) != 2 or source is None or result is None or len(source) != len(result):
        return
    kept = [(a, b) for a, b in zip(source, result, strict=True) if a != 1]
    if all(a is not None and a == b and a != 0 for a, b in kept):
        node.op_type = "Expand"


def _assigned(graph: ir.Graph, node: ir.Node) -> None:
    """Rewrites ``x[..., a:b] = v`` along one axis, of which exporters write a ScatterND with the place of
    each element: what lies before, v, and what lies behind are joined, and nothing asks for places then.
    """
    import onnx_ir as ir

    data, places, given = node.inputs
    shape = shape_of(data)
    mode = node.attributes.get("reduction")
    if data is None or not shape or (mode is not None and mode.value != "none"):
        return
    span = _span(places, shape)
    grid, updates = shape_of(places), shape_of(given)
    # ONNX Runtime refuses others, of which what is joined would have the shape.
    if span is None or grid is None or updates is None or not _equal(updates, grid[:-1]):
        return
    base = f"{node.outputs[0].name}/kept"
    taken = {value.name for made in graph for value in made.outputs} | {value.name for value in graph.inputs}
    if any((name or "").startswith(base) for name in (*taken, *graph.initializers)):
        return
    axis, start, end = span
    parts = [given]
    if isinstance(end, int) and start > 0:
        parts = [*_part(graph, node, data, (axis, 0, start)), given]
    if isinstance(end, int) and isinstance(length := shape[axis], int) and end < length:
        parts += _part(graph, node, data, (axis, end, length))
    node.op_type = "Concat" if len(parts) > 1 else "Identity"
    node.resize_inputs(len(parts))
    for index, part in enumerate(parts):
        node.replace_input_with(index, part)
    node.attributes.clear()
    if len(parts) > 1:
        node.attributes.add(ir.AttrInt64("axis", axis))


def _part(graph: ir.Graph, node: ir.Node, data: ir.Value, span: Span) -> list[ir.Value | None]:
    """The values that make up a part of ``data`` along an axis: pieces that it was joined of, or a Slice."""
    import onnx_ir as ir

    axis, start, end = span
    source = data.producer()
    if source is not None and source.op_type == "Concat" and not source.domain:
        bounds, found = [0], []
        for piece in source.inputs:
            length = (shape_of(piece) or (None,) * (axis + 1))[axis]
            if not isinstance(length, int) or integer_of(source, "axis", -1) != axis:
                break
            if start <= bounds[-1] and bounds[-1] + length <= end:
                found.append(piece)
            bounds.append(bounds[-1] + length)
        else:
            if {start, end} <= set(bounds):
                return found
    made = ir.Node("", "Slice", [data], num_outputs=1)
    graph.insert_before(node, [made])
    base = f"{node.outputs[0].name}/kept{start}"
    for name, number in (("starts", start), ("ends", end), ("axes", axis)):
        tensor = ir.tensor([number], dtype=ir.DataType.INT64)
        made.resize_inputs(len(made.inputs) + 1)
        made.replace_input_with(len(made.inputs) - 1, initializer(f"{base}/{name}", tensor, graph))
    (value,) = made.outputs
    value.name, value.type = base, data.type
    value.shape = ir.Shape([end - start if at == axis else n for at, n in enumerate(shape_of(data) or ())])
    return [value]


def _span(places: ir.Value | None, shape: Shape) -> tuple[int, int, Dim] | None:
    """The axis, first place and end of the rectangle that a grid of places stands for: all of every axis, but
    of one at most. None for other places."""
    joined, grid = None if places is None else places.producer(), shape_of(places)
    if joined is None or joined.op_type != "Concat" or joined.domain or len(joined.inputs) != len(shape):
        return None
    if grid is None or len(grid) != len(shape) + 1 or integer_of(joined, "axis", -1) not in {-1, len(shape)}:
        return None
    found: tuple[int, int, Dim] = (0, 0, shape[0])
    partial = 0
    for axis, (value, length) in enumerate(zip(joined.inputs, shape, strict=True)):
        counted = _counted(value, axis, len(shape))
        if counted is None or grid[axis] is None or grid[axis] != counted[1]:
            return None
        start, count = counted
        if start == 0 and count == length:
            continue
        if not isinstance(length, int) or not isinstance(count, int) or not 0 <= start <= length - count:
            return None
        found, partial = (axis, start, start + count), partial + 1
    return found if partial <= 1 else None


def _counted(value: ir.Value | None, axis: int, rank: int) -> tuple[int, Dim] | None:
    """The first of the numbers that one coordinate of a grid counts along its axis, and how many there are;
    None where it does anything else."""
    for op_type in ("Unsqueeze", "Expand"):
        node = None if value is None else value.producer()
        if node is None or node.op_type != op_type or node.domain:
            return None
        value = node.inputs[0]
    shape = shape_of(value)
    if value is None or shape is None or len(shape) < rank - axis:
        return None
    own = axis - rank + len(shape)
    if any(length != 1 for at, length in enumerate(shape) if at != own):
        return None
    while (node := value.producer()) is not None and node.op_type in {"Reshape", "Unsqueeze"}:
        value = node.inputs[0]  # only one axis is longer than 1, so the order stays
        if node.domain or value is None:
            return None
    if node is not None:
        ends = [small_constant(item) for item in node.inputs if item is not None][::2]
        if node.op_type != "Range" or node.domain or None in [end if end is None else 0 for end in ends]:
            return None
        return (0, shape[own]) if [end.item() for end in ends if end is not None] == [0, 1] else None
    numbers = small_constant(value)
    if numbers is None or numbers.size == 0 or numbers.dtype.kind != "i":
        return None
    first = int(numbers.flat[0])
    counted = numbers.reshape(-1).tolist() == list(range(first, first + numbers.size))
    return (first, numbers.size) if counted else None


def _only_use(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node of this type that a value comes from, if the value has one use and is no output."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or node.op_type != op_type:
        return None
    return node if len(value.uses()) == 1 and not value.is_graph_output() else None


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are surely equal."""
    return None not in a and list(a) == list(b)
