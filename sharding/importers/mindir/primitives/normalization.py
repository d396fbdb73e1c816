"""Normalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.arithmetic import binary
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.matmul import channels_last
from sharding.importers.mindir.primitives.operands import Axes, Builder, joined_length, known_rank
from sharding.importers.mindir.primitives.statistics import moments


def _batch(
    b: Builder, x: Value, weights: Sequence[Operand], training: bool, epsilon: float, flip: bool
) -> Operand:
    """``weights``: scale, bias, mean, variance."""
    wide = b.floating(x)
    rank = known_rank(x) if flip or training else 0
    flip = flip and rank > 2
    if flip:
        wide = b.transpose(wide, [0, rank - 1, *range(1, rank - 1)])
    channels: Operand = None
    if not all(isinstance(item, Value) for item in weights):
        channels = b.dim(wide, 1)
    if training:
        spread, centre = moments(b, wide, [0, *range(2, rank)], 0, False)
        weights = [*weights[:2], centre, spread]
    found = [
        b.cast(item, wide.dtype) if isinstance(item, Value) else b.filled((channels,), default, wide.dtype)
        for item, default in zip(weights, (1, 0, 0, 1), strict=True)
    ]
    result = b.op("BatchNormalization", [wide, *found], {"epsilon": epsilon})
    if flip:
        result = b.transpose(result, [0, *range(2, rank), 1])
    return (result, found[2], found[3], found[2], found[3])


@primitive("BatchNorm", "FusedBatchNorm")
def batch_norm(
    b: Builder,
    node: Node,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    is_training: bool = False,
    epsilon: float = 1e-5,
    momentum: Operand = 0.1,
    data_format: Operand = "NCHW",
) -> Operand:
    """By the given moments, or in training by those of the batch. Of the five results the first matters."""
    flip = channels_last(node, data_format)
    return _batch(b, x, (scale, bias, mean, variance), is_training, epsilon, flip)


@primitive("BatchNormExt")
def batch_norm_ext(
    b: Builder,
    x: Value,
    scale: Operand = None,
    bias: Operand = None,
    mean: Operand = None,
    variance: Operand = None,
    *,
    training: bool = False,
    momentum: Operand = 0.1,
    epsilon: float = 1e-5,
) -> Operand:
    """The same with moments and weights that may be missing."""
    found = _batch(b, x, (scale, bias, mean, variance), training or mean is None, epsilon, False)
    assert isinstance(found, tuple)
    return found[:3]


def _layer(
    b: Builder, x: Value, first_axis: int, scale: Operand, bias: Operand, epsilon: float
) -> tuple[Value, Value, Value]:
    """(result, mean, variance)"""
    wide = b.floating(x)
    if wide.rank is not None:
        axes = list(range(b.axis(first_axis, wide), wide.rank))
    elif first_axis < 0:
        axes = list(range(first_axis, 0))
    elif isinstance(scale, Value) and scale.rank:
        axes = list(range(-scale.rank, 0))  # the weights have the axes that are normalized
    else:
        raise RefusedError("it needs an operand whose number of axes is known")
    weights: Operand = scale
    if not isinstance(scale, Value):
        weights = b.filled(tuple(b.dim(wide, axis) for axis in axes), 1, wide.dtype)
    assert isinstance(weights, Value)
    operands = [wide, b.cast(weights, wide.dtype)]
    late_bias = isinstance(bias, Value) and bias.rank != len(axes)
    if weights.rank == len(axes):
        if isinstance(bias, Value) and not late_bias:
            operands.append(b.cast(bias, wide.dtype))
        found = b.op("LayerNormalization", operands, {"axis": axes[0], "epsilon": epsilon})
    else:  # weights of other axes than those that are normalized
        variance, mean = moments(b, wide, axes, 0, True)
        root = b.op("Sqrt", [b.op("Add", [variance, b.scalar(epsilon, variance)])])
        found = b.op("Mul", [b.op("Div", [b.op("Sub", [wide, mean]), root]), operands[1]])
        late_bias = isinstance(bias, Value)
    if late_bias and isinstance(bias, Value):
        found = b.op("Add", [found, b.cast(bias, wide.dtype)])
    variance, mean = moments(b, wide, axes, 0, True)
    return found, mean, variance


def _inverse_root(b: Builder, variance: Value, epsilon: float) -> Value:
    return b.op("Reciprocal", [b.op("Sqrt", [b.op("Add", [variance, b.scalar(epsilon, variance)])])])


@primitive("LayerNorm", "LayerNormV3")
def layer_norm(
    b: Builder,
    node: Node,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    begin_norm_axis: int = 1,
    begin_params_axis: Operand = 1,
    epsilon: float = 1e-7,
) -> Operand:
    """Over the axes from one on; the weights have the shape from another on. Gives also the mean and, for
    LayerNorm, the variance, for LayerNormV3 one over its root."""
    found, mean, variance = _layer(b, x, begin_norm_axis, scale, bias, epsilon)
    return found, mean, variance if node.op_type == "LayerNorm" else _inverse_root(b, variance, epsilon)


@primitive("LayerNormExt")
def layer_norm_ext(
    b: Builder,
    x: Value,
    normalized_shape: Operand,
    weight: Operand = None,
    bias: Operand = None,
    *,
    eps: float = 1e-5,
) -> Operand:
    """Over as many last axes as the given shape has. Gives also the mean and one over the deviation."""
    given = normalized_shape
    count = len(given if isinstance(given, tuple) else b.integers(given, "normalized_shape"))
    found, mean, variance = _layer(b, x, -count, weight, bias, eps)
    return found, mean, _inverse_root(b, variance, eps)


@primitive("AddLayerNormV2", "AddLayerNorm")
def add_layer_norm(
    b: Builder,
    node: Node,
    x: Value,
    y: Value,
    gamma: Value,
    beta: Value,
    *,
    epsilon: float = 1e-5,
    additional_out: Operand = False,
) -> Operand:
    """Of a sum, over the last axis. Gives also the mean, one over the deviation, and the sum."""
    total = binary(b, node, "Add", x, y)
    found, mean, variance = _layer(b, total, -1, gamma, beta, epsilon)
    return found, mean, _inverse_root(b, variance, epsilon), total


def _by_group(b: Builder, x: Value, groups: int) -> Value:
    """Batch entries, groups of channels, and all that a group has."""
    whole = joined_length(x, range(1, x.rank)) if x.rank is not None else -1
    return b.reshape(x, (b.dim(x, 0), groups, whole // groups if whole >= 0 else -1))


def _grouped(b: Builder, x: Value, groups: int, epsilon: float) -> Value:
    """Each group of channels of each batch entry by its own moments."""
    wide = b.floating(x)
    shape = b.shape_of(wide)
    ones, zeros = (b.const(np.full(groups, item, wide.dtype)) for item in (1, 0))
    flat = _by_group(b, wide, groups)
    found = b.op("InstanceNormalization", [flat, ones, zeros], {"epsilon": epsilon})
    return b.reshape(found, shape)


def _per_channel(b: Builder, x: Value, vector: Operand, op_type: str) -> Value:
    if not isinstance(vector, Value):
        return x
    return b.op(op_type, [x, b.behind(x, b.cast(vector, x.dtype), 1)])


@primitive("GroupNorm")
def group_norm(
    b: Builder, x: Value, num_groups: int, weight: Operand = None, bias: Operand = None, *, eps: float = 1e-5
) -> Operand:
    """By the moments of groups of channels. Gives also each group's mean and one over its deviation."""
    channels = b.dim(x, 1)
    if num_groups < 1 or (isinstance(channels, int) and channels % num_groups):
        raise RefusedError(f"{channels} channels cannot be cut into {num_groups} groups")
    found = _grouped(b, x, num_groups, eps)
    found = _per_channel(b, _per_channel(b, found, weight, "Mul"), bias, "Add")
    flat = _by_group(b, b.floating(x), num_groups)
    variance, mean = moments(b, flat, [2], 0, False)
    return found, mean, _inverse_root(b, variance, eps)


@primitive("InstanceNorm")
def instance_norm(
    b: Builder,
    x: Value,
    gamma: Value,
    beta: Value,
    *running: Operand,
    epsilon: float = 1e-5,
    momentum: Operand = 0.1,
) -> Operand:
    """Each channel of each batch entry by its own moments."""
    wide = b.floating(x)
    operands = [wide, b.cast(gamma, wide.dtype), b.cast(beta, wide.dtype)]
    found = b.op("InstanceNormalization", operands, {"epsilon": epsilon})
    axes: Axes
    if wide.rank is not None:
        axes = list(range(2, wide.rank))
    else:
        axes = b.op(
            "Range", [b.const(2, np.int64), b.op("Size", [b.op("Shape", [wide])]), b.const(1, np.int64)]
        )
    variance, mean = moments(b, wide, axes, 0, False)
    return found, b.reshape(mean, (-1,)), b.reshape(variance, (-1,))


def _rms(b: Builder, x: Value, gamma: Value, epsilon: float) -> tuple[Value, Value]:
    """x / sqrt(mean of squares + epsilon) times weights, and the first factor's inverse; computed in float32,
    as MindSpore does for narrower types."""
    axes = list(range(-known_rank(gamma), 0))
    wide = b.floating(b.cast(x, np.float32) if x.dtype.itemsize < 4 else x)
    mean = b.reduced("ReduceMean", b.op("Mul", [wide, wide]), axes, True)
    scale = _inverse_root(b, mean, epsilon)
    return b.op("Mul", [b.op("Mul", [wide, scale]), b.cast(gamma, wide.dtype)]), scale


@primitive("RmsNorm")
def rms_norm(b: Builder, x: Value, gamma: Value, *, epsilon: float = 1e-6) -> Operand:
    """By the root of the mean square."""
    return _rms(b, x, gamma, epsilon)


@primitive("AddRmsNorm")
def add_rms_norm(
    b: Builder, node: Node, x: Value, y: Value, gamma: Value, *, epsilon: float = 1e-6
) -> Operand:
    """Of a sum. Gives also one over the root of the mean square, and the sum."""
    total = binary(b, node, "Add", x, y)
    found, scale = _rms(b, total, gamma, epsilon)
    return found, scale, total


@primitive("LRN")
def lrn(
    b: Builder,
    x: Value,
    *,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    norm_region: Operand = "across_channels",
) -> Value:
    """By the squares of the neighbouring channels; ONNX divides alpha by their number."""
    b.text(norm_region, "norm_region", ("across_channels",))
    size = 2 * depth_radius + 1
    return b.op("LRN", [b.computable(x)], {
        "size": size, "bias": bias, "alpha": alpha * size,
        "beta": beta,
    })  # fmt: skip
