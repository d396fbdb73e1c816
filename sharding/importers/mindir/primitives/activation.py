"""Activation functions."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir import doubles
from sharding.importers.mindir.primitives.arithmetic import further
from sharding.importers.mindir.primitives.base import (
    Node,
    Operand,
    RefusedError,
    Value,
    alike,
    primitive,
    table,
)
from sharding.importers.mindir.primitives.operands import (
    INT64,
    Builder,
    Formula,
    Number,
    joined_length,
    known_rank,
)

GELU_SINCE = 20
"""The version of ONNX's operators that has this one."""
APPROXIMATE = ("none", "tanh")
_RELU6 = {"alpha": 1 / 6, "beta": 0.5}
"""Of a HardSigmoid: relu6(x + 3) / 6."""


@primitive("ReLU", "ReLUV3", "ReLU6")
def relu(b: Builder, node: Node, x: Value) -> Value:
    """max(x, 0), of ReLU6 at most 6."""
    if node.op_type == "ReLU6":
        return _clip(b, x, 0.0, 6.0)
    if x.dtype.kind == "u":
        return b.op("Identity", [x])
    wide = b.computable(x)
    # ONNX Runtime has no Relu of int64.
    return further(b, "Max", wide, b.scalar(0, wide)) if wide.dtype == INT64 else b.op("Relu", [wide])


def _clip(b: Builder, x: Value, low: float, high: float) -> Value:
    wide = b.computable(x)
    return b.op("Clip", [wide, b.scalar(low, wide), b.scalar(high, wide)])


@primitive("Hardtanh")
def hardtanh(b: Builder, x: Value, *, min_val: Number = -1, max_val: Number = 1) -> Value:
    """Between two bounds."""
    return _clip(b, x, min_val, max_val)


_FORMULAS: dict[str | tuple[str, ...], Formula] = {
    "Sigmoid": lambda b, x: b.op("Sigmoid", [x]),
    "Softsign": lambda b, x: b.op("Softsign", [x]),
    "HSigmoid": lambda b, x: b.op("HardSigmoid", [x], _RELU6),
    "HSwish": lambda b, x: b.op("Mul", [x, b.op("HardSigmoid", [x], _RELU6)]),
    # With the constants of G. Klambauer et al., Self-Normalizing Neural Networks (2017).
    ("SeLU", "SeLUExt"): lambda b, x: b.op(
        "Selu", [x], {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
    ),
    # x / (1 + exp(-1.702 |x|)) exp(0.851 (x - |x|)), which is x sigmoid(1.702 x)
    "FastGeLU": lambda b, x: b.op("Mul", [x, b.op("Sigmoid", [b.op("Mul", [x, b.scalar(1.702, x)])])]),
    ("Mish", "MishExt"): lambda b, x: b.op("Mul", [x, b.op("Tanh", [b.op("Softplus", [x])])]),
}


@table(_FORMULAS)
def of_float(formula: Formula, b: Builder, x: Value) -> Value:
    """A formula of floating-point numbers."""
    return formula(b, b.floating(x))


@primitive("SiLU")
def silu(b: Builder, x: Value) -> Value:
    """x sigmoid(x)"""
    wide = b.floating(x)
    return b.op("Mul", [wide, b.op("Sigmoid", [wide])])


@primitive("GeLU")
def gelu(b: Builder, x: Value) -> Value:
    """The tanh form."""
    wide = b.floating(x)
    if b.opset >= GELU_SINCE and wide.dtype != np.float64:  # ONNX writes it with constants of float32
        return b.op("Gelu", [wide], {"approximate": "tanh"})
    cube = b.op("Mul", [b.op("Mul", [b.op("Mul", [wide, wide]), wide]), b.scalar(0.044715, wide)])
    inner = b.op("Mul", [b.op("Add", [wide, cube]), b.scalar(np.sqrt(2 / np.pi), wide)])
    raised = b.op("Add", [b.op("Tanh", [inner]), b.scalar(1, wide)])
    return b.op("Mul", [b.op("Mul", [wide, b.scalar(0.5, wide)]), raised])


@primitive("GeluExt", "NpuGelu")
def gelu_ext(b: Builder, x: Value, *, approximate: Operand = "none") -> Value:
    """x times the normal distribution's integral up to x, by erf or by tanh."""
    if b.text(approximate, "approximate", APPROXIMATE) == "tanh":
        return gelu(b, x)
    wide = b.floating(x)
    if wide.dtype == np.float64:
        return doubles.gelu(doubles.Number(b, wide)).value
    if b.opset >= GELU_SINCE:
        return b.op("Gelu", [wide])
    part = b.op("Erf", [b.op("Div", [wide, b.scalar(np.sqrt(2), wide)])])
    product = b.op("Mul", [wide, b.op("Add", [part, b.scalar(1, wide)])])
    return b.op("Mul", [product, b.scalar(0.5, wide)])


def _halves(b: Builder, x: Value, axis: Operand) -> list[Value]:
    place = b.integer(axis, "axis")
    return b.ops("Split", [b.floating(x)], {"axis": place, "num_outputs": 2}, outputs=2)


@primitive("GLU")
def glu(b: Builder, x: Value, *, axis: Operand = -1) -> Value:
    """The first half times the sigmoid of the second."""
    first, second = _halves(b, x, axis)
    return b.op("Mul", [first, b.op("Sigmoid", [second])])


@primitive("Swiglu")
def swiglu(b: Builder, x: Value, *, dim: Operand = -1) -> Value:
    """The SiLU of the first half times the second."""
    first, second = _halves(b, x, dim)
    return b.op("Mul", [silu(b, first), second])


@primitive("Elu", "EluExt")
def elu(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    """x, below 0 alpha (exp(x) - 1)."""
    return b.op("Elu", [b.floating(x)], {"alpha": alpha})


@primitive("CeLU")
def celu(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    """x, below 0 alpha (exp(x / alpha) - 1)."""
    return b.op("Celu", [x if x.dtype == np.float64 else b.cast(x, np.float32)], {"alpha": alpha})


@primitive("PReLU")
def prelu(b: Builder, x: Value, slope: Value) -> Value:
    """x, below 0 times a slope: one, or one for each place along axis 1."""
    wide, slopes = (b.computable(item) for item in b.promoted(x, slope))
    if slopes.rank in {None, 1} and slopes.shape != (1,) and (wide.rank is None or wide.rank > 2):
        slopes = b.behind(wide, slopes, 1)
    return b.op("PRelu", [wide, slopes])


@primitive("LeakyReLUExt", "LeakyReLU")
def leaky_relu(b: Builder, x: Value, *, negative_slope: float = 0.01) -> Value:
    """x, below 0 times a slope."""
    return b.op("LeakyRelu", [b.floating(x)], {"alpha": negative_slope})


@primitive("Softplus", "SoftplusExt")
def softplus(b: Builder, node: Node, x: Value, *, beta: Number = 1, threshold: Operand = None) -> Value:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    wide = b.floating(x)
    inner = b.op("Mul", [wide, b.scalar(beta, wide)]) if beta != 1 else wide
    found = b.op("Softplus", [inner])
    if beta != 1:
        found = b.op("Div", [found, b.scalar(beta, wide)])
    limit = 20 if threshold is None and node.op_type == "SoftplusExt" else threshold
    if limit is None:
        return found
    return b.op(
        "Where", [b.op("Greater", [inner, b.scalar(b.number(limit, "threshold"), wide)]), wide, found]
    )


@table({"SoftShrink": True, "HShrink": False})
def shrink(soft: bool, b: Builder, x: Value, *, lambd: float = 0.5) -> Value:
    """0 where |x| is at most lambd; else x, of the soft one nearer to 0 by lambd."""
    return b.op("Shrink", [b.floating(x)], {"lambd": lambd, "bias": lambd if soft else 0.0})


@primitive("Threshold")
def threshold_(b: Builder, x: Value, *, threshold: Number = 0, value: Number = 0) -> Value:
    """x where it is above a threshold, else a value."""
    wide = b.computable(x)
    above = b.op("Greater", [wide, b.scalar(threshold, wide)])
    return b.op("Where", [above, wide, b.scalar(value, wide)])


@primitive("LogSigmoid")
def log_sigmoid(b: Builder, node: Node, x: Value) -> Operand:
    """log(1 / (1 + exp(-x))); a second result, if there is one, is for the gradient alone."""
    wide = b.floating(x)
    found = b.op("Neg", [b.op("Softplus", [b.op("Neg", [wide])])])
    return (found,) if len(node.result_types) > 1 else found


@table(alike("Softmax", "LogSoftmax"))
def softmax(op_type: str, b: Builder, x: Value, *, axis: Operand = -1) -> Value:
    """exp(x) / sum of exp(x), or its logarithm, along one axis or, flattened, along several neighbours."""
    wide = b.floating(x)
    axes = b.axes_of(axis, wide)
    if wide.rank == 0:
        return b.reshape(b.op(op_type, [b.reshape(wide, (1,))], {"axis": 0}), ())
    if axes is None or isinstance(axes, Value):
        raise RefusedError("it needs an operand whose number of axes is known")
    if len(axes) == 1:
        return b.op(op_type, [wide], {"axis": axes[0]})
    rank = known_rank(wide)
    kept = [axis for axis in range(rank) if axis not in axes]
    order = [*kept, *axes]
    turned = b.transpose(wide, order)
    shape = b.lengths(turned)
    joined = joined_length(turned, range(len(kept), rank))
    flat = b.op(op_type, [b.reshape(turned, (*shape[: len(kept)], joined))], {"axis": -1})
    return b.transpose(b.reshape(flat, shape), [order.index(axis) for axis in range(rank)])


@primitive("LogSoftmaxExt")
def log_softmax_ext(b: Builder, x: Value, *, dim: Operand = None, dtype: Operand = None) -> Value:
    """The same, computed in another element type if one is given; without an axis, along 0 for 0, 1 and 3
    axes, else 1."""
    wide = b.cast(x, b.element_type(dtype, x.dtype))
    axis = dim if dim is not None else 0 if known_rank(x) in {0, 1, 3} else 1
    return softmax("LogSoftmax", b, wide, axis=axis)
