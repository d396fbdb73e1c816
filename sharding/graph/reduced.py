"""Values that a reduction over the last axis left: of length 1 there, unless something is empty.

Where another axis has the length 0, ONNX Runtime's reductions over the last axis alone return at once, with a
value of the input's shape. In a whole model that does no harm: whatever such a value is broadcast to is as
long. In a part of it one of the two may be cut and the other not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.rules.base import NodeView, Option
from sharding.rules.common import axes_parameter
from sharding.rules.elementwise import EACH
from sharding.slices.placement import REPLICATED, Placement, Split

if TYPE_CHECKING:
    import onnx_ir as ir


class Reduced:
    """The values found so far that may be longer than they should be, as one rank holds them."""

    def __init__(self) -> None:
        self._found: set[ir.Value] = set()

    def note(self, node: ir.Node, view: NodeView, option: Option) -> bool:
        """Takes in a node that comes after those of its inputs. False where what it gives must be made short:
        it reduces a part, which is shorter than what the others have."""
        if _over_last_axis(view):
            if _is_cut(option.inputs[0], len(view.shapes[0] or ())):
                return False
            self._found.add(node.outputs[0])
        elif not self._found.isdisjoint(node.inputs) and _is_each(view) and _ends_in_one(node.outputs[0]):
            self._found.add(node.outputs[0])
        return True

    def too_long(self, node: ir.Node, view: NodeView, option: Option) -> Iterator[int]:
        """The inputs of a node that must be made short: they are whole, and broadcast to what is cut."""
        shape = view.output_shapes[0] if _is_each(view) else None
        if shape and _is_cut(option.outputs[0], len(shape)):
            for index, value in enumerate(node.inputs):
                if value in self._found and option.inputs[index] == REPLICATED:
                    yield index


def _over_last_axis(view: NodeView) -> bool:
    """Whether a node reduces over the last axis alone and keeps it."""
    shape = view.shapes[0] if view.shapes else None
    if view.domain or not view.op_type.startswith("Reduce") or shape is None or len(shape) < 2:
        return False
    return axes_parameter(view, 1) == [len(shape) - 1] and bool(view.attributes.get("keepdims", 1))


def _is_each(view: NodeView) -> bool:
    return not view.domain and view.op_type in EACH


def _ends_in_one(value: ir.Value) -> bool:
    return (shape_of(value) or ())[-1:] == (1,)


def _is_cut(placement: Placement, rank: int) -> bool:
    """Whether the last of this many axes is."""
    return isinstance(placement, Split) and placement.axis == rank - 1
