"""Operators on quantized tensors whose result is quantized again.

Each result is rounded once, of the whole sum: the summed axis is not split. (`sharding.rewrite` takes a
QLinearMatMul apart where its weight's rows are to be split.)
"""

from __future__ import annotations

from sharding.onnx_files.attributes import integer
from sharding.rules.along_axis import softmax_of
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import absent, biased, dim, kept, last_axis, option, rank_of, shape_of
from sharding.rules.conv import Layout, convolution
from sharding.rules.elementwise import broadcast_options, unary
from sharding.rules.pieces import joined
from sharding.rules.quantization import quantized_product, vectors
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL, Split


@rule("QLinearMatMul")
def qlinear_matmul(node: NodeView) -> list[Option]:
    """A, its scale and zero point, B, its, Y's."""
    return quantized_product(node, {0: [1, 2], 3: [4, 5]}, linear=False)


@rule("QLinearConv")
def qlinear_conv(node: NodeView) -> list[Option]:
    """X, its scale and zero point, W, its (one or one per output channel), Y's, B [out]; with
    ``channels_last``, which ONNX Runtime's own has, X and Y end with their channels."""
    last = bool(node.attributes.get("channels_last", 0))
    return convolution(node, Layout(x=0, w=3, per_channel=(4, 5, 8), bias=8, linear=False, last=last))


rule("QLinearConv", domain=MICROSOFT)(qlinear_conv)


@rule("QGemm", domain=MICROSOFT)
def qgemm(node: NodeView) -> list[Option]:
    """A, its scale and zero point, B, its, C [n] or [1, n], Y's; sums of floats where Y's scale is absent."""
    a, b = node.shapes[0], node.shapes[3]
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return []
    a_k = 0 if node.attributes.get("transA", 0) else 1
    b_k = 1 if node.attributes.get("transB", 0) else 0
    bias = shape_of(node, 6)
    if not absent(node, 6) and (bias is None or (len(bias) == 2 and bias[0] != 1) or bias[-1] != b[1 - b_k]):
        return []
    options = []
    known = all(absent(node, index) or shape_of(node, index) is not None for index in (4, 5))
    for blocks in node.blocks(b[1 - b_k]) if known else ():
        split = Split(1 - b_k, blocks)
        parts = {3: split} | vectors(node, (4, 5), split)
        if bias is not None:
            parts[6] = Split(len(bias) - 1, blocks)
        options.append(option(node, parts, Split(1, blocks)))
    for blocks in node.blocks(a[1 - a_k]):
        options.append(option(node, {0: Split(1 - a_k, blocks)}, Split(0, blocks)))
    if absent(node, 7):
        for blocks in node.blocks(dim(b, b_k)):
            rows = {0: Split(a_k, blocks), 3: Split(b_k, blocks)}
            options.append(option(node, rows, PARTIAL, biased(node, 6)))
    return options


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(node: NodeView) -> list[Option]:
    """A, its scale and zero point, B, its, C's; A and B broadcast."""
    return broadcast_options(node, (0, 3))


@rule("QLinearWhere", domain=MICROSOFT)
def qlinear_where(node: NodeView) -> list[Option]:
    """The condition, X, its scale and zero point, Y, its, Z's."""
    return broadcast_options(node, (0, 1, 4))


# Their scales and zero points are one number each.
rule("QLinearLeakyRelu", "QLinearSigmoid", domain=MICROSOFT)(unary)


@rule("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: NodeView) -> list[Option]:
    """As Softmax of the opset that the attribute ``opset`` names."""
    return softmax_of(node, integer(node.attributes, "opset", 0))


@rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_pool(node: NodeView) -> list[Option]:
    """Batch and channels; with ``channels_last`` these are the last axis."""
    channels = last_axis(node) if node.attributes.get("channels_last", 0) else 1
    return kept(node, (0, channels)) if (rank_of(node) or 0) > 2 else []


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: NodeView) -> list[Option]:
    """Y's scale and zero point, then each input with its own."""
    return joined(node, range(2, len(node.shapes), 3))
