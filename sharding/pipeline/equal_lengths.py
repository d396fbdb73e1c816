"""Where a node wants lengths to be equal that are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.rules.elementwise import ELEMENTWISE

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Meeting:
    """Two different lengths; ``broadcast`` where one of them may be 1 as well."""

    lengths: tuple[int, int]
    broadcast: bool


def meeting_of(node: ir.Node) -> Meeting | None:
    """The first two lengths that a node refuses: one that takes its inputs element by element, a product of
    matrices, or one that joins its inputs."""
    shapes = [shape for value in node.inputs if (shape := _known(value)) is not None]
    if node.domain or len(shapes) != sum(value is not None for value in node.inputs):
        return None
    if node.op_type in ELEMENTWISE:
        return _broadcast(shapes)
    if node.op_type == "MatMul" and all(len(shape) > 1 for shape in shapes):
        a, b = shapes
        return _first([(a[-1], b[-2])], broadcast=False) or _broadcast([a[:-2], b[:-2]])
    if node.op_type == "Concat" and len({len(shape) for shape in shapes}) == 1 and shapes[0]:
        attribute = node.attributes.get("axis")
        axis = (0 if attribute is None else attribute.as_int()) % len(shapes[0])
        lengths = list(zip(*shapes, strict=True))
        return _first([item for place, item in enumerate(lengths) if place != axis], broadcast=False)
    return None


def _known(value: ir.Value | None) -> tuple[int, ...] | None:
    shape = shape_of(value)
    lengths = tuple(length for length in shape or () if isinstance(length, int))
    return lengths if shape is not None and len(lengths) == len(shape) else None


def _broadcast(shapes: Sequence[Sequence[int]]) -> Meeting | None:
    axes = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return _first([[length for length in lengths if length != 1] for lengths in axes], broadcast=True)


def _first(axes: Iterable[Iterable[int]], *, broadcast: bool) -> Meeting | None:
    for lengths in axes:
        different = list(dict.fromkeys(lengths))
        if len(different) > 1:
            return Meeting((different[0], different[1]), broadcast)
    return None
