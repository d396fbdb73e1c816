"""Operators that work on each element by itself, with numpy broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    constant,
    floating,
    kept,
    option,
    partial_option,
    same_shape,
    shape_like,
    shape_of,
    summable,
)
from sharding.slices.placement import PARTIAL, Split

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Celu", "Ceil", "Cos", "Cosh"),
    *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log"),
    *("Mish", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
)
BROADCASTING = (
    *("And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "GreaterOrEqual"),
    *("Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Or", "PRelu", "Pow", "Xor"),
)
ELEMENTWISE = (*BROADCASTING, "Add", "Div", "Mul", "Sub", "Sum", "Where")
"""All whose inputs are broadcast to one shape."""
EACH = frozenset((*ELEMENTWISE, *UNARY, "Cast", "Clip", "Identity", "Neg"))
"""All that take each element by itself, of inputs that are broadcast to one shape."""


@rule(*UNARY, "CastLike", "Clip")
def unary(node: NodeView) -> list[Option]:
    """Any axis may be split."""
    return kept(node)


# The bounds of Clip are scalars; the second input of CastLike only gives a type.
@rule("Identity", "Neg")
def linear(node: NodeView) -> list[Option]:
    """As ``unary``; summands stay summands."""
    return unary(node) + partial_option(node)


@rule("Cast")
def cast(node: NodeView) -> list[Option]:
    """As ``unary``; summands stay summands where no bit is lost: to the type that they have, from float16 or
    bfloat16 to float, to double."""
    widened = {
        "float16": (10, 1, 11),
        "bfloat16": (16, 1, 11),
        "float32": (1, 11),
        "float64": (11,),
    }  # FLOAT = 1, FLOAT16 = 10, DOUBLE = 11, BFLOAT16 = 16
    source = node.dtypes[0]
    exact = source is not None and node.attributes.get("to") in widened.get(source.name, ())
    return unary(node) + (partial_option(node) if exact else [])


@rule("Dropout")
def dropout(node: NodeView) -> list[Option]:
    """Only the inference form, which copies (training draws random numbers for the whole value)."""
    if node.version < 7:
        return []
    if not absent(node, 2):
        training = constant(node, 2)
        if training is None or bool(training.any()):
            return []
    return unary(node) + (partial_option(node) if len(node.output_shapes) == 1 else [])


def broadcast_axes(
    node: NodeView, inputs: Sequence[int] | None = None
) -> list[tuple[dict[int, Split], Split]]:
    """Every way to split one axis of the broadcast of these inputs: (input splits, output split).

    An input that has length 1 on that axis, or not that axis at all, stays whole.
    """
    indices = range(len(node.shapes)) if inputs is None else inputs
    shapes = [shape for index in indices if (shape := node.shapes[index]) is not None]
    if len(shapes) < len(indices):
        return []
    rank = max((len(shape) for shape in shapes), default=0)
    found: list[tuple[dict[int, Split], Split]] = []
    for axis in range(rank):
        aligned = {
            index: (axis - rank + len(shape), shape[axis - rank + len(shape)])
            for index, shape in zip(indices, shapes, strict=True)
            if axis - rank + len(shape) >= 0
        }
        lengths = {length for _, length in aligned.values()} - {1}
        if len(lengths) != 1:
            continue
        for blocks in node.blocks(lengths.pop()):
            parts = {index: Split(own, blocks) for index, (own, length) in aligned.items() if length != 1}
            found.append((parts, Split(axis, blocks)))
    return found


@rule(*BROADCASTING)
def broadcasting(node: NodeView) -> list[Option]:
    """Any axis of the result may be split (before opset 7 broadcasting had other rules)."""
    return broadcast_options(node) if node.version >= 7 else []


def broadcast_options(node: NodeView, inputs: Sequence[int] | None = None) -> list[Option]:
    """Every way to split one axis of the broadcast of these inputs."""
    return [option(node, parts, split) for parts, split in broadcast_axes(node, inputs)]


@rule("Where")
def where(node: NodeView) -> list[Option]:
    """As ``broadcasting``; chooses between summands."""
    return broadcasting(node) + partial_option(node, (1, 2))


@rule("Sum")
def variadic_sum(node: NodeView) -> list[Option]:
    """As ``broadcasting``; adds summands."""
    return broadcasting(node) + partial_option(node, range(len(node.shapes)))


@rule("Mul", "Div")
def scaling(node: NodeView) -> list[Option]:
    """As ``broadcasting``; scales summands."""
    if node.version < 7:
        return []
    options = broadcasting(node)
    if node.op_type == "Mul":
        return options + partial_option(node, (0,)) + partial_option(node, (1,))
    return options + (partial_option(node, (0,)) if floating(node.dtypes[0]) else [])


@rule("Add", "Sub")
def adding(node: NodeView) -> list[Option]:
    """As ``broadcasting``; adds summands to summands, and a whole value to summands on the first rank."""
    if node.version < 7:
        return []
    options = broadcasting(node) + partial_option(node, (0, 1))
    for index in (0, 1) if all(summable(dtype) for dtype in node.dtypes) else ():
        # Where summands are broadcast, the other ranks could not pass theirs on as they are.
        if same_shape(shape_of(node, index), shape_like(node)):
            emit = partial(_add_on_first_rank, index, node.op_type == "Sub" and index == 1)
            options.append(option(node, {index: PARTIAL}, PARTIAL, emit, divides_work=False))
    return options


def _add_on_first_rank(index: int, negative: bool, e: Emitter, values: Values) -> list[Value]:
    if e.rank == 0:
        return e.copy(values)
    return e.op("Neg" if negative else "Identity", [values[index]])
