"""Options under which one rank might refuse an input that the others accept.

ONNX Runtime refuses an index beyond its axis when the model runs. All ranks must then refuse together: a rank
that goes on alone waits for the others for ever. Where every rank has all indices, all refuse. Where indices
are cut, each rank sees only its own, so they must be known to be right, or be equal on all ranks, or stay
whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.values import plain_attribute, shape_of
from sharding.onnx_files.attributes import integer
from sharding.rewrite.built_weights import MOVES
from sharding.rules.base import Dim, NodeView, Option
from sharding.rules.products import product
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split

if TYPE_CHECKING:
    import onnx_ir as ir


INDICES: Mapping[tuple[str, str], Sequence[int]] = {
    ("", "Gather"): (1,),
    ("", "GatherElements"): (1,),
    ("", "GatherND"): (1,),
    (MICROSOFT, "GatherND"): (1,),
    ("", "Scatter"): (1,),
    ("", "ScatterElements"): (1,),
    ("", "ScatterND"): (1,),
    ("", "TensorScatter"): (2,),
    ("", "ReverseSequence"): (1,),
    ("", "RoiAlign"): (2,),
    ("", "MaxRoiPool"): (1,),
    (MICROSOFT, "CropAndResize"): (2,),
    ("", "RotaryEmbedding"): (3,),
    (MICROSOFT, "RotaryEmbedding"): (1,),
    (MICROSOFT, "GroupQueryAttention"): (5, 6, 9),
    (MICROSOFT, "SparseAttention"): (5, 6, 7, 8),
    (MICROSOFT, "EmbedLayerNormalization"): (0, 1, 8),
}
"""The inputs whose elements ONNX Runtime checks when an operator runs: indices, positions, lengths."""
_ALONG_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
"""Those that index the axis which an attribute names."""
_IN_RANGE = {"ArgMax", "ArgMin", "TopK", "NonZero"}
_MOVES = MOVES | {"Cast", "Expand", "Gather", "GatherElements", "Tile"}
"""Operators whose output has no elements but those of their first input, or of all, if they are a Concat."""
_DEEP = 32
"""Nodes that are followed back."""

Interval = tuple[int, int]
_RIGHT: Interval = (0, 0)
"""The interval of indices that are right for an axis of any length."""


def may_refuse(node: NodeView, option: Option, inputs: Sequence[ir.Value | None]) -> bool:
    """Whether a rank may refuse its part of the indices while the others find nothing wrong with theirs."""
    for index in INDICES.get((node.domain, node.op_type), ()):
        value = inputs[index] if index < len(inputs) else None
        where = option.inputs[index] if value is not None else None
        if value is None or not isinstance(where, Split):
            continue
        if not _is_repeated(value, where.axis) and not _is_within(node, _interval(value)):
            return True
    return False


def _is_within(node: NodeView, found: Interval | None) -> bool:
    """Whether indices are right for the axis; negative ones count from its end."""
    if found is None or found == _RIGHT:
        return found is not None
    data = node.shapes[0]
    if node.op_type not in _ALONG_AXIS or not data:
        return False
    axis = integer(node.attributes, "axis", 0)
    length = data[axis] if -len(data) <= axis < len(data) else None
    return isinstance(length, int) and -length <= found[0] and found[1] < length


def _interval(value: ir.Value | None, deep: int = _DEEP) -> Interval | None:
    """The least and the greatest that whole numbers can be; None where nothing is known.

    Constants are taken to be right: what is wrong with one is wrong in every run.
    """
    if value is None or value.const_value is not None:
        return _RIGHT
    node = value.producer()
    if node is None or node.domain or not deep or (value.dtype is not None and not value.dtype.is_integer()):
        return None
    if node.op_type in _IN_RANGE:
        return _RIGHT if value is node.outputs[-1] else None  # TopK has values too
    if node.op_type == "Clip":
        least, most = (_number(node, index, name) for index, name in ((1, "min"), (2, "max")))
        return None if least is None or most is None else (least, most)
    if node.op_type == "Mod" and not _attribute(node, "fmod", 0):
        divisor = _number(node, 1, "")
        return (0, divisor - 1) if divisor is not None and divisor > 0 else None
    if node.op_type in _MOVES:
        return _both(node.inputs if node.op_type == "Concat" else node.inputs[:1], deep)
    return _both(node.inputs[1:], deep) if node.op_type == "Where" else None


def _both(values: Sequence[ir.Value | None], deep: int) -> Interval | None:
    found = [_interval(value, deep - 1) for value in values]
    known = [item for item in found if item is not None]
    if len(known) < len(found) or not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _number(node: ir.Node, index: int, name: str) -> int | None:
    """A whole number that a node is given as an input, or as an attribute."""
    value = node.inputs[index] if index < len(node.inputs) else None
    array = None if value is None else small_constant(value)
    if array is not None and array.size == 1:
        return int(array.reshape(-1)[0])
    given = {name: _attribute(node, name, None)}
    return None if given[name] is None else integer(given, name)


def _attribute(node: ir.Node, name: str, default: object) -> object:
    item = node.attributes.get(name)
    return default if item is None or item.is_ref() else plain_attribute(item)


def _is_repeated(value: ir.Value | None, axis: int, deep: int = _DEEP) -> bool:
    """Whether all places along an axis hold the same elements: parts of it then hold the same ones too."""
    node, shape = (None, None) if value is None else (value.producer(), shape_of(value))
    if node is None or node.domain or not deep or shape is None or not node.inputs:
        return False
    source = node.inputs[0]
    before = shape_of(source)
    if before is None:
        return False
    if node.op_type in {"Cast", "Identity"}:
        return _is_repeated(source, axis, deep - 1)
    if node.op_type == "Expand":
        inner = axis - (len(shape) - len(before))
        return inner < 0 or (before[inner] == 1 != shape[axis]) or _is_repeated(source, inner, deep - 1)
    if node.op_type == "Transpose":
        order = _attribute(node, "perm", [*range(len(shape))][::-1])
        return isinstance(order, list) and _is_repeated(source, order[axis], deep - 1)
    if node.op_type in {"Reshape", "Squeeze", "Unsqueeze"}:
        return any(
            _is_repeated(source, inner, deep - 1)
            for inner in range(len(before))
            if _lies_in(shape, axis, before, inner)
        )
    return False


def _lies_in(shape: Sequence[Dim], axis: int, before: Sequence[Dim], inner: int) -> bool:
    """Whether an axis of a reshaped value is a part of one axis that it had before."""
    starts, ends = product(before[:inner]), product(before[: inner + 1])
    if starts is None or ends is None:
        return False
    return any(product(shape[:first]) == starts for first in range(axis + 1)) and any(
        product(shape[:last]) == ends for last in range(axis + 1, len(shape) + 1)
    )
