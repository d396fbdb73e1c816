"""What operators do with lengths and row numbers of a batch, where the rules of placements cannot say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sharding.common.arrays import Array
from sharding.onnx_files.attributes import integer
from sharding.rules.base import Dim, NodeView
from sharding.slices.placement import REPLICATED, Placement, Split


@dataclass(frozen=True, eq=False)
class Length:
    """A constant of the whole's run and the part's, which differ: arithmetic with the batch's length."""

    whole: Array
    part: Array


@dataclass(frozen=True)
class RowNumber:
    """Numbers (along ``axis`` the rows') that in the part's run are smaller by the number of the part's first
    row times ``stride``: what was counted from the whole's first row is counted from the part's."""

    axis: int
    stride: int = 1


@dataclass(frozen=True)
class RowIndices:
    """Vectors along the last axis, of which the first element is a `RowNumber` along ``axis``."""

    axis: int


Relation = Placement | Length | RowNumber | RowIndices


@dataclass(frozen=True)
class Rows:
    """A node, what is known of its inputs, and its first output's shapes in both runs."""

    node: NodeView
    inputs: Sequence[Relation]
    whole: Sequence[Dim] | None
    part: Sequence[Dim] | None
    ways: int
    rows: int

    def cut_axis(self) -> int | None:
        """The only axis on which the runs' outputs differ, where it is the batch; else None."""
        if self.whole is None or self.part is None or len(self.whole) != len(self.part):
            return None
        axes = [axis for axis, (a, b) in enumerate(zip(self.whole, self.part, strict=True)) if a != b]
        if len(axes) != 1:
            return None
        a, b = self.whole[axes[0]], self.part[axes[0]]
        return axes[0] if isinstance(a, int) and isinstance(b, int) and a == b * self.ways else None


RowRule = Callable[[Rows], Relation | None]
ROW_RULES: dict[str, RowRule] = {}


def _row_rule(*op_types: str) -> Callable[[RowRule], RowRule]:
    def register(function: RowRule) -> RowRule:
        for op_type in op_types:
            ROW_RULES[op_type] = function
        return function

    return register


@_row_rule("ConstantOfShape")
def _filled(rows: Rows) -> Relation | None:
    """All elements are equal, so any rows are the part's."""
    axis = rows.cut_axis()
    return Split(axis) if axis is not None and isinstance(rows.inputs[0], Length) else None


@_row_rule("Expand")
def _expanded(rows: Rows) -> Relation | None:
    """What is repeated along the batch, or has it already, at the length that the run's shape says."""
    data, shape = rows.inputs[0], rows.node.shapes[0]
    axis = rows.cut_axis()
    if shape is None or rows.whole is None:
        return None
    moved = len(rows.whole) - len(shape)
    if axis is not None and data == REPLICATED:
        own = axis - moved
        return Split(axis) if own < 0 or shape[own] == 1 else None
    if axis is not None and isinstance(data, Split):
        target = _constant(rows, 1, part=False)
        if data != Split(axis - moved) or target is None:
            return None
        place = axis - len(rows.whole)
        # A fixed number would repeat a part of one row.
        fits = target.size < -place or int(target[place]) in (1, rows.whole[axis])
        return Split(axis) if fits else None
    if isinstance(data, RowNumber) and axis == data.axis + moved:
        return replace(data, axis=axis)
    return None


@_row_rule("Range")
def _counted(rows: Rows) -> Relation | None:
    """0, 1, 2, ... to the batch's length."""
    start, limit, step = rows.node.constants[0], rows.inputs[1], rows.node.constants[2]
    if start is None or step is None or int(start) != 0 or int(step) != 1 or not isinstance(limit, Length):
        return None
    counts = (int(limit.whole), int(limit.part)) == (rows.ways * rows.rows, rows.rows)
    return RowNumber(0) if counts and rows.inputs[0] == rows.inputs[2] == REPLICATED else None


@_row_rule("Slice")
def _sliced(rows: Rows) -> Relation | None:
    """A value without a batch axis gives the same elements, although the bounds say the batch's length: they
    are cut to the axis."""
    shape = rows.node.shapes[0]
    if shape is None or rows.inputs[0] != REPLICATED or not all(isinstance(length, int) for length in shape):
        return None
    bounds = [
        [_constant(rows, index, part=part) for index in range(1, len(rows.inputs))] for part in (False, True)
    ]
    if any(value is None for run in bounds for value in run):
        return None
    elements = [_selected([int(length) for length in shape], run) for run in bounds]  # type: ignore[arg-type]
    return REPLICATED if elements[0] == elements[1] else None


def _selected(shape: list[int], bounds: list[Array]) -> list[range]:
    starts, ends = (item.reshape(-1).tolist() for item in bounds[:2])
    axes = bounds[2].reshape(-1).tolist() if len(bounds) > 2 else list(range(len(starts)))
    strides = bounds[3].reshape(-1).tolist() if len(bounds) > 3 else [1] * len(starts)
    selected = [range(length) for length in shape]
    for start, end, axis, stride in zip(starts, ends, axes, strides, strict=True):
        selected[axis] = selected[axis][start:end:stride]
    return selected


def _constant(rows: Rows, index: int, *, part: bool) -> Array | None:
    """An input that is a constant, as this run has it."""
    found = rows.inputs[index]
    if isinstance(found, Length):
        return found.part if part else found.whole
    return rows.node.constants[index]


@_row_rule("Cast", "Identity")
def _same(rows: Rows) -> Relation | None:
    return rows.inputs[0] if isinstance(rows.inputs[0], RowNumber) else None


@_row_rule("Unsqueeze", "Squeeze")
def _with_axes(rows: Rows) -> Relation | None:
    """Axes of length 1 come and go."""
    data, axis = rows.inputs[0], rows.cut_axis()
    return replace(data, axis=axis) if isinstance(data, RowNumber) and axis is not None else None


@_row_rule("Reshape")
def _reshaped(rows: Rows) -> Relation | None:
    """The same, where there is no other axis."""
    data, shape, axis = rows.inputs[0], rows.node.shapes[0], rows.cut_axis()
    if not isinstance(data, RowNumber) or shape is None or rows.whole is None or axis is None:
        return None
    alone = all(n == 1 for i, n in enumerate(shape) if i != data.axis)
    others = all(n == 1 for i, n in enumerate(rows.whole) if i != axis)
    return replace(data, axis=axis) if alone and others else None


@_row_rule("Add", "Sub")
def _moved(rows: Rows) -> Relation | None:
    """What is added to (taken from) row numbers is the same for both runs, or each run's own."""
    data, other = rows.inputs
    if not isinstance(data, RowNumber) and rows.node.op_type == "Add":
        data, other = other, data
    axis = rows.cut_axis()
    if not isinstance(data, RowNumber) or axis is None or rows.whole is None:
        return None
    number = rows.inputs.index(data)
    if len(rows.node.shapes[number] or ()) + axis - len(rows.whole) != data.axis:
        return None
    return replace(data, axis=axis) if other == REPLICATED or _lies_on(rows, 1 - number, axis) else None


def _lies_on(rows: Rows, index: int, axis: int) -> bool:
    """Whether an input, broadcast against the output, has its rows on this axis."""
    placed, shape = rows.inputs[index], rows.node.shapes[index]
    own = axis - len(rows.whole or ()) + len(shape or ())
    return shape is not None and own >= 0 and placed == Split(own)


@_row_rule("Mul")
def _scaled(rows: Rows) -> Relation | None:
    """Row numbers times a number: a stride, as in offsets into flattened rows."""
    for data, index in ((rows.inputs[0], 1), (rows.inputs[1], 0)):
        factor, axis = rows.node.constants[index], rows.cut_axis()
        if not isinstance(data, RowNumber) or axis is None or rows.inputs[index] != REPLICATED:
            continue
        if factor is not None and factor.size == 1 and factor.dtype.kind in "iu" and int(factor.item()) > 0:
            return RowNumber(axis, data.stride * int(factor.item()))
    return None


@_row_rule("Concat")
def _row_indices(rows: Rows) -> Relation | None:
    """Indices for GatherND: first the row's number, then what is the same for both or each run's own."""
    first, axis, whole = rows.inputs[0], rows.cut_axis(), rows.whole
    if not isinstance(first, RowNumber) or whole is None or axis is None or axis == len(whole) - 1:
        return None
    last = integer(rows.node.attributes, "axis", 0) % len(whole) == len(whole) - 1
    one = (rows.node.shapes[0] or [0])[-1] == 1
    if not last or not one or first != RowNumber(axis):
        return None
    return RowIndices(axis) if all(other == Split(axis) for other in rows.inputs[1:]) else None


@_row_rule("GatherND")
def _gathered_rows(rows: Rows) -> Relation | None:
    """Elements of the part's own rows."""
    data, indices = rows.inputs
    if rows.node.attributes.get("batch_dims", 0) or data != Split(0) or not isinstance(indices, RowIndices):
        return None
    return Split(indices.axis) if rows.cut_axis() == indices.axis else None


@_row_rule("Gather")
def _gathered(rows: Rows) -> Relation | None:
    """The same with offsets into an axis that holds the rows one after the other."""
    data, indices = rows.inputs
    shape = rows.node.shapes[0]
    if not isinstance(indices, RowNumber) or data != Split(0) or not shape:
        return None
    if integer(rows.node.attributes, "axis", 0) != 0 or shape[0] != indices.stride * rows.ways * rows.rows:
        return None
    return Split(indices.axis) if rows.cut_axis() == indices.axis else None
