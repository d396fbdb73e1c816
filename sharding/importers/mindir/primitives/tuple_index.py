"""The helpers by which MindSpore takes and sets elements of tensors of open lengths, ``x[:, 0] = v``: bounds,
places along axes, and the shapes in which index tensors meet.

A file says of each entry of an index what it is; a tensor stands for integers and lists too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.indexing import END, REST
from sharding.importers.mindir.primitives.operands import INT64, Builder, known_rank

NOTHING, NONE, ELLIPSIS, SLICE, TENSOR = 0, 7, 9, 15, 17
"""Kinds of entries by their TypeId; `NOTHING` fills the list up."""
_MOST = 8
"""Entries of an index."""


def _kinds(node: Node) -> list[int]:
    found = node.attributes.get("tuple_index_types", ())
    entries = found if isinstance(found, tuple) else (None,)
    numbers = [item for item in entries if isinstance(item, int)]
    if len(numbers) != len(entries):
        raise RefusedError("it does not say what the entries of its index are")
    return [item for item in numbers if item != NOTHING]


def _setting(node: Node, name: str) -> int:
    return int(Builder.number(node.attributes.get(name, 0), name))


def _own_axis(node: Node, rank: int | None, kinds: Sequence[int], new_axes: int) -> int:
    """The axis that an entry stands for; counted from the last one where an ellipsis comes before it and the
    number of axes is open. ``new_axes``: bits of the entries that have become axes already."""
    place = _setting(node, "tuple_index_axis")
    before = sum(new_axes >> bit & 1 for bit in range(place))
    if ELLIPSIS not in kinds or place < kinds.index(ELLIPSIS):
        return place - before
    if rank is None:
        return place - len(kinds) + (new_axes.bit_count() - before)
    return rank + new_axes.bit_count() - len(kinds) + place - before


def _length(b: Builder, node: Node, x: Value, kinds: Sequence[int]) -> int | Value:
    axis = _own_axis(node, x.rank, kinds, _setting(node, "expand_dims_mask"))
    return b.dim(x, b.axis(axis, x))


@primitive("NormalizeDimIndex")
def normalize_dim(b: Builder, node: Node, x: Value) -> Operand:
    """Where a new axis goes."""
    kinds, count = _kinds(node), _setting(node, "expand_dims_cnt")
    if x.rank is not None:
        return _own_axis(node, x.rank + count, kinds, 0)
    axis = _own_axis(node, None, kinds, 0)
    if axis >= 0 or count == 1:
        return axis
    return b.op("Add", [b.op("Size", [b.op("Shape", [x])]), axis + count])


@primitive("NormalizeSlice", declared=False)
def normalize_slice(
    b: Builder, node: Node, x: Value, start: Operand, stop: Operand, step: Operand
) -> Operand:
    """The bounds of a slice; those that were left out are beyond any length."""
    open_start, open_stop, open_step = b.integers(node.attributes.get("init_by_none"), "init_by_none", 3)
    by: Operand = 1 if open_step else step
    if not (open_start or open_stop):
        return start, stop, by
    back = b.integer(by, "the step of a slice without a bound") < 0
    first = -1 if back else 0
    last = -END if back else END
    return first if open_start else start, last if open_stop else stop, by


@primitive("SliceToIndices", declared=False)
def slice_to_indices(
    b: Builder, node: Node, x: Value, start: Operand, stop: Operand, step: Operand
) -> Operand:
    """The places of a slice, the shape of what is set there, the bounds, and whether there is no place: then
    nothing is set, which needs no way of its own."""
    open_start, open_stop, open_step = b.integers(node.attributes.get("init_by_none"), "init_by_none", 3)
    kinds = _kinds(node)
    length = _length(b, node, x, kinds)
    by: Operand = 1 if open_step else step
    back = (open_start or open_stop) and b.integer(by, "the step of a slice without a bound") < 0
    known = b.known_ints(by)
    turned = known is not None and known[0] < 0
    first, last = (_bound(b, item, length, turned=turned) for item in (start, stop))
    if open_start:
        first = _minus_one(b, length) if back else 0
    if open_stop:
        last = -1 if back else length
    bounds = [b.reshape(b.ints(item), ()) for item in (first, last, by)]
    places = b.op("Range", bounds)
    shape = b.shape_of(x)
    if isinstance(shape, tuple):
        shape = (b.dim(places, 0), *shape[1:])
    else:
        rest = b.op("Slice", [shape, b.ints(1), b.ints(END)])
        shape = b.op("Concat", [b.op("Shape", [places]), rest], {"axis": 0})
        shape.sequence = True
    return (places if kinds else b.unsqueeze(places, [1]), shape, first, last, by, 0)


def _minus_one(b: Builder, length: int | Value) -> int | Value:
    return length - 1 if isinstance(length, int) else b.op("Sub", [length, 1])


def _bound(b: Builder, operand: Operand, length: int | Value, *, turned: bool) -> Operand:
    """A bound of a slice as a place from 0 to the length; of one that goes backwards (``turned``) from -1 to
    the last place, as Python has them."""
    low = -1 if turned else 0
    high = _minus_one(b, length) if turned else length
    found = b.known_ints(operand)
    if found is None:
        value = b.reshape(b.ints(operand), ())
        from_end = b.op("Add", [value, b.value(length)])
        inside = b.op("Where", [b.op("Less", [value, 0]), from_end, value])
        return b.op("Min", [b.op("Max", [inside, low]), b.value(high)])
    place = found[0]
    if isinstance(length, int) and isinstance(high, int):
        return min(max(place + length if place < 0 else place, low), high)
    if place < 0:
        return b.op("Max", [b.op("Add", [length, place]), low])
    return 0 if place == 0 and not turned else b.op("Min", [high, place])


@primitive("NormalizeTupleIndex", declared=False)
def normalize_entry(b: Builder, node: Node, x: Value, index: Operand) -> Operand:
    """An entry of an index as places along its axis."""
    kind, kinds = node.attributes.get("origin_index_type"), _kinds(node)
    if kind == "ellipsis_index":
        place = kinds.index(ELLIPSIS) + _setting(node, "tuple_index_axis")
        if place >= known_rank(x) - (len(kinds) - 1) + kinds.index(ELLIPSIS):
            return b.const([1], np.int64)
        return _all_places(b, b.dim(x, place))
    length = _length(b, node, x, kinds)
    if kind == "none_index":
        return _all_places(b, length)
    if kind == "bool_sequence_index":
        flags = b.integers(index, "its index")
        return b.const([place for place, flag in enumerate(flags) if flag], np.int64)
    if kind == "int_index":
        return b.reshape(_from_front(b, index, length), ())
    if kind == "tensor_index_sequence_index":
        return _from_front(b, index, length)
    raise RefusedError(f"an entry of the kind {kind!r} has no conversion")


def _all_places(b: Builder, length: int | Value) -> Value:
    return b.op("Range", [b.const(0, np.int64), b.value(length), b.const(1, np.int64)])


def _from_front(b: Builder, index: Operand, length: int | Value) -> Value:
    """Places counted from the front."""
    places = b.ints(index)
    known = b.known_ints(index)
    if known is not None and all(place >= 0 for place in known):
        return places
    below = b.op("Less", [places, b.const([0], np.int64)])
    return b.op("Where", [below, b.op("Add", [places, b.value(length)]), places])


Lengths = tuple[Operand, ...]


def _broadcast(b: Builder, one: Lengths, other: Lengths) -> Lengths:
    """The shape in which two tensors meet."""
    if len(one) < len(other):
        one, other = other, one
    front = len(one) - len(other)
    return (*one[:front], *(_met(b, *pair) for pair in zip(one[front:], other, strict=True)))


def _met(b: Builder, one: Operand, other: Operand) -> Operand:
    if one == 1 or (isinstance(other, int) and other != 1):
        return other
    if other == 1 or isinstance(one, int):
        return one
    assert isinstance(one, Value)
    assert isinstance(other, Value)
    return one if one.name == other.name else b.op("Max", [one, other])


def _fancy_place(kinds: Sequence[int], given: int, hidden: int, way: object) -> int:
    """Before which of the slices' axes those of the tensors go: in front of all where slices part them."""
    if way in {"setitem_by_tuple", "setitem_by_tuple_with_tensor"}:
        return given
    spread: list[int] = []
    for item in kinds:
        spread += [SLICE] * hidden if item == ELLIPSIS else [item]
    places = [place for place, item in enumerate(spread) if item == TENSOR]
    parted = any(after - before > 1 for before, after in pairwise(places))
    return places[0] if places and not parted else 0


def _open_info(b: Builder, entries: Sequence[Value], is_tensor: Sequence[bool], place: int) -> Operand:
    """The same, where a tensor has any number of axes."""
    met: Value | None = None
    for entry, tensor in zip(entries, is_tensor, strict=True):
        if tensor:
            met = entry if met is None else b.op("Add", [met, b.cast(entry, met.dtype)])
    assert met is not None
    together = b.op("Shape", [met])
    ones_together = b.op("Expand", [b.const([1], np.int64), b.op("Shape", [together])])

    def among(lengths: Lengths, middle: Value) -> Value:
        parts = [b.ints(lengths[:place]), middle, b.ints(lengths[place:])]
        found = b.op("Concat", parts, {"axis": 0})
        found.sequence = True
        return found

    ordered = [b.dim(entry, 0) for entry, tensor in zip(entries, is_tensor, strict=True) if not tensor]
    ones: Lengths = (1,) * len(ordered)
    each = [
        among((*ones[:number], length, *ones[number + 1 :]), ones_together)
        for number, length in enumerate(ordered)
    ]
    together.sequence = True
    rest = [(1,)] * (_MOST - len(each))
    return place, together, among(ones, together), among(tuple(ordered), together), *each, *rest


@primitive("GetTupleIndexInfo", declared=False)
def tuple_index_info(b: Builder, node: Node, x: Value, position: Operand, *entries: Operand) -> Operand:
    """How the entries of an index meet: where the tensors' axes go, the shape that the tensors have together,
    that shape among the slices' axes, the result's shape, and the shape of each slice's places. The entries
    that an ellipsis stands for come last."""
    kinds, way = _kinds(node), node.attributes.get("tuple_index_info_type", "")
    named = [item for item in kinds if item != ELLIPSIS]
    count = len(named)
    if ELLIPSIS in kinds:
        count = known_rank(x) + _setting(node, "expand_dims_cnt")
    values = [b.value(entry) for entry in entries[:count]]
    is_tensor = [item == TENSOR for item in named] + [False] * (len(values) - len(named))
    shapes: list[Lengths] = []
    for value in values:
        shape = b.shape_of(value)
        if not isinstance(shape, tuple):
            if str(way).startswith(("setitem", "pre_setitem")) or ELLIPSIS in kinds:
                raise RefusedError("the number of axes of each of its entries must be known")
            first = b.integer(position, "the place of the tensors' axes")
            return _open_info(b, values, is_tensor, _fancy_place(kinds, first, 0, way))
        shapes.append(shape)
    together: Lengths = ()
    for lengths_, tensor in zip(shapes, is_tensor, strict=True):
        together = _broadcast(b, together, lengths_) if tensor else together
    if way == "setitem_by_tuple_with_tensor" and len(together) < 2:
        together = (1, *together)
    hidden = count - len(named)
    place = _fancy_place(kinds, b.integer(position, "the place of the tensors' axes"), hidden, way)
    if way == "pre_setitem_by_tuple":
        return (place, together, (), (), *[(1,)] * _MOST)
    lengths = [shape[0] for shape, tensor in zip(shapes, is_tensor, strict=True) if not tensor]
    front = sum(item == SLICE for item in kinds[: kinds.index(ELLIPSIS) if ELLIPSIS in kinds else None])
    own = len(lengths) - hidden
    ordered = [*lengths[:front], *lengths[own:], *lengths[front:own]]
    place = min(place, len(ordered))
    ones: Lengths = (1,) * len(ordered)
    each: list[Operand] = []
    for number_, length in enumerate(ordered):
        line = (*ones[:number_], length, *ones[number_ + 1 :])
        each.append((*line[:place], *[1] * len(together), *line[place:]))
    each = [*each[:front], *each[front + hidden :], *each[front : front + hidden]]
    return (
        place,
        together,
        (*ones[:place], *together, *ones[place:]),
        (*ordered[:place], *together, *ordered[place:]),
        *each,
        *[(1,)] * (_MOST - len(each)),
    )


@primitive("RemoveExpandedDims", declared=False)
def remove_expanded(
    b: Builder, node: Node, x: Value, value: Operand, empty: Operand, together: Operand, position: Operand
) -> Operand:
    """Whether anything is set at all (0: nothing), the shape of what is set without the axes that are new in
    the index, and where the tensors' axes go among the others."""
    if b.integer(empty, "whether its index is empty") > 0:
        return 0, (), b.integer(position, "the place of the tensors' axes")
    kinds, new_axes = _kinds(node), _setting(node, "expand_dims_cnt")
    state = 1 if node.attributes.get("empty_indices_out") else -1
    place = b.integer(position, "the place of the tensors' axes")
    shape = b.shape_of(b.value(value))
    lone_truth = bool(node.attributes.get("has_true")) and not node.attributes.get("has_sequence")
    if NONE not in kinds and not lone_truth:
        return state, shape, max(place, 0)
    rank = known_rank(x)
    hidden = rank + new_axes - sum(item != ELLIPSIS for item in kinds)
    kept: list[bool] = []
    for item in kinds:
        kept += {NONE: [False], SLICE: [True], ELLIPSIS: [True] * hidden}.get(item, [])
    if place != -1:
        if not isinstance(together, tuple):
            raise RefusedError("the number of axes of its tensors must be known")
        place = min(place, len(kept))
        kept[place:place] = [False] if lone_truth else [True] * len(together)
    if ELLIPSIS not in kinds:
        kept += [True] * (rank - (len(kinds) - new_axes))
    if not isinstance(shape, tuple) or len(shape) > len(kept):
        raise RefusedError("what is set has more axes than there are places for it")
    behind = kept[len(kept) - len(shape) :]
    leading = kept.index(True) if True in kept else len(kept)
    return (
        state,
        tuple(length for length, keep in zip(shape, behind, strict=True) if keep),
        max(place - leading, 0),
    )


@primitive("EllipsisToSlice", declared=False)
def ellipsis_to_slice(
    b: Builder, node: Node, x: Value, begin: Operand, end: Operand, strides: Operand
) -> Operand:
    """The bounds of slices and places, with those of the axes that the ellipsis stands for."""
    kinds = _kinds(node)
    if not all(isinstance(item, tuple) for item in (begin, end, strides)):
        raise RefusedError("the number of its bounds must be known")
    starts, stops, steps = list(begin), list(end), list(strides)  # type: ignore[arg-type]
    place = kinds.index(ELLIPSIS) if ELLIPSIS in kinds else len(starts)
    for entry, kind in enumerate(kinds):
        where = entry - (entry > place)
        if kind == TENSOR and starts[where] == -1:
            stops[where] = END  # one place, the last: its end is no bound that is counted from there
    for bounds, mask, sign in ((starts, "begin_mask", -1), (stops, "end_mask", 1)):
        for entry in range(len(kinds)):
            where = entry - (entry > place)
            if _setting(node, mask) >> entry & 1 and entry != place:
                back = b.integer(steps[where], "the step of a slice without a bound") < 0
                bounds[where] = -sign * END if back else sign * END
    if x.rank is None:
        return tuple((*items[:place], REST, *items[place:]) for items in (starts, stops, steps))
    hidden = x.rank - len(starts)
    return tuple(
        (*items[:place], *[fill] * hidden, *items[place:])
        for items, fill in ((starts, 0), (stops, END), (steps, 1))
    )


@primitive("GetSqueezeSliceShape", declared=False)
def squeezed_shape(b: Builder, node: Node, x: Value) -> Operand:
    """The lengths without the axes of which one place was taken."""
    kinds = _kinds(node)
    place = kinds.index(ELLIPSIS) if ELLIPSIS in kinds else len(kinds)
    front = [axis for axis in range(place) if kinds[axis] != TENSOR]
    behind = [axis - len(kinds) for axis in range(place + 1, len(kinds)) if kinds[axis] != TENSOR]
    last = -max(len(kinds) - place - 1, 0)
    lengths = b.shape_of(x)
    if isinstance(lengths, tuple):
        middle = lengths[place : last or None]
        return (*(lengths[axis] for axis in front), *middle, *(lengths[axis] for axis in behind))
    parts = [b.op("Gather", [lengths, b.const(axes, np.int64)]) for axes in (front, behind)]
    parts.insert(1, b.op("Slice", [lengths, b.ints(place), b.ints(last or END)]))
    found = b.op("Concat", parts, {"axis": 0})
    found.sequence = True
    return found


@primitive("RemakeTupleIndex")
def remake_index(b: Builder, node: Node, x: Value, *entries: Operand) -> Value:
    """Index vectors from one tensor for each axis; those that an ellipsis stands for come last."""
    kinds, rank = _kinds(node), known_rank(x)
    place = kinds.index(ELLIPSIS) if ELLIPSIS in kinds else len(kinds)
    own = sum(item != ELLIPSIS for item in kinds)
    found = [b.cast(b.value(item), INT64) for item in entries[:rank]]
    ordered = [*found[:place], *found[own:], *found[place:own]]
    return b.op("Concat", [b.op("Unsqueeze", [item, b.ints((-1,))]) for item in ordered], {"axis": -1})


@primitive("make_range", "range", declared=False)
def make_range(b: Builder, start: Operand, stop: Operand = None, step: Operand = 1) -> Operand:
    """Python's range as a tuple."""
    bounds = (0, start, 1) if stop is None else (start, stop, step)
    known = [b.known_ints(item) for item in bounds]
    if all(item is not None and len(item) == 1 for item in known):
        items = range(*(item[0] for item in known if item is not None))
        b.bounded(len(items))
        return tuple(items)
    found = b.op("Range", [b.reshape(b.ints(item), ()) for item in bounds])
    found.sequence = True
    return found
