"""Operators of ONNX Runtime's own domain that its optimizer puts into exported models."""

from __future__ import annotations

from sharding.rules.along_axis import others
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import absent, option, same_shape, shape_of, splits
from sharding.rules.elementwise import broadcast_axes, unary
from sharding.rules.matmul import product

MICROSOFT = "com.microsoft"

rule("Gelu", "QuickGelu", domain=MICROSOFT)(unary)


@rule("BiasGelu", "FastGelu", domain=MICROSOFT)
def bias_gelu(node: NodeView) -> list[Option]:
    """The bias, one value per element of the last axis, is added first."""
    if absent(node, 1):
        return unary(node)
    return [option(node, parts, split) for parts, split in broadcast_axes(node)]


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(node: NodeView) -> list[Option]:
    """alpha * A' * B', the last two axes transposed as asked; not the form that transposes batch axes."""
    if node.attributes.get("transBatchA", 0) or node.attributes.get("transBatchB", 0):
        return []
    return product(node, bool(node.attributes.get("transA", 0)), bool(node.attributes.get("transB", 0)))


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: NodeView) -> list[Option]:
    """Normalizes the sum of the first two inputs along the last axis: the others may be split."""
    shape = node.shapes[0]
    if shape is None or not same_shape(shape, shape_of(node, 1)):
        return []
    return [option(node, {0: split, 1: split}, split) for split in splits(node, shape, range(len(shape) - 1))]


@rule("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: NodeView) -> list[Option]:
    """RMS normalization along the last axis, as ONNX Runtime writes it (in the standard domain)."""
    shape = node.shapes[0]
    axis = int(node.attributes.get("axis", -1))
    if shape is None or axis not in (-1, len(shape) - 1):
        return []
    return others(node, (len(shape) - 1,))
