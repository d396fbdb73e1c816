"""Matrix products with more in them: an activation, weights of few bits, 8-bit operands."""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.along_axis import others
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, dim, first_rank_only, floating, option, shape_of, summable
from sharding.rules.matmul import gemm, product

MICROSOFT = "com.microsoft"


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
    from dataclasses import replace

    return replace(node, version=13)


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: NodeView) -> list[Option]:
    """A [..., K] times B [N, K / block, bytes], quantized in blocks along K: the columns N, or whole blocks.

    Scales are [N * blocks] or [N, blocks]; zero points too, or packed as weights are, a column in whole bytes.
    """
    shape = node.shapes[0]
    inner, columns = int(node.attributes["K"]), int(node.attributes["N"])
    size, bits = int(node.attributes["block_size"]), int(node.attributes.get("bits", 4))
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
        per_column = _along_blocks(node, columns, count, blocks, bits)
        if count % (node.world * blocks) == 0 and per_column is not None:
            parts = {0: Split(last, blocks), 1: Split(1, blocks), **per_column}
            options.append(option(node, parts, PARTIAL, partial(_fewer_rows, {"K": inner})))
    return options


def _along_blocks(
    node: NodeView, columns: int, count: int, blocks: int, bits: int
) -> dict[int, Placement] | None:
    """How scales and zero points are cut with the blocks of K; None where bytes would have to be cut."""
    parts: dict[int, Placement] = {}
    for index in (2, 3):
        if absent(node, index):
            continue
        shape = shape_of(node, index)
        packed = index == 3 and not floating(node.dtypes[3])
        if shape is None or (packed and count * bits % (8 * node.world * blocks)):
            return None
        length = count * bits // 8 if packed else count
        if len(shape) == 2 and shape[1] == length:
            parts[index] = Split(1, blocks)
        elif len(shape) == 1 and shape[0] == columns * length:
            parts[index] = Split(0, columns * blocks)
        else:
            return None
    return parts


def _fewer(lengths: dict[str, int], e: Emitter, values: Values) -> list[Any]:
    return e.copy(values, **{name: length // e.world for name, length in lengths.items()})


def _fewer_rows(lengths: dict[str, int], e: Emitter, values: Values) -> list[Any]:
    return _fewer(lengths, e, first_rank_only(e, values, 5))


@rule("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(node: NodeView) -> list[Option]:
    """A [..., K] times B [N * K / 2], a scale for each run of elements: the columns N, or whole runs of K."""
    shape = node.shapes[0]
    inner, columns = int(node.attributes["K"]), int(node.attributes["N"])
    size = int(node.attributes["block_size"])
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
        emit = None if absent(node, 6) else partial(_bias_once, 6)
        options.append(option(node, parts, PARTIAL, emit))
    return options


def _bias_once(index: int, e: Emitter, values: Values) -> list[Any]:
    return e.copy(first_rank_only(e, values, index))
