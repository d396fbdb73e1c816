"""Pieces of one axis that are put together along another: written as the Reshape and Transpose that they are.

Heads are stacked so on the axis of the batch, or on one of their own: [batch, length, heads * size] is cut
into heads, and these are joined as [heads * batch, length, size]. As a Split and a Concat each head is a
value of its own, of which every rank would hold a part; as one axis, each rank holds its own heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.values import integer_of, shape_of, use_instead
from sharding.rewrite.graph_writer import Entry, GraphWriter
from sharding.rules.base import Dim
from sharding.rules.products import length_of, product, quotient

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.graph.shape_values import Known

Look = Callable[["ir.Value"], "Known | None"]
Shape = tuple[Dim, ...]
OPSET = 13
"""The first where the axes of Squeeze, Unsqueeze and Split are given alike."""


@dataclass(frozen=True)
class Pieces:
    """All ``count`` pieces of an axis, of equal length, in order."""

    source: ir.Value
    axis: int
    count: int
    length: Dim
    dropped: bool = False
    """Whether the pieces have lost the axis, in which they had length 1."""
    added: int | None = None
    """The axis of length 1 that each of them was given."""


def join_pieces(graph: ir.Graph, opset: int, known: Look) -> set[ir.Value]:
    """Rewrites the graph in place; returns the values that took the place of others.

    ``known`` gives the known elements of a value that is part of a shape.
    """
    made: set[ir.Value] = set()
    writer: GraphWriter | None = None
    if opset < OPSET:
        return made
    for node in list(graph):
        if (
            node.op_type != "Concat"
            or node.domain
            or len(node.inputs) == 1
            or node.outputs[0].is_graph_output()
        ):
            continue
        pieces = _pieces(node, known)
        rank = len(shape_of(node.inputs[0]) or ())
        axis = integer_of(node, "axis")
        if pieces is None or not -rank <= axis < rank:
            continue
        moved = _order(pieces, axis % rank)
        if moved is not None:
            writer = writer or GraphWriter(graph, opset)
            made.add(_write(writer, node, pieces, moved, axis % rank))
    return made


def _order(pieces: Pieces, joined: int) -> list[int] | None:
    """The axes of the source, the cut one as two, in the order in which the pieces' are joined.

    None where the pieces are joined as they were cut, or along an axis other than the added one.
    """
    rank = len(shape_of(pieces.source) or ()) + (not pieces.dropped)
    if pieces.added is not None and pieces.added != joined:
        return None
    if pieces.added is None and not pieces.dropped and joined == pieces.axis:
        return None
    kept = [axis for axis in range(rank) if axis != pieces.axis]
    return [*kept[:joined], pieces.axis, *kept[joined:]]


def _pieces(node: ir.Node, known: Look) -> Pieces | None:
    """What a Concat joins, if that is every piece of one axis and nothing else reads them."""
    found: Pieces | None = None
    count = len(node.inputs)
    for index, value in enumerate(node.inputs):
        own = _piece(value, index, count, known)
        if own is None or (found is not None and own != found):
            return None
        found = own
    return found


def _piece(value: ir.Value | None, index: int, count: int, known: Look) -> Pieces | None:
    """What a value is, if it is the piece with this number."""
    added = dropped = None
    producer = _only_reader(value)
    if producer is not None and producer.op_type in {"Squeeze", "Unsqueeze"}:
        rank = len(shape_of(value) or ())
        rank += producer.op_type == "Squeeze"
        given = producer.inputs[1] if len(producer.inputs) > 1 else None
        axes = None if given is None else small_constant(given)
        if axes is None or axes.size != 1 or shape_of(value) is None:
            return None
        axis = int(axes.reshape(-1)[0]) % rank
        added, dropped = (axis, None) if producer.op_type == "Unsqueeze" else (None, axis)
        value = producer.inputs[0]
        producer = _only_reader(value)
    shape = None if producer is None else shape_of(producer.inputs[0])
    if producer is None or producer.inputs[0] is None or not shape or value is None:
        return None
    if producer.op_type not in _CUTS:  # one more Squeeze or Unsqueeze
        return None
    axis_and_length = _CUTS[producer.op_type](producer, shape, (index, count), value, known)
    if axis_and_length is None:
        return None
    axis, length = axis_and_length
    if producer.op_type == "Gather":
        if dropped is not None:
            return None
        dropped = axis
    if dropped is not None and (dropped != axis or length != 1):
        return None
    return Pieces(producer.inputs[0], axis, count, length, dropped is not None, added)


def _only_reader(value: ir.Value | None) -> ir.Node | None:
    """The node that a value comes from, where one node reads it, once."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or value.is_graph_output() or len(value.uses()) != 1:
        return None
    return node if node.op_type in {*_CUTS, "Squeeze", "Unsqueeze"} else None


def _split(
    node: ir.Node, shape: Shape, place: tuple[int, int], value: ir.Value, known: Look
) -> tuple[int, Dim] | None:
    index, count = place
    axis = integer_of(node, "axis")
    if len(node.outputs) != count or node.outputs[index] is not value or not -len(shape) <= axis < len(shape):
        return None
    whole = shape[axis % len(shape)]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        sizes = small_constant(node.inputs[1])
        if sizes is None or sizes.size != count or len(set(sizes.tolist())) != 1 or sizes[0] < 1:
            return None
        length: Dim = int(sizes[0])
        return (
            None if isinstance(whole, int) and whole != count * int(sizes[0]) else (axis % len(shape), length)
        )
    length = quotient(product((whole,)), (count, ()))
    return None if length is None else (axis % len(shape), length)


def _slice(
    node: ir.Node, shape: Shape, place: tuple[int, int], value: ir.Value, known: Look
) -> tuple[int, Dim] | None:
    index, count = place
    given = [None if item is None else known(item) for item in node.inputs[1:]]
    if len(given) not in {3, 4} or any(item is None or item.size != 1 for item in given):
        return None
    start, end, axis, *step = (item.reshape(-1)[0] for item in given if item is not None)
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape) or step not in ([], [1]):
        return None
    whole = shape[axis]
    length = quotient(product((whole,)), (count, ()))
    if isinstance(whole, int) and isinstance(start, int) and isinstance(end, int):
        start, end, _ = slice(start, end).indices(whole)
    own = length is not None and (start, end) == (_times(index, length), _times(index + 1, length))
    return (axis % len(shape), length) if own else None


def _times(number: int, length: Dim) -> Dim:
    both = product((number, length))
    return 0 if number == 0 else None if both is None else length_of(both)


def _gather(
    node: ir.Node, shape: Shape, place: tuple[int, int], value: ir.Value, known: Look
) -> tuple[int, Dim] | None:
    index, count = place
    axis = integer_of(node, "axis")
    taken = None if node.inputs[1] is None else small_constant(node.inputs[1])
    if taken is None or taken.ndim or not -len(shape) <= axis < len(shape) or shape[axis] != count:
        return None
    return (axis % len(shape), 1) if taken.item() in {index, index - count} else None


_CUTS = {"Split": _split, "Slice": _slice, "Gather": _gather}


def _write(writer: GraphWriter, node: ir.Node, pieces: Pieces, order: list[int], joined: int) -> ir.Value:
    writer.place, (old,), value = node, node.outputs, pieces.source
    lengths: list[Dim] = list(shape_of(value) or ())
    entries: list[Entry] = writer.lengths(value)
    axis, count = pieces.axis, pieces.count
    if not pieces.dropped:
        own = entries[axis]
        if isinstance(pieces.length, int):
            part: Entry = pieces.length
        else:
            part = writer.op("Div", [writer.vector([own]), writer.constant([count])])
        lengths[axis : axis + 1] = [count, pieces.length]
        entries[axis : axis + 1] = [count, part]
        value = _reshape(writer, value, entries, lengths, old)
    else:
        entries[axis] = count
    lengths, entries = [lengths[i] for i in order], [entries[i] for i in order]
    if order != sorted(order):
        value = writer.described(writer.op("Transpose", [value], perm=order), old, lengths)
    if pieces.added is None:
        whole = writer.times(entries[joined + 1], count)
        both = product(lengths[joined : joined + 2])
        lengths[joined : joined + 2] = [None if both is None else length_of(both)]
        entries[joined : joined + 2] = [whole]
        value = _reshape(writer, value, entries, lengths, old)
    use_instead(old, value)
    writer.graph.remove(node, safe=True)
    value.name = old.name
    return value


def _reshape(
    writer: GraphWriter, value: ir.Value, entries: list[Entry], lengths: list[Dim], old: ir.Value
) -> ir.Value:
    return writer.described(writer.reshaped(value, entries), old, lengths)
