"""Matrix products with more in them: an activation, weights of few bits, 8-bit operands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.along_axis import others
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    bias_once,
    dim,
    first_rank_only,
    floating,
    int64,
    option,
    shape_of,
    summable,
)
from sharding.rules.matmul import gemm, product
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
    return _linear_only(gemm(_newest(node)))


@rule("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(node: NodeView) -> list[Option]:
    """FusedMatMul, then an activation of each element."""
    if node.attributes.get("transBatchA", 0) or node.attributes.get("transBatchB", 0):
        return []
    turned = [bool(node.attributes.get(name, 0)) for name in ("transA", "transB")]
    return _linear_only(product(node, *turned))


def _newest(node: NodeView) -> NodeView:
    """The node with the standard's newest version: its own counts another domain's."""
    return replace(node, version=13)


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: NodeView) -> list[Option]:
    """A [..., K] times B [N, K / block, bytes], quantized in blocks along K: the columns N, or whole blocks.

    Scales are [N * blocks] or [N, blocks]; zero points too, or packed, each column in whole bytes.
    """
    shape = node.shapes[0]
    inner, columns = integer(node.attributes, "K"), integer(node.attributes, "N")
    size, bits = integer(node.attributes, "block_size"), integer(node.attributes, "bits", 4)
    if shape is None or not shape or size < 1 or inner % size:
        return []
    last, count = len(shape) - 1, inner // size
    options = others(node, (last,))
    for blocks in node.blocks(columns):
        parts: dict[int, Placement] = {1: Split(0, blocks)}
        parts |= {i: Split(0, blocks) for i in (2, 3, 5) if not absent(node, i)}
        options.append(option(node, parts, Split(last, blocks), partial(_fewer, {"N": columns})))
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
        parts = {0: Split(last, blocks), 1: Split(1, blocks), **scales, **points}
        emit = partial(_fewer_rows, node, inner, (columns, count, copies))
        options.append(option(node, parts, PARTIAL, emit))
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


def _fewer(lengths: dict[str, int], e: Emitter, values: Values) -> list[Value]:
    return e.copy(values, **{name: length // e.world for name, length in lengths.items()})


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
    shape = node.shapes[0]
    inner, columns = integer(node.attributes, "K"), integer(node.attributes, "N")
    size = integer(node.attributes, "block_size")
    if shape is None or not shape or size < 1 or inner % size or inner % 2:
        return []
    last = len(shape) - 1
    options = others(node, (last,))
    for blocks in node.blocks(columns):
        parts: dict[int, Placement] = dict.fromkeys((1, 2), Split(0, blocks))
        options.append(option(node, parts, Split(last, blocks), partial(_fewer, {"N": columns})))
    if node.divisible(inner, size) and summable(node.dtypes[0]):
        parts = {0: Split(last), **dict.fromkeys((1, 2), Split(0, columns))}
        options.append(option(node, parts, PARTIAL, partial(_fewer, {"K": inner})))
    return options


def _per_column(node: NodeView, indices: tuple[int, ...], blocks: int) -> dict[int, Placement] | None:
    """Vectors with one value per column, cut as the columns are; None where a shape is not known."""
    parts: dict[int, Placement] = {}
    for index in indices:
        if absent(node, index):
            continue
        shape = shape_of(node, index)
        if shape is None or len(shape) > 1:
            return None
        if len(shape) == 1 and shape[0] != 1:
            parts[index] = Split(0, blocks)
    return parts


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: NodeView) -> list[Option]:
    """A is quantized as a whole, so that only the columns may be split."""
    shape, weights = node.shapes[0], node.shapes[1]
    if shape is None or weights is None or len(weights) != 2:
        return []
    options = []
    for blocks in node.blocks(weights[1]):
        parts = _per_column(node, (2, 3, 4), blocks)
        if parts is not None:
            options.append(option(node, {1: Split(1, blocks), **parts}, Split(len(shape) - 1, blocks)))
    return options


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: NodeView) -> list[Option]:
    """8-bit A times B, scaled to floating point, plus a bias: columns, rows (a partial sum), axes of A."""
    shape, weights = node.shapes[0], node.shapes[1]
    numbers = [absent(node, i) or dim(shape_of(node, i), 0) in (None, 1) for i in (2, 4)]
    if shape is None or weights is None or len(weights) != 2 or not all(numbers):
        return []
    last = len(shape) - 1
    options = others(node, (last,))
    for blocks in node.blocks(weights[1]):
        parts = _per_column(node, (3, 5, 6), blocks)
        if parts is not None:
            options.append(option(node, {1: Split(1, blocks), **parts}, Split(last, blocks)))
    for blocks in node.blocks(weights[0]):
        parts = {0: Split(last, blocks), 1: Split(0, blocks)}
        emit = None if absent(node, 6) else partial(bias_once, 6)
        options.append(option(node, parts, PARTIAL, emit))
    return options
