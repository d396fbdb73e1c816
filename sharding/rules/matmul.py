"""Matrix products: the columns of the weight, its rows (a partial sum), or a batch axis split."""

from __future__ import annotations

from functools import partial

from sharding.rules.base import Dim, Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import absent, dim, first_rank_only, option, shape_of, summable
from sharding.slices.placement import PARTIAL, Placement, Split


@rule("MatMul")
def matmul(node: NodeView) -> list[Option]:
    """numpy.matmul: [..., m, k] x [..., k, n], leading axes broadcast, one-dimensional operands allowed."""
    return product(node)


def product(node: NodeView, transposed_a: bool = False, transposed_b: bool = False) -> list[Option]:
    """The options of ``matmul``, the last two axes of an operand being exchanged where it is transposed."""
    a, b = node.shapes
    if a is None or b is None or not a or not b:
        return []
    rank = max(len(a), len(b))
    # Where an operand is one-dimensional its axis is k and the result lacks that side's axis.
    out_rank = rank - (len(a) == 1) - (len(b) == 1)
    a_k, a_m = _matrix_axes(len(a), transposed_a)
    b_n, b_k = _matrix_axes(len(b), transposed_b)
    if len(b) == 1:
        b_k = 0
    options: list[Option] = []
    if len(b) > 1:
        for blocks in node.blocks(b[b_n]):
            options.append(option(node, {1: Split(b_n, blocks)}, Split(out_rank - 1, blocks)))
    if summable(node.dtypes[0]):
        for blocks in node.blocks(_length(a[a_k], b[b_k])):
            options.append(option(node, {0: Split(a_k, blocks), 1: Split(b_k, blocks)}, PARTIAL))
    if len(a) > 1:
        for blocks in node.blocks(a[a_m]):
            options.append(option(node, {0: Split(a_m, blocks)}, Split(out_rank - 1 - (len(b) > 1), blocks)))
    for axis in range(rank - 2):
        aligned = {i: axis - rank + len(shape) for i, shape in enumerate((a, b)) if len(shape) > 2}
        lengths = {i: dim(node.shapes[i], own) for i, own in aligned.items() if own >= 0}
        longer = set(lengths.values()) - {1}
        if len(longer) != 1:
            continue
        for blocks in node.blocks(longer.pop()):
            batch = {i: Split(aligned[i], blocks) for i, length in lengths.items() if length != 1}
            options.append(option(node, batch, Split(axis, blocks)))
    return options


def _matrix_axes(rank: int, transposed: bool) -> tuple[int, int]:
    """The axes of the columns and of the rows; both are axis 0 of a vector."""
    last, before = rank - 1, max(rank - 2, 0)
    return (before, last) if transposed else (last, before)


def _length(a: Dim, b: Dim) -> Dim:
    """The common length of two axes that must agree."""
    return a if isinstance(a, int) else b


@rule("Gemm")
def gemm(node: NodeView) -> list[Option]:
    """alpha * A' * B' + beta * C with C broadcast to [m, n]; with split rows C is added on the first rank."""
    a, b = node.shapes[0], node.shapes[1]
    if a is None or b is None or len(a) != 2 or len(b) != 2 or node.version < 7:
        return []
    a_k = 0 if node.attributes.get("transA", 0) else 1
    b_k = 1 if node.attributes.get("transB", 0) else 0
    bias = shape_of(node, 2)
    if bias is None and not absent(node, 2):
        return []
    options: list[Option] = []
    # Axis of the result, the operand that has it, and where.
    for out_axis, index, axis in ((1, 1, 1 - b_k), (0, 0, 1 - a_k)):
        length = dim(node.shapes[index], axis)
        for blocks in node.blocks(length):
            parts: dict[int, Placement] = {index: Split(axis, blocks)}
            own = None if bias is None else out_axis - 2 + len(bias)
            if bias is not None and own is not None and own >= 0 and bias[own] != 1:
                if bias[own] != length:
                    continue
                parts[2] = Split(own, blocks)
            options.append(option(node, parts, Split(out_axis, blocks)))
    if summable(node.dtypes[0]):
        for blocks in node.blocks(_length(a[a_k], b[b_k])):
            emit = None if absent(node, 2) else partial(_gemm_rows, node.version)
            parts = {0: Split(a_k, blocks), 1: Split(b_k, blocks)}
            options.append(option(node, parts, PARTIAL, emit))
    return options


def _gemm_rows(version: int, e: Emitter, values: Values) -> list[Value]:
    if version < 11 and e.rank != 0:  # C became optional in opset 11
        return e.copy(values, beta=0.0)
    return e.copy(first_rank_only(e, values, 2))
