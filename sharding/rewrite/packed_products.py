"""Packed products taken apart: one product with a weight for each piece that its result is cut into.

Queries, keys and values are often computed by one product and then cut. Where they are equally wide, each
rank holds its part of all three (`Split.blocks`). Grouped heads make keys and values narrower: then only a
weight of its own for each lets every rank hold its own heads. Each column of a product depends on its own
column of the weight alone, so the pieces are the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.fold import small_constant
from sharding.graph.values import integer_of, shape_of
from sharding.rewrite.packed_pieces import Chain, Piece, Pieces, Product, Weight
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir

BYTE_BITS = 8
SQUARE = 2
"""Axes of a weight matrix."""
COPIED = {"Add": (0, 1), "Unsqueeze": (0,)}
"""What may stand between a product and the cuts, and the inputs that the product may be."""
COLUMN_INPUTS = (1, 2, 3, 5)
"""Inputs of MatMulNBits with the columns first: weight, scales, zero points and bias."""
DATA, KEYS, VALUES = range(3)
"""Inputs of GroupQueryAttention."""


def take_apart(model: ir.Model, path: Path) -> None:
    """Rewrites the main graph in place; pieces of the result keep their names."""
    pieces = Pieces(model, path)
    for node in list(model.graph):
        product = _product(node)
        if product is None:
            continue
        chain = _chain(product)
        cuts = _cuts(chain.end, product.columns)
        # A product with fewer columns than rows is better summed over the ranks, which takes one collective
        # for all its pieces; but not where each rank goes on with its own heads.
        narrow = product.columns < product.rows and not _of_attention(chain.end)
        if cuts and not narrow and _unequal(cuts, product.columns):
            pieces.replace(chain, cuts)


def _unequal(cuts: list[Piece], columns: int) -> bool:
    """Whether the pieces do not overlap, and are not simply equal parts of the whole."""
    ends = [piece.start + piece.length for piece in cuts]
    apart = all(end <= after.start for end, after in zip(ends, cuts[1:], strict=False))
    equal = len({piece.length for piece in cuts}) == 1 and sum(piece.length for piece in cuts) == columns
    return len(cuts) > 1 and apart and not equal


def _product(node: ir.Node) -> Product | None:
    """A product with a weight that nothing else uses."""
    kind = (node.domain, node.op_type)
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if kind == (MICROSOFT, "MatMulNBits"):
        return _quantized(node)
    if kind not in {("", "MatMul"), ("", "Gemm")}:
        return None
    transposed = kind[1] == "Gemm" and bool(integer_of(node, "transB"))
    found = _weight(node, 1, 0 if transposed else 1)
    shape = None if found is None else shape_of(found.value)
    if found is None or shape is None or len(shape) != SQUARE:
        return None
    columns = shape[found.axis]
    rows = shape[1 - found.axis]
    if not isinstance(columns, int) or not isinstance(rows, int):
        return None
    weights = [found]
    if kind[1] == "Gemm" and len(node.inputs) > SQUARE and node.inputs[SQUARE] is not None:
        bias = _bias(node, SQUARE, columns)
        if bias is None:
            return None
        weights.append(bias)
    return Product(node, columns, rows, weights)


def _quantized(node: ir.Node) -> Product | None:
    columns, rows = integer_of(node, "N"), integer_of(node, "K")
    weights = []
    for index in COLUMN_INPUTS:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            continue
        found = _weight(node, index, 0)
        shape = None if found is None else shape_of(found.value)
        if found is None or not shape or not isinstance(shape[0], int) or shape[0] % max(columns, 1):
            return None
        weights.append(found)
    return Product(node, columns, rows, weights) if columns > 0 and rows > 0 and weights else None


def _weight(node: ir.Node, index: int, axis: int) -> Weight | None:
    """A weight that this node alone uses: of whole bytes, directly or transposed, or a dequantized one."""
    value = node.inputs[index]
    turn = None if value is None else value.producer()
    if turn is not None and turn.op_type == "DequantizeLinear":
        return _dequantized(turn, value, index, axis)
    if turn is not None:
        if turn.op_type != "Transpose" or turn.domain or not _private(value):
            return None
        value = turn.inputs[0]
        shape, perm = shape_of(value), turn.attributes.get("perm")
        if shape is None or len(shape) != SQUARE or (perm is not None and list(perm.value) != [1, 0]):
            return None
        axis = 1 - axis
    if value is None or not value.is_initializer() or value.const_value is None or not _private(value):
        return None
    return Weight(index, value, axis, turn) if value.const_value.dtype.bitwidth >= BYTE_BITS else None


def _dequantized(turn: ir.Node, result: ir.Value | None, index: int, axis: int) -> Weight | None:
    """A weight of few bits, its scales and zero points: one for all, one per column or row, or by blocks."""
    value = turn.inputs[0]
    shape = shape_of(value)
    if value is None or shape is None or len(shape) != SQUARE or not (_private(result) and _private(value)):
        return None
    beside = []
    for place, other in enumerate(turn.inputs[1:], 1):
        if other is None:
            continue
        own = shape_of(other)
        if own is None or not other.is_initializer() or other.const_value is None:
            return None
        if math.prod(n for n in own if isinstance(n, int)) == 1:
            continue
        if len(own) == SQUARE and own[axis] == shape[axis]:
            beside.append(Weight(place, other, axis))
        elif len(own) == 1 and integer_of(turn, "axis", 1) % SQUARE == axis and own[0] == shape[axis]:
            beside.append(Weight(place, other, 0))
        elif len(own) != 1 or own[0] != shape[1 - axis]:
            return None
    known = value.is_initializer() and value.const_value is not None
    return Weight(index, value, axis, turn, tuple(beside)) if known else None


def _bias(node: ir.Node, index: int, columns: int) -> Weight | None:
    """A weight that is added to each row alike."""
    value = node.inputs[index]
    shape = shape_of(value)
    if not shape or shape[-1] != columns or math.prod(n for n in shape if isinstance(n, int)) != columns:
        return None
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    small = value.const_value.dtype.bitwidth < BYTE_BITS
    return None if small else Weight(index, value, len(shape) - 1)  # equal ones may be one for all layers


def _private(value: ir.Value | None) -> bool:
    """Whether exactly one node reads a value, and nothing outside."""
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def _chain(product: Product) -> Chain:
    chain = Chain(product, product.node.outputs[0])
    while _private(chain.end):
        ((node, index),) = chain.end.uses()
        if node.domain or index not in COPIED.get(node.op_type, ()) or node.outputs[0].shape is None:
            break
        bias = None
        if node.op_type == "Add":
            bias = _bias(node, 1 - index, product.columns)
            if bias is None or len(shape_of(node.outputs[0]) or ()) != len(shape_of(chain.end) or ()):
                break
        elif (shape_of(node.outputs[0]) or (None,))[-1] != product.columns:  # the columns stay the last axis
            break
        chain.links.append((node, bias))
        chain.end = node.outputs[0]
    return chain


def _cuts(value: ir.Value, columns: int) -> list[Piece] | None:
    """The pieces that all uses of a value cut it into, in order; None where a use is something else."""
    shape, uses = shape_of(value), list(value.uses())
    if shape is None or len(shape) < SQUARE or shape[-1] != columns or value.is_graph_output() or not uses:
        return None
    node, index = uses[0]
    pieces: list[Piece] | None
    if _of_attention(value):
        pieces = _attention(node, columns)
    elif len(uses) == 1 and node.op_type == "Reshape" and not node.domain and index == 0:
        pieces = _heads(node, shape)
    else:
        pieces = _along(value, len(shape) - 1, columns, 1, None)
    return None if pieces is None else sorted(pieces, key=lambda piece: piece.start)


def _of_attention(value: ir.Value) -> bool:
    """Whether a value is what an attention operator with grouped heads, and nothing else, takes first."""
    uses = list(value.uses())
    return len(uses) == 1 and (uses[0][0].domain, uses[0][0].op_type, uses[0][1]) == (
        MICROSOFT,
        "GroupQueryAttention",
        DATA,
    )


def _attention(node: ir.Node, columns: int) -> list[Piece] | None:
    """Packed queries, keys and values of grouped heads, which the operator takes apart by itself."""
    heads, pairs = integer_of(node, "num_heads"), integer_of(node, "kv_num_heads")
    given = node.inputs[KEYS : VALUES + 1]
    if (
        any(value is not None for value in given)
        or heads <= pairs
        or pairs < 1
        or columns % (heads + 2 * pairs)
    ):
        return None
    size, start, pieces = columns // (heads + 2 * pairs), 0, []
    for index, count in ((DATA, heads), (KEYS, pairs), (VALUES, pairs)):
        pieces.append(Piece(start, count * size, _as_input(node, index)))
        start += count * size
    return pieces


def _as_input(node: ir.Node, index: int) -> Callable[[Pieces, ir.Value], None]:
    return lambda _, value: node.replace_input_with(index, value)


def _heads(node: ir.Node, shape: tuple[object, ...]) -> list[Piece] | None:
    """The last axis as heads and their elements, and cuts between heads."""
    value = node.outputs[0]
    target = shape_of(value)
    has_input = len(node.inputs) > 1  # before opset 5 the shape is an attribute
    if target is None or len(target) != len(shape) + 1 or value.is_graph_output() or not has_input:
        return None
    count, size = target[-2:]
    same = None not in target and 0 not in target and list(target[:-2]) == list(shape[:-1])
    if not same or not isinstance(count, int) or not isinstance(size, int) or count * size != shape[-1]:
        return None
    return _along(value, len(target) - 2, count, size, [0] * (len(shape) - 1) + [size])


def _along(value: ir.Value, axis: int, length: int, unit: int, heads: list[int] | None) -> list[Piece] | None:
    """Pieces of ``unit`` columns that slices along an axis are; ``heads``: the shape that each
    gets, without the number of heads."""
    pieces = []
    for node, index in value.uses():
        found = None
        if index == 0 and not node.domain:
            if node.op_type == "Split" and len(value.uses()) == 1:
                return _split(node, axis, length, unit, heads)
            if node.op_type == "Slice":
                found = _slice(node, axis, length)
                if found is not None:
                    pieces.append(Piece(found[0] * unit, found[1] * unit, _as_output(node.outputs[0], heads)))
            elif node.op_type == "Transpose" and heads is not None:
                looked_up = _looked_up(node, axis, length, unit, heads)
                if looked_up is not None:
                    found = (0, 0)
                    pieces += looked_up
        if found is None:
            return None
    return pieces


def _slice(node: ir.Node, axis: int, length: int) -> tuple[int, int] | None:
    """The start and length of a slice of this axis alone."""
    given = [None if value is None else small_constant(value) for value in node.inputs[1:]]
    if len(given) not in (3, 4) or any(item is None or item.size != 1 for item in given):
        return None
    start, end, along, *step = (int(item.reshape(-1)[0]) for item in given if item is not None)
    rank = len(shape_of(node.inputs[0]) or ())
    if along % max(rank, 1) != axis or (step and step[0] != 1):
        return None
    start, end, _ = slice(start, end).indices(length)
    return (start, end - start) if end > start else None


def _split(node: ir.Node, axis: int, length: int, unit: int, heads: list[int] | None) -> list[Piece] | None:
    rank = len(shape_of(node.inputs[0]) or ())
    lengths = [(shape_of(value) or (None,) * rank)[axis] for value in node.outputs]
    if integer_of(node, "axis") % max(rank, 1) != axis or any(
        not isinstance(n, int) or n < 1 for n in lengths
    ):
        return None
    sizes = [int(n) for n in lengths if isinstance(n, int)]
    given = small_constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if given is None and "split" in node.attributes:
        given = np.asarray(node.attributes["split"].value)
    if given is None or given.tolist() != sizes or sum(sizes) != length:
        return None
    starts = np.cumsum([0, *sizes])[:-1]
    return [
        Piece(int(start) * unit, size * unit, _as_output(value, heads))
        for start, size, value in zip(starts, sizes, node.outputs, strict=True)
    ]


def _looked_up(node: ir.Node, axis: int, length: int, unit: int, heads: list[int]) -> list[Piece] | None:
    """Single heads, looked up along the axis of heads after that was made the first."""
    perm = node.attributes.get("perm")
    value = node.outputs[0]
    if perm is None or perm.is_ref() or next(iter(perm.value)) != axis or value.is_graph_output():
        return None
    pieces = []
    for user, index in value.uses():
        second = user.inputs[1] if index == 0 and user.op_type == "GatherND" else None
        indices = None if second is None else small_constant(second)
        plain = not user.domain and integer_of(user, "batch_dims") == 0
        if indices is None or indices.shape != (1, 1) or not plain or not -length <= indices[0, 0] < length:
            return None
        start = int(indices[0, 0]) % length
        write = _as_output(user.outputs[0], heads, list(perm.value))
        pieces.append(Piece(start * unit, unit, write))
    return pieces


def _as_output(
    old: ir.Value, heads: list[int] | None, perm: list[int] | None = None
) -> Callable[[Pieces, ir.Value], None]:
    def write(pieces: Pieces, value: ir.Value) -> None:
        shape = list(shape_of(old) or ())
        if perm is not None:
            shape = [shape[perm.index(axis)] for axis in range(len(perm))]
        if heads is not None:
            columns = (shape_of(value) or ())[-1]
            assert isinstance(columns, int)
            target = pieces.constant(np.asarray([*heads[:-1], columns // heads[-1], heads[-1]]))
            value = pieces.typed(pieces.op("Reshape", [value, target]), shape, old.type)
        if perm is not None:
            value = pieces.op("Transpose", [value], perm=perm)
            pieces.typed(value, [shape[axis] for axis in perm], old.type)
        pieces.rename(old, value)

    return write
