"""Matrix products with more in them: an activation, weights of few bits, 8-bit operands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    biased,
    dim,
    divided,
    first_rank_only,
    floating,
    int64,
    last_axis,
    option,
    others,
    rank_of,
    shape_of,
    summable,
)
from sharding.rules.contrib import fused_matmul
from sharding.rules.matmul import gemm
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL, Placement, Split

TENSOR_UINT8, TENSOR_INT32 = 2, 6
"""TensorProto's numbers."""
NIBBLE = 4


def _linear_only(options: list[Option]) -> list[Option]:
    """Without the partial sums: what follows the product is not linear."""
    return [item for item in options if PARTIAL not in item.outputs]


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: NodeView) -> list[Option]:
    """Gemm, then an activation of each element."""
    return _linear_only(gemm(replace(node, version=13)))  # the standard's: its own counts another domain's


@rule("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(node: NodeView) -> list[Option]:
    """FusedMatMul, then an activation of each element."""
    return _linear_only(fused_matmul(node))


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: NodeView) -> list[Option]:
    """A [..., K] times B [N, K / block, bytes], quantized in blocks along K: the columns N, or whole blocks.

    Scales are [N * blocks] or [N, blocks]; zero points too, or packed, each column in whole bytes.
    """
    inner, columns = integer(node.attributes, "K"), integer(node.attributes, "N")
    size, bits = integer(node.attributes, "block_size"), integer(node.attributes, "bits", 4)
    last = last_axis(node)
    if last < 0 or size < 1 or inner % size:
        return []
    count = inner // size
    options = others(node, last)
    for blocks in node.blocks(columns):
        parts = dict.fromkeys((1, 2, 3, 5), Split(0, blocks))
        options.append(option(node, parts, Split(last, blocks), divided(N=columns)))
    if not absent(node, 4) or not summable(node.dtypes[0]):
        return options
    for blocks in node.blocks(inner):
        if count % (node.world * blocks):
            continue
        scales = _along_blocks(node, 2, columns, count, blocks)
        points = _along_blocks(node, 3, columns, count * bits / 8 if _packed(node) else count, blocks)
        copies = 1
        if points is None and blocks == 1 and bits == NIBBLE and _packed(node):
            copies, points = _shared_bytes(node, columns, count)
        if scales is None or points is None:
            continue
        rows = {0: Split(last, blocks), 1: Split(1, blocks), **scales, **points}
        emit = partial(_fewer_rows, node, inner, (columns, count, copies))
        options.append(option(node, rows, PARTIAL, emit))
    return options


def _packed(node: NodeView) -> bool:
    """Whether there are zero points and they are packed in bytes."""
    return not absent(node, 3) and not floating(node.dtypes[3])


def _along_blocks(
    node: NodeView, index: int, columns: int, count: float, blocks: int
) -> dict[int, Placement] | None:
    """How scales or zero points, ``count`` items a column, go with parts of K; None: an item would be cut."""
    if absent(node, index):
        return {}
    shape = shape_of(node, index)
    if shape is None or count % (node.world * blocks):
        return None
    if len(shape) == 2 and shape[1] == count:
        return {index: Split(1, blocks)}
    return {index: Split(0, columns * blocks)} if len(shape) == 1 and shape[0] == columns * count else None


def _shared_bytes(node: NodeView, columns: int, count: int) -> tuple[int, dict[int, Placement]]:
    """How many neighbouring ranks hold the same zero points, so that no byte is cut, and the placement."""
    for copies in range(2, node.world):
        parts = node.world // copies
        if node.world % copies == 0 and count * NIBBLE % (8 * parts) == 0:
            shape = shape_of(node, 3) or ()
            split = Split(1, copies=copies) if len(shape) == 2 else Split(0, columns, copies)
            return copies, {3: split}
    return node.world, {}


def _fewer_rows(
    node: NodeView, inner: int, points: tuple[int, int, int], e: Emitter, values: Values
) -> list[Value]:
    kept = first_rank_only(e, values, 5)
    if points[2] > 1:
        kept[3] = _own_zero_points(e, kept[3], *points, flat=len(shape_of(node, 3) or ()) == 1)
    return e.copy(kept, K=inner // e.world)


def _own_zero_points(
    e: Emitter, packed: Value, columns: int, count: int, copies: int, *, flat: bool
) -> Value:
    """This rank's of ``count`` 4-bit zero points a column, two in a byte, out of those of ``copies`` ranks.

    All inputs are known when the model is loaded, so that ONNX Runtime computes this once.
    """
    sixteen = e.constant(np.asarray(16, dtype=np.int32))
    wide = e.op("Reshape", [e.op("Cast", [packed], to=TENSOR_INT32)[0], int64(e, [columns, -1, 1])])[0]
    high = e.op("Div", [wide, sixteen])[0]
    low = e.op("Sub", [wide, e.op("Mul", [high, sixteen])[0]])[0]
    apart = e.op("Reshape", [e.op("Concat", [low, high], axis=2)[0], int64(e, [columns, -1])])[0]
    mine = count // e.world
    first = e.rank % copies * mine
    # An odd one is followed by one that nothing reads.
    places = [min(first + place, mine * copies - 1) for place in range(mine + mine % 2)]
    own = e.op("Gather", [apart, int64(e, places)], axis=1)[0]
    pairs = e.op("Reshape", [own, int64(e, [columns, -1, 2])])[0]
    low, high = (e.op("Gather", [pairs, e.constant(np.asarray(i, np.int64))], axis=2)[0] for i in (0, 1))
    joined = e.op("Cast", [e.op("Add", [low, e.op("Mul", [high, sixteen])[0]])[0]], to=TENSOR_UINT8)[0]
    return e.op("Reshape", [joined, int64(e, [-1])])[0] if flat else joined


@rule("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(node: NodeView) -> list[Option]:
    """A [..., K] times B [N * K / 2], a scale for each run of elements: the columns N, or whole runs of K."""
    inner, columns = integer(node.attributes, "K"), integer(node.attributes, "N")
    size, last = integer(node.attributes, "block_size"), last_axis(node)
    if last < 0 or size < 1 or inner % size or inner % 2:
        return []
    options = others(node, last)
    for blocks in node.blocks(columns):
        parts = dict.fromkeys((1, 2), Split(0, blocks))
        options.append(option(node, parts, Split(last, blocks), divided(N=columns)))
    if node.divisible(inner, size) and summable(node.dtypes[0]):
        rows = {0: Split(last), **dict.fromkeys((1, 2), Split(0, columns))}
        options.append(option(node, rows, PARTIAL, divided(K=inner)))
    return options


def _columns(node: NodeView, vectors: tuple[int, ...]) -> list[Option]:
    """The weight's columns, with the vectors that have one value per column; nothing where the shape of one
    is not known, or its length, which may be 1."""
    options, shapes = [], {index: shape_of(node, index) for index in vectors if not absent(node, index)}
    if any(shape is None or len(shape) > 1 for shape in shapes.values()):
        return []
    if not all(isinstance(length, int) for shape in shapes.values() for length in shape or ()):
        return []
    for blocks in node.blocks(dim(node.shapes[1], 1)):
        parts = {index: Split(0, blocks) for index, shape in shapes.items() if shape and shape[0] != 1}
        out = Split(last_axis(node), blocks)
        options.append(option(node, {1: Split(1, blocks), **parts}, out))
    return options


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: NodeView) -> list[Option]:
    """A is quantized as a whole, so that only the columns may be split."""
    known = rank_of(node) is not None and rank_of(node, 1) == 2
    return _columns(node, (2, 3, 4)) if known else []


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: NodeView) -> list[Option]:
    """8-bit A times B, scaled to floating point, plus a bias: columns, rows (a partial sum), axes of A."""
    numbers = [absent(node, i) or dim(shape_of(node, i), 0) in (None, 1) for i in (2, 4)]
    if rank_of(node) is None or rank_of(node, 1) != 2 or not all(numbers):
        return []
    last = last_axis(node)
    options = others(node, last) + _columns(node, (3, 5, 6))
    for blocks in node.blocks(dim(node.shapes[1], 0)):
        parts = {0: Split(last, blocks), 1: Split(0, blocks)}
        options.append(option(node, parts, PARTIAL, biased(node, 6)))
    return options
