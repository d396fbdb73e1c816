"""Which axes of a weight are the output features ("column") and the input features ("row") of its product.

The words are those of Megatron-LM (Shoeybi et al. 2019), for a weight that is multiplied as x @ w with w of
shape [input features, output features]; here they mean the same features however the file stores the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.onnx_files.attributes import integer, integers

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_HOPS = 8
"""Nodes between a weight and its product: conversions, dequantization, transposes."""
_SAME_AXES = {"Cast", "Identity", "DequantizeLinear"}
_MATMULS = {"MatMul": 1, "FusedMatMul": 1, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "QLinearMatMul": 3}
"""Operator -> which of its inputs is the right factor; the left one is input 0."""
_CONVS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}

Axes = tuple[int, int]
"""(axis of the output features, axis of the input features)"""


def feature_axes(node: ir.Node, index: int) -> Axes | None:
    """The axes of the weight that is a node's ``index``-th input; None where no product is made of it."""
    order: list[int] | None = None  # axis of what reaches the product -> axis of the weight
    for _ in range(MAX_HOPS):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or value.shape is None:
            return None
        rank = len(value.shape)
        order = list(range(rank)) if order is None else order
        axes = _of_product(node, index, rank)
        if axes is not None:
            return order[axes[0]], order[axes[1]]
        if index != 0 or node.op_type not in {"Transpose", *_SAME_AXES}:
            return None
        if node.op_type == "Transpose":
            permutation = integers(_attributes(node), "perm", range(rank)[::-1])
            if sorted(permutation) != list(range(rank)):
                return None
            order = [order[axis] for axis in permutation]
        uses = node.outputs[0].uses()
        if not uses:
            return None
        node, index = next(iter(uses))
    return None


def _of_product(node: ir.Node, index: int, rank: int) -> Axes | None:
    kind = node.op_type
    if rank < 2:
        return None
    if kind in _MATMULS and index in {0, _MATMULS[kind]}:
        right = index > 0
        if _attributes(node).get("transBatchB" if right else "transBatchA", 0):
            return None
        swapped = kind == "FusedMatMul" and bool(_attributes(node).get("transB" if right else "transA", 0))
        # A weight on the left is multiplied as w @ x: its rows are the output's features.
        return (rank - 1, rank - 2) if right != swapped else (rank - 2, rank - 1)
    if kind == "Gemm" and index < 2:
        swapped = bool(_attributes(node).get("transB" if index else "transA", 0))
        return (1, 0) if bool(index) != swapped else (0, 1)
    if kind == "MatMulNBits" and index == 1:
        return 0, 1
    if index > 0 and index == _CONVS.get(kind):
        return 0, 1
    if kind == "ConvTranspose" and index == 1:
        return 1, 0
    if kind == "Gather" and index == 0:  # a look-up is a product with rows of the identity
        axis = integer(_attributes(node), "axis", 0) % rank
        return (rank - 1, axis) if axis != rank - 1 else (0, axis)
    return None


def _attributes(node: ir.Node) -> dict[str, object]:
    return {name: item.value for name, item in node.attributes.items() if not item.is_ref()}
