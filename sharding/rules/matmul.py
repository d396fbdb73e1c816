"""Matrix products: the columns of the weight, its rows (a partial sum), or a batch axis split."""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.base import Dim, Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, dim, first_rank_only, option, shape_of, summable


@rule("MatMul")
def matmul(node: NodeView) -> list[Option]:
    """numpy.matmul: [..., m, k] x [..., k, n], leading axes broadcast, one-dimensional operands allowed."""
    a, b = node.shapes
    if a is None or b is None or not a or not b:
        return []
    rank = max(len(a), len(b))
    # Where an operand is one-dimensional its axis is k and the result lacks that side's axis.
    out_rank = rank - (len(a) == 1) - (len(b) == 1)
    options: list[Option] = []
    if len(b) > 1:
        for blocks in node.blocks(b[-1]):
            options.append(option(node, {1: Split(len(b) - 1, blocks)}, Split(out_rank - 1, blocks)))
    if summable(node.dtypes[0]):
        row_axis = max(len(b) - 2, 0)
        for blocks in node.blocks(_length(a[-1], b[row_axis])):
            parts = {0: Split(len(a) - 1, blocks), 1: Split(row_axis, blocks)}
            options.append(option(node, parts, PARTIAL))
    if len(a) > 1:
        for blocks in node.blocks(a[-2]):
            out_axis = out_rank - 1 - (len(b) > 1)
            options.append(option(node, {0: Split(len(a) - 2, blocks)}, Split(out_axis, blocks)))
    for axis in range(rank - 2):
        aligned = {i: axis - rank + len(shape) for i, shape in enumerate((a, b))}
        owners = {i: own for i, own in aligned.items() if own >= 0 and len(node.shapes[i] or ()) > 2}
        lengths = {dim(node.shapes[i], own) for i, own in owners.items()} - {1}
        if len(lengths) != 1:
            continue
        for blocks in node.blocks(lengths.pop()):
            batch: dict[int, Placement] = {
                i: Split(own, blocks) for i, own in owners.items() if dim(node.shapes[i], own) != 1
            }
            options.append(option(node, batch, Split(axis, blocks)))
    return options


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


def _gemm_rows(version: int, e: Emitter, values: Values) -> list[Any]:
    if version < 11 and e.rank != 0:  # C became optional in opset 11
        return e.copy(values, beta=0.0)
    return e.copy(first_rank_only(e, values, 2))
