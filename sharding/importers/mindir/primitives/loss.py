"""Losses, which networks exported for evaluation contain."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.arithmetic import binary
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import INT64, Builder, Number, known_rank

REDUCTIONS = ("sum", "mean", "none")
"""In the order of version 3's numbers."""


def _reduced(b: Builder, x: Value, setting: Operand, weights: Value | None = None) -> Value:
    """The loss of each, their sum, or their mean, which weights weigh."""
    kind = b.text(setting, "reduction", (*REDUCTIONS, "batchmean"))
    if kind == "none":
        return x
    if kind == "batchmean":
        total = b.op("ReduceSum", [x], {"keepdims": 0})
        return b.op("Div", [total, b.cast(b.value(b.dim(x, 0)), x.dtype)])
    if kind == "mean" and weights is not None:
        total, count = (b.op("ReduceSum", [item], {"keepdims": 0}) for item in (x, weights))
        return b.op("Div", [total, count])
    return b.op("ReduceSum" if kind == "sum" else "ReduceMean", [x], {"keepdims": 0})


@primitive("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(b: Builder, logits: Value, labels: Value) -> Operand:
    """The loss of each row against its distribution, and the logits' gradient."""
    wide, wanted = _both(b, logits, labels)
    logs = b.op("LogSoftmax", [wide], {"axis": -1})
    loss = b.op("Neg", [b.op("ReduceSum", [b.op("Mul", [wanted, logs]), b.ints((-1,))], {"keepdims": 0})])
    return loss, b.op("Sub", [b.op("Softmax", [wide], {"axis": -1}), wanted])


@primitive("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy(b: Builder, logits: Value, labels: Value, *, is_grad: bool = False) -> Value:
    """The mean loss against class numbers."""
    if is_grad:
        raise RefusedError("its gradient (is_grad) has no conversion")
    logs = b.op("LogSoftmax", [b.floating(logits)], {"axis": -1})
    rows = b.op(
        "GatherElements", [logs, b.unsqueeze(b.cast(labels, INT64), [known_rank(labels)])], {"axis": -1}
    )
    return b.op("Neg", [b.op("ReduceMean", [rows], {"keepdims": 0})])


def _both(b: Builder, x: Value, target: Value) -> tuple[Value, Value]:
    """What is compared, in one floating-point type."""
    wide = b.floating(x)
    return wide, b.cast(target, wide.dtype)


@primitive("SigmoidCrossEntropyWithLogits")
def logits_loss(b: Builder, x: Value, target: Value) -> Value:
    """The loss of each against a probability: log(1 + exp(-|x|)) + max(x, 0) - x target"""
    wide, wanted = _both(b, x, target)
    tail = b.op("Softplus", [b.op("Neg", [b.op("Abs", [wide])])])
    line = b.op("Sub", [b.op("Relu", [wide]), b.op("Mul", [wide, wanted])])
    return b.op("Add", [line, tail])


@primitive("BCEWithLogitsLoss")
def bce_with_logits(
    b: Builder,
    logits: Value,
    labels: Value,
    weight: Operand = None,
    positive: Operand = None,
    *,
    reduction: Operand = "mean",
) -> Value:
    """The same with weights of each and of the positive part."""
    wide, wanted = _both(b, logits, labels)
    if isinstance(positive, Value):
        # (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))
        one = b.scalar(1, wide)
        more = b.op("Mul", [b.op("Sub", [b.cast(positive, wide.dtype), one]), wanted])
        tail = b.op("Mul", [b.op("Add", [more, one]), b.op("Softplus", [b.op("Neg", [wide])])])
        found = b.op("Add", [b.op("Mul", [b.op("Sub", [one, wanted]), wide]), tail])
    else:
        found = logits_loss(b, wide, wanted)
    if isinstance(weight, Value):
        found = b.op("Mul", [found, b.cast(weight, wide.dtype)])
    return _reduced(b, found, reduction)


@primitive("BinaryCrossEntropy")
def binary_cross_entropy(
    b: Builder, x: Value, target: Value, weight: Operand = None, *, reduction: Operand = "mean"
) -> Value:
    """Of probabilities; logarithms of 0 are held at that of the smallest number."""
    wide, wanted = _both(b, x, target)
    one, least = b.scalar(1, wide), b.scalar(1e-12, wide)
    logs = [b.op("Log", [b.op("Max", [item, least])]) for item in (wide, b.op("Sub", [one, wide]))]
    parts = [b.op("Mul", [wanted, logs[0]]), b.op("Mul", [b.op("Sub", [one, wanted]), logs[1]])]
    found = b.op("Neg", [b.op("Add", parts)])
    if isinstance(weight, Value):
        found = b.op("Mul", [found, b.cast(weight, wide.dtype)])
    return _reduced(b, found, reduction)


@primitive("SmoothL1Loss")
def smooth_l1(
    b: Builder, node: Node, x: Value, target: Value, *, beta: float = 1.0, reduction: Operand = "none"
) -> Value:
    """A parabola below beta, a line above."""
    distance = b.op("Abs", [binary(b, node, "Sub", x, target)])
    if beta == 0:
        return _reduced(b, distance, reduction)
    half = b.op("Mul", [b.op("Mul", [distance, distance]), b.scalar(0.5 / beta, distance)])
    line = b.op("Sub", [distance, b.scalar(0.5 * beta, distance)])
    near = b.op("Less", [distance, b.scalar(beta, distance)])
    return _reduced(b, b.op("Where", [near, half, line]), reduction)


@table({"MSELossExt": True, "L1LossExt": False})
def distance_loss(
    squared: bool, b: Builder, node: Node, x: Value, target: Value, *, reduction: Operand = "mean"
) -> Value:
    """The distance, or its square."""
    distance = binary(b, node, "Sub", x, target)
    found = b.op("Mul", [distance, distance]) if squared else b.op("Abs", [distance])
    return _reduced(b, found, reduction)


@primitive("MultiMarginLoss")
def multi_margin_loss(
    b: Builder,
    x: Value,
    target: Value,
    weight: Operand = None,
    *,
    p: int = 1,
    margin: float = 1.0,
    reduction: Operand = "mean",
) -> Value:
    """How far, to the power p, other classes come nearer to the right one than the margin."""
    wide = b.floating(x)
    count = b.dim(wide, known_rank(wide) - 1)
    places = b.unsqueeze(b.cast(target, INT64), [known_rank(target)])
    right = b.op("GatherElements", [wide, places], {"axis": -1})
    nearer = b.op("Add", [b.op("Sub", [wide, right]), b.scalar(margin, wide)])
    # the class itself, and what is not above 0, are left out, not multiplied by 0: they may be endless
    pair = b.const(np.array([1, 0], wide.dtype))
    others = b.op("OneHot", [b.cast(target, INT64), b.value(count), pair], {"axis": -1})
    zero = b.scalar(0, wide)
    counts = b.op("And", [b.op("Greater", [item, zero]) for item in (nearer, others)])
    over = b.op("Where", [counts, nearer, zero])
    if p == 2:
        over = b.op("Mul", [over, over])
    if isinstance(weight, Value):
        over = b.op("Mul", [over, b.op("Gather", [b.cast(weight, wide.dtype), places])])
    total = b.op("ReduceSum", [over, b.ints((-1,))], {"keepdims": 0})
    return _reduced(b, b.op("Div", [total, b.cast(b.value(count), wide.dtype)]), reduction)


@primitive("KLDivLoss")
def kl_div_loss(b: Builder, x: Value, target: Value, *, reduction: Operand = "mean") -> Value:
    """target (log target - x); 0 where the target is not positive."""
    wide, wanted = _both(b, x, target)
    positive = b.op("Greater", [wanted, b.scalar(0, wanted)])
    safe = b.op("Where", [positive, wanted, b.scalar(1, wanted)])
    found = b.op("Mul", [wanted, b.op("Sub", [b.op("Log", [safe]), wide])])
    return _reduced(b, b.op("Where", [positive, found, b.scalar(0, wanted)]), reduction)


@primitive("KLDiv")
def kl_div(
    b: Builder, x: Value, target: Value, *, reduction: Operand = "mean", log_target: bool = False
) -> Value:
    """target (log target - x), of logarithms of the target if wanted; 0 where the target is 0, and nothing
    where it is negative."""
    wide, wanted = _both(b, x, target)
    if log_target:
        found = b.op("Mul", [b.op("Exp", [wanted]), b.op("Sub", [wanted, wide])])
        return _reduced(b, found, reduction)
    zero = b.scalar(0, wanted)
    nothing = b.op("Equal", [wanted, zero])
    safe = b.op("Where", [nothing, b.scalar(1, wanted), wanted])
    product = b.op("Where", [nothing, zero, b.op("Mul", [wanted, b.op("Log", [safe])])])
    return _reduced(b, b.op("Sub", [product, b.op("Mul", [wanted, wide])]), reduction)


@primitive("NLLLoss2d", "NLLLoss")
def nll_loss(
    b: Builder,
    node: Node,
    logs: Value,
    labels: Value,
    weight: Value,
    *,
    reduction: Operand = "mean",
    ignore_index: Number = -100,
) -> Operand:
    """The negative logarithm at each place's class, along the last axis or axis 1, times the class's weight,
    and the weights' sum."""
    wide = b.floating(logs)
    classes = b.cast(labels, INT64)
    ignored = b.op("Equal", [classes, b.const(int(ignore_index), np.int64)])
    safe = b.op("Where", [ignored, b.const(0, np.int64), classes])
    shares = b.op("Gather", [b.cast(weight, wide.dtype), safe], {"axis": 0})
    shares = b.op("Where", [ignored, b.scalar(0, wide), shares])
    axis = 1 if node.op_type == "NLLLoss2d" else known_rank(safe)
    rows = b.op("GatherElements", [wide, b.unsqueeze(safe, [axis])], {"axis": axis})
    found = b.op("Neg", [b.op("Mul", [b.squeeze(rows, [axis]), shares])])
    found = b.op("Where", [ignored, b.scalar(0, wide), found])  # the row of class 0 may be endless there
    return _reduced(b, found, reduction, shares), b.op("ReduceSum", [shares], {"keepdims": 0})
