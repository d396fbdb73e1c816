"""Open lengths of a node's inputs and outputs that onnx's inference does not find, and names anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sharding.graph.shape_values import broadcast
from sharding.graph.symbols import is_made_up
from sharding.graph.values import integer_of, shape_of
from sharding.rules.base import Dim
from sharding.rules.elementwise import BROADCASTING, EACH
from sharding.rules.products import length_of, product, quotient

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.graph.shape_values import Known

Shape = tuple[Dim, ...]
_DEPTH = 4
"""Nodes in a row between scores and what they become, or between a state and what is joined to it."""


def refine(node: ir.Node) -> set[ir.Value]:
    """Gives a node's outputs the lengths that follow from its inputs; returns those that changed."""
    find = _OPERATORS.get(node.op_type)
    shape = shape_of(node.outputs[0]) if find is not None else None
    if find is None or node.domain or shape is None:
        return set()
    if node.op_type == "Concat" and shape and (changed := _joined(node, shape)):
        return changed
    changed = set()
    if not any(map(_unknown, shape)):
        return set()
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return set()
    shapes = [shape_of(value) for value in node.inputs if value is not None]
    inputs = [own for own in shapes if own is not None]
    found = find(node, inputs, shape) if inputs and len(inputs) == len(shapes) else None
    if found is None or len(found) != len(shape):
        return set()
    for value in node.outputs:
        before = shape_of(value)
        if before is not None and len(before) == len(found):
            pairs = zip(before, found, strict=True)
            changed |= _given_shape(
                value, [new if _unknown(old) and not _unknown(new) else old for old, new in pairs]
            )
    return changed


def _given_shape(value: ir.Value, shape: Sequence[Dim]) -> set[ir.Value]:
    """The value, if it had another shape before."""
    import onnx_ir as ir

    if shape_of(value) == tuple(shape):
        return set()
    value.shape = ir.Shape(shape)
    return {value}


def refine_inputs(node: ir.Node, known: Look) -> set[ir.Value]:
    """Gives a node's first input the length that it must have, or else the node refuses it; returns it where
    that was new. ``known``: the known elements of a value that is a shape."""
    find = _NEEDED.get(node.op_type)
    shape = shape_of(node.inputs[0]) if find is not None and len(node.inputs) > 1 else None
    if find is None or node.domain or not shape or not any(not isinstance(axis, int) for axis in shape):
        return set()
    found = find(node, shape, known)
    value = node.inputs[0]
    return set() if found is None or value is None else _given_shape(value, found)


Look = Callable[["ir.Value | None"], "Known | None"]
Needed = Callable[["ir.Node", Shape, Look], "Shape | None"]


def _product_needs(node: ir.Node, shape: Shape, known: Look) -> Shape | None:
    """The last axis of what is multiplied with a matrix has the length of its rows."""
    right = shape_of(node.inputs[1])
    if right is None or len(right) < 2:
        return None
    rows = right[-2]
    better = isinstance(rows, int) or (_unknown(shape[-1]) and not _unknown(rows))
    return (*shape[:-1], rows) if better and not isinstance(shape[-1], int) else None


def _reshape_needs(node: ir.Node, shape: Shape, known: Look) -> Shape | None:
    """What is made into a known shape has as many elements. Scores to which a mask of its own axes was added
    have these only if the mask made no axis longer: then their shape is that of the scores without it."""
    target = known(node.inputs[1])
    vague = [axis for axis, length in enumerate(shape) if _unknown(length)]
    if target is None or target.ndim != 1 or not vague:
        return None
    if not all(isinstance(item, str) or (isinstance(item, int) and item > 0) for item in target):
        return None  # a 0 and a -1 take what the input has
    elements = product(target.tolist())
    if elements is None:
        return None
    if len(vague) == 1:
        rest = product(length for axis, length in enumerate(shape) if axis != vague[0])
        length = quotient(elements, rest)
        if length is not None:
            return (*shape[: vague[0]], length, *shape[vague[0] + 1 :])
    waiting = [(node.inputs[0], 0)]
    while waiting:
        value, depth = waiting.pop()
        maker = None if value is None else value.producer()
        if maker is None or maker.domain or maker.op_type not in EACH or depth == _DEPTH:
            continue
        for source in maker.inputs:
            own = shape_of(source)
            if own is not None and len(own) == len(shape) and product(own) == elements:
                return own
        waiting += [(source, depth + 1) for source in maker.inputs]
    return None


def _unknown(length: Dim) -> bool:
    return length is None or is_made_up(length)


def _axis(node: ir.Node, rank: int) -> int | None:
    axis = integer_of(node, "axis")
    return axis % rank if -rank <= axis < rank else None


def _elementwise(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """A mask cut at a length, added to what has that length, leaves it as long as it is."""
    rank = len(shape)
    if (
        any(len(own) > rank for own in inputs) or "broadcast" in node.attributes
    ):  # other rules, before opset 7
        return None
    padded = [(1,) * (rank - len(own)) + own for own in inputs]
    return [broadcast(column) for column in zip(*padded, strict=True)]


def _concat(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """Equal open lengths one after the other are a product."""
    first, axis = inputs[0], _axis(node, len(inputs[0]))
    if axis is None or any(len(own) != len(first) or own[axis] != first[axis] for own in inputs):
        return None
    both = None if first[axis] is None else product((len(inputs), first[axis]))
    return [*first[:axis], None if both is None else length_of(both), *first[axis + 1 :]]


def _joined(node: ir.Node, shape: Shape) -> set[ir.Value]:
    """All that is joined has the same length on the other axes. Of two names for it, that of what the model
    computed stays: a state that it is joined to may be empty, and then of any length on these axes."""
    axis = _axis(node, len(shape))
    computed = [
        own
        for value in node.inputs
        if value is not None and not _given(value) and (own := shape_of(value)) and len(own) == len(shape)
    ]
    if axis is None or len(computed) == len(node.inputs):
        return set()
    names = [{own[i] for own in computed if isinstance(own[i], str)} for i in range(len(shape))]
    found = tuple(
        next(iter(names[i])) if i != axis and isinstance(length, str) and len(names[i]) == 1 else length
        for i, length in enumerate(shape)
    )
    return _given_shape(node.outputs[0], found)


def _given(value: ir.Value | None) -> bool:
    """Whether a value is an input of the model, or made of one input alone by a few nodes."""
    for _ in range(_DEPTH):
        node = None if value is None else value.producer()
        if node is None:
            return value is not None and value.is_graph_input()
        others = [item for item in node.inputs if item is not None and not item.is_initializer()]
        if len(others) != 1:
            return False
        value = others[0]
    return False


def _split(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """Equal parts of a product."""
    first, axis = inputs[0], _axis(node, len(inputs[0]))
    if axis is None or len(node.inputs) > 1 or "split" in node.attributes:
        return None
    return [*first[:axis], quotient(product((first[axis],)), (len(node.outputs), ())), *first[axis + 1 :]]


def _conv(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """With a step of one and as much padding as the kernel takes, an axis stays as long as it is."""
    if len(inputs) == 1:
        return None
    data, kernel = inputs[0], inputs[1][2:]
    axes = len(kernel)
    if len(data) != axes + 2 or len(shape) != axes + 2:
        return None
    steps, spread = _numbers(node, "strides", [1] * axes), _numbers(node, "dilations", [1] * axes)
    pads = _numbers(node, "pads", [0] * (2 * axes))
    mode = node.attributes["auto_pad"].value if "auto_pad" in node.attributes else "NOTSET"
    if mode != "NOTSET" or len(steps) != axes or len(spread) != axes or len(pads) != 2 * axes:
        return None
    same = [
        isinstance(size, int) and steps[i] == 1 and pads[i] + pads[i + axes] == spread[i] * (size - 1)
        for i, size in enumerate(kernel)
    ]
    kept = [length if own else None for length, own in zip(data[2:], same, strict=True)]
    return [data[0], shape[1], *kept]


def _numbers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].value) if name in node.attributes else default


_OPERATORS: dict[str, Callable[[ir.Node, list[Shape], Shape], list[Dim] | None]] = {
    **dict.fromkeys((*BROADCASTING, "Add", "Sub", "Mul", "Div", "Sum", "Where"), _elementwise),
    "Concat": _concat,
    "Split": _split,
    "Conv": _conv,
}
_NEEDED: dict[str, Needed] = {"MatMul": _product_needs, "Reshape": _reshape_needs}
DEMANDING = frozenset(_NEEDED)
"""Operators that say what length an axis of their first input must have."""
