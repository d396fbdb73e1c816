"""Mixtures of experts: each rank holds its part of the inner axis of every expert, or some whole experts.

With parts of the inner axis, every rank has the same share of a token's work, whichever experts the token is
sent to, and what the ranks compute sums to the output. Whole experts on different ranks sum to it, too, but
save memory alone: the operator always computes ``k`` experts for a token, of those that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import absent, dim, option, shape_of, summable, zero_is_zero
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split

INTERLEAVED, ONE_AFTER_THE_OTHER = 1, 2
"""Values of ``swiglu_fusion``: how gate and value lie in the rows of the first weight."""
NOT_CHOSEN = -1e30
"""A score beside which any chosen expert's is infinite: its exponential is zero."""


@rule("MoE", domain=MICROSOFT)
def mixture(node: NodeView) -> list[Option]:
    """Weights [experts, inner, hidden] twice (fc1, fc3) and [experts, hidden, inner] (fc2)."""
    return [
        *_inner(node, first=(2, 3, 6, 7), second=(4,), bias=5),
        *_whole_experts(node, range(2, 8), kept=(5,)),
        *_tokens(node),
    ]


@rule("QMoE", domain=MICROSOFT)
def quantized_mixture(node: NodeView) -> list[Option]:
    """The same with weights of few bits packed along their last axis, and scales by row or by block of it."""
    second = [5]
    for index in (6, 12):
        shape = shape_of(node, index)
        if shape is not None and len(shape) == 3:
            second.append(index)
    known = all(absent(node, index) or shape_of(node, index) is not None for index in (6, 12))
    first = (2, 3, 4, 8, 9, 10, 11, 13)
    return [
        *(_inner(node, first=first, second=tuple(second), bias=7, points=(11, 13)) if known else ()),
        *_whole_experts(node, range(2, 14), kept=(7, *({6, 12} - set(second)))),
        *_tokens(node, 14),
    ]


def _inner(
    node: NodeView,
    *,
    first: tuple[int, ...],
    second: tuple[int, ...],
    bias: int,
    points: tuple[int, ...] = (),
) -> list[Option]:
    """``points``: those of the first that are zero points; where each row has one, they are packed."""
    if not summable(node.dtypes[0]):
        return []
    fusion = integer(node.attributes, "swiglu_fusion", 0)
    pairs = fusion in (INTERLEAVED, ONE_AFTER_THE_OTHER)
    inner = dim(node.shapes[first[0]], 1)
    if not isinstance(inner, int) or not node.divisible(inner, 2 if pairs else 1):
        return []
    bits = integer(
        node.attributes, "fc1_expert_weight_bits", integer(node.attributes, "expert_weight_bits", 4)
    )
    parts: dict[int, Placement] = {}
    for index in first:
        if not absent(node, index):
            shape = shape_of(node, index)
            packed = index in points and shape is not None and len(shape) == 2
            rows = inner * bits // 8 if packed else inner
            if dim(shape, 1) != rows or not node.divisible(rows, 2 if pairs else 1):
                return []
            parts[index] = Split(1, 2 if fusion == ONE_AFTER_THE_OTHER else 1)
    for index in second:
        if not absent(node, index):
            if not node.divisible(dim(shape_of(node, index), 2)):
                return []
            parts[index] = Split(2)
    emit = None if absent(node, bias) else partial(_bias_once, bias)
    return [option(node, parts, PARTIAL, emit)]


def _bias_once(index: int, e: Emitter, values: Values) -> list[Value]:
    if e.rank == 0:
        return e.copy(values)
    return e.copy([None if i == index else value for i, value in enumerate(values)])


def _whole_experts(node: NodeView, weights: range, kept: tuple[int, ...]) -> list[Option]:
    """Experts by rank. In float32 alone, for the weights of the chosen ones pass through a logarithm.

    ``kept``: small weights that ranks hold whole, as with parts of the inner axis: their bytes shall not
    decide for whole experts, which cost more time.
    """
    scores, shape = node.shapes[1], node.shapes[0]
    experts, hidden = dim(scores, 1), dim(shape, -1)
    others = any(not absent(node, index) for index in range(weights.stop, len(node.shapes)))
    known = isinstance(experts, int) and isinstance(hidden, int) and shape is not None
    if others or not known or not node.divisible(experts) or node.attributes.get("use_sparse_mixer", 0):
        return []
    if any(node.dtypes[index] != np.float32 for index in (0, 1)):
        return []
    parts: dict[int, Placement] = {}
    for index in weights:
        if not absent(node, index):
            if dim(shape_of(node, index), 0) != experts:
                return []
            parts[index] = REPLICATED if index in kept else Split(0)
    assert isinstance(experts, int) and isinstance(hidden, int) and shape is not None
    chosen = integer(node.attributes, "k", 1)
    normalized = integer(node.attributes, "normalize_routing_weights", 0)
    emit = partial(
        _own_experts,
        experts,
        hidden if len(shape) != 2 else None,
        partial(_routed, experts, chosen, normalized, node.op_type == "QMoE"),
        chosen,
        [index for index in kept if index in parts],
    )
    return [option(node, parts, PARTIAL, emit, divides_work=False)]


def _own_experts(  # noqa: PLR0917 - what the rule binds, then what `Emit` takes
    experts: int,
    hidden: int | None,
    routed: Callable[[Emitter, Value], Value],
    chosen: int,
    whole: Sequence[int],
    e: Emitter,
    values: Values,
) -> list[Value]:
    """The rank's experts, weighted as all experts together would be.

    The operator weights the best ``k`` by their softmax. Given the logarithms of the weights that the rank's
    experts have in the whole, it makes weights with the sum 1 of them, which their sum then scales back. A
    token that is sent to other ranks alone has the sum 0.
    """
    count = experts // e.world
    x, scores, *weights = [
        _cut(e, value, 0, count) if index in whole else value for index, value in enumerate(values)
    ]
    own = _cut(e, routed(e, scores), 1, count)
    (sums,) = e.op("MatMul", [own, e.constant(np.ones((count, 1), np.float32))])
    (is_chosen,) = e.op("Greater", [own, e.constant(np.zeros((), np.float32))])
    (logarithms,) = e.op("Log", [own])
    (local,) = e.op("Where", [is_chosen, logarithms, e.constant(np.array(NOT_CHOSEN, np.float32))])
    rows = x
    if hidden is not None:
        (rows,) = e.op("Reshape", [x, e.constant(np.array([-1, hidden]))])
    (mixed,) = e.copy([rows, local, *weights], k=min(chosen, count), normalize_routing_weights=0)
    (scaled,) = e.op("Mul", [mixed, sums])
    if hidden is None:
        return [scaled]
    (shape,) = e.op("Shape", [x])
    return e.op("Reshape", [scaled, shape], **zero_is_zero(e.version))


def _cut(e: Emitter, value: Value, axis: int, count: int) -> Value:
    """The ``count`` entries of an axis that are this rank's."""
    return e.op("Gather", [value, e.constant(np.arange(count) + e.rank * count)], axis=axis)[0]


def _routed(  # noqa: PLR0917 - what the rule binds, then the emitter and the scores
    experts: int, chosen: int, normalized: int, quantized: bool, e: Emitter, scores: Value
) -> Value:
    """The weight of each expert for each token, [tokens, experts], zero where it is not chosen.

    The operator itself computes them, with experts of which each returns its own unit vector: so they are
    right also where scores are equal, and operators and backends differ in whom they choose, or by what
    they divide (on the CPU, QMoE always by the sum of the chosen).
    """
    (shape,) = e.op("Shape", [scores])
    (nothing,) = e.op("ConstantOfShape", [shape])
    # Older releases of QMoE know swiglu alone, which takes two rows for each inner unit.
    kind, rows = (np.uint8, 2) if quantized else (np.float32, 1)
    first = e.constant(np.zeros((experts, rows, experts), kind))
    second = e.constant(np.zeros((experts, experts, 1), kind))
    units = e.constant(np.eye(experts, dtype=np.float32))
    weights = [first, None, second, units]
    form: dict[str, object] = {"activation_type": "relu"}
    if quantized:
        scale = e.constant(np.zeros((experts, rows), np.float32))
        scales = e.constant(np.zeros((experts, experts), np.float32))
        weights = [first, scale, None, second, scales, units]
        form |= {"activation_type": "swiglu", "swiglu_fusion": INTERLEAVED, "expert_weight_bits": 8}
    (routed,) = e.op(
        "QMoE" if quantized else "MoE", [nothing, scores, *weights], outputs=1, domain=MICROSOFT,
        k=chosen, normalize_routing_weights=normalized, **form,
    )  # fmt: skip
    return routed


def _tokens(node: NodeView, weights: int | None = None) -> list[Option]:
    """Tokens are independent; the router's scores are [tokens, experts], and so are its own ``weights``."""
    shape, scores = node.shapes[0], node.shapes[1]
    if shape is None or scores is None or not node.divisible(shape[0]):
        return []
    parts: dict[int, Placement] = {0: Split(0), 1: Split(0)}
    if weights is not None and not absent(node, weights):
        parts[weights] = Split(0)
    return [option(node, parts, Split(0))]
