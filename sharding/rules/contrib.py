"""Operators of ONNX Runtime's own domain that its optimizer puts into exported models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sharding.onnx_files.attributes import integer
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import absent, dim, divided, kept, last_axis, option, others, shape_of
from sharding.rules.elementwise import broadcast_axes, broadcast_options, unary
from sharding.rules.matmul import product
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Placement, Split

T = TypeVar("T")
MATRIX = 2
"""Axes of a matrix; those before are batch axes."""

rule("Gelu", "QuickGelu", domain=MICROSOFT)(unary)


@rule("BiasGelu", "FastGelu", "BiasAdd", domain=MICROSOFT)
def bias_gelu(node: NodeView) -> list[Option]:
    """The bias, one value per element of the last axis, is added first."""
    return unary(node) if absent(node, 1) else broadcast_options(node)


@rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(node: NodeView) -> list[Option]:
    """The first half of the last axis times the Gelu of the second half: two blocks of it become one."""
    last = last_axis(node)
    options = others(node, last)
    if node.divisible(dim(node.shapes[0], -1), 2):
        options.append(option(node, {0: Split(last, 2), 1: Split(0, 2)}, Split(last)))
    return options


@rule("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(node: NodeView) -> list[Option]:
    """Softmax over ``axis`` and all after it, of the sum with a bias that is broadcast."""
    shape, bias = node.shapes[0], node.shapes[1]
    if shape is None or bias is None or len(shape) != len(bias):
        return []
    axis = integer(node.attributes, "axis", 1) % len(shape)
    return [option(node, parts, split) for parts, split in broadcast_axes(node) if split.axis < axis]


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(node: NodeView) -> list[Option]:
    """alpha * A' * B', the last two axes transposed as asked, once the first one lies before the last where
    that is asked (``transBatchA``, ``transBatchB``)."""
    turned = [integer(node.attributes, name, 0) for name in ("transBatchA", "transBatchB")]
    transposed = [bool(node.attributes.get(name, 0)) for name in ("transA", "transB")]
    if not any(turned):
        return product(node, *transposed)
    ranks = {0 if shape is None else len(shape) for shape in node.shapes[:2]}
    if len(ranks) != 1 or min(ranks) < MATRIX + 1:
        return []
    shapes = [
        first_before_last(shape) if turn else shape for shape, turn in zip(node.shapes, turned, strict=True)
    ]
    orders = [
        first_before_last(range(len(shape or ()))) if turn else None
        for shape, turn in zip(shapes, turned, strict=True)
    ]
    return [
        replace(item, inputs=tuple(map(_before_turning, item.inputs, orders)))
        for item in product(replace(node, shapes=shapes), *transposed)
    ]


def first_before_last(axes: Sequence[T] | None) -> tuple[T, ...]:
    """Axes in another order: the first one moves to the last place but one."""
    first, *others, last = axes or ()
    return (*others, first, last)


def _before_turning(placement: Placement, order: Sequence[int] | None) -> Placement:
    if order is None or not isinstance(placement, Split):
        return placement
    return replace(placement, axis=order[placement.axis])


@rule("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(node: NodeView) -> list[Option]:
    """Gelu of X * W + bias: the columns, or an axis of X that is not summed over."""
    weights = node.shapes[1]
    if last_axis(node) < 0 or weights is None or len(weights) != 2:
        return []
    last = last_axis(node)
    options = others(node, last)
    for blocks in node.blocks(weights[1]):
        options.append(option(node, {1: Split(1, blocks), 2: Split(0, blocks)}, Split(last, blocks)))
    return options


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: NodeView) -> list[Option]:
    """Normalizes the sum of the first two inputs along the last axis: the others may be split.

    The second input may lack the batch axis or have length 1 there.
    """
    last = last_axis(node)
    return [
        option(node, parts, split)
        for parts, split in broadcast_axes(node, (0, 1))
        if split.axis < last and 0 in parts
    ]


@rule("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: NodeView) -> list[Option]:
    """RMS normalization along the last axis, as ONNX Runtime writes it (in the standard domain)."""
    last = last_axis(node)
    return others(node, last) if integer(node.attributes, "axis", -1) in (-1, last) else []


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: NodeView) -> list[Option]:
    """Ids [batch, sequence] to normalized sums of embeddings: rows of the batch by themselves.

    The tables are cut where the operator is written out as its parts (`sharding.rewrite.lowering`).
    """
    batch = dim(node.shapes[0], 0)
    lengths = {index: dim(shape_of(node, index), 0) for index in (1, 7, 8) if not absent(node, index)}
    parts = {index: Split(0) for index, length in lengths.items() if length == batch}
    rest = lengths.keys() - parts.keys()
    if not node.divisible(batch) or not all(index == 8 and lengths[index] == 1 for index in rest):
        return []
    return [option(node, {0: Split(0), **parts}, Split(0))]


@rule("GroupNorm", domain=MICROSOFT)
def group_norm(node: NodeView) -> list[Option]:
    """Channels last: the batch, or whole groups of channels."""
    groups = integer(node.attributes, "groups", 0)
    if last_axis(node) < 0 or not node.attributes.get("channels_last", 1):
        return []
    options, last = kept(node, (0,)), last_axis(node)
    if node.divisible(groups) and node.divisible(dim(node.shapes[0], -1)):
        parts: dict[int, Placement] = {0: Split(last), 1: Split(0), 2: Split(0)}
        options.append(option(node, parts, Split(last), divided(groups=groups)))
    return options
