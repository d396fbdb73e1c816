"""What a node does where one axis of its inputs is taken apart into two: the same, its axes renumbered.

A `Form` says which axis is two axes merged, in row-major order. For each operator that keeps such an axis as
it is, `lift` says how the node is written for the axes apart; of all others, and where the merged axis itself
is summed, cut or joined, it knows nothing.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sharding.common.arrays import Array
from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import Dim
from sharding.rules.einsum import equation_terms
from sharding.rules.elementwise import ELEMENTWISE, UNARY
from sharding.rules.products import length_of, product

EINSUM_OPSET = 12
"""The first that has Einsum."""


@dataclass(frozen=True)
class Form:
    """Axis ``axis`` of a value is ``outer`` times ``inner`` elements; at least one of both is known."""

    axis: int
    outer: Dim
    inner: Dim

    @property
    def merged(self) -> Dim:
        """The length of the one axis."""
        both = product((self.outer, self.inner))
        return None if both is None else length_of(both)

    def parted(self, shape: Sequence[Dim]) -> list[Dim]:
        """A shape with both lengths in place of the merged one."""
        return [*shape[: self.axis], self.outer, self.inner, *shape[self.axis + 1 :]]

    def agrees(self, other: Form) -> bool:
        """Whether two axes of one length are surely merged in the same way."""
        inner = isinstance(self.inner, int) and self.inner == other.inner
        return inner or (isinstance(self.outer, int) and self.outer == other.outer)

    def better(self, other: Form) -> Form:
        """The one that knows both lengths, where only one does."""
        known = self.outer is not None and self.inner is not None
        return self if known else replace(other, axis=self.axis)


@dataclass(frozen=True)
class View:
    """A node as this module sees it."""

    op_type: str
    version: int
    attributes: Mapping[str, object]
    shapes: Sequence[Sequence[Dim] | None]
    """One per input; None where absent or of unknown rank."""
    constants: Sequence[Array | None]
    forms: Sequence[Form | None]
    outputs: int

    def rank(self, index: int) -> int | None:
        shape = self.shapes[index] if index < len(self.shapes) else None
        return None if shape is None else len(shape)


@dataclass(frozen=True)
class Lift:
    """How a node is written for the axes apart."""

    form: Form
    """Of its outputs."""
    apart: Mapping[int, int]
    """Input -> which of its axes is the merged one; inputs that lack it are not named."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """Those that change."""
    axes: Mapping[int, list[int]] = field(default_factory=dict)
    """Inputs that become these constants."""
    ones: int | None = None
    """Of Expand: the entry of the shape that becomes two ones."""
    strict: bool = False
    """Whether inputs must have all of the merged axis: they are not broadcast."""
    op_type: str = ""
    """The operator, where that is another."""


def lift(view: View) -> Lift | None:
    """How the node is written, where some of its inputs have a `Form`; None where it cannot be said."""
    operator = _OPERATORS.get(view.op_type)
    if operator is None or not any(view.forms):
        return None
    return operator(view)


def _first(view: View) -> Form | None:
    return view.forms[0] if view.forms else None


def _unary(view: View) -> Lift | None:
    form = _first(view)
    return Lift(form, {0: form.axis}) if form and view.outputs == 1 else None


def _broadcast(view: View, ranks: Sequence[int | None] | None = None, spare: int = 0) -> Lift | None:
    """Axes are aligned from the end; the last ``spare`` ones are not the merged one."""
    found: Form | None = None
    behind = -1
    ranks = ranks or [view.rank(index) for index in range(len(view.forms))]
    for form, rank in zip(view.forms, ranks, strict=True):
        if rank is None:
            return None
        if form is None:
            continue
        if found is not None and (rank - form.axis != behind or not found.agrees(form)):
            return None
        behind = rank - form.axis
        found = form if found is None else found.better(form)
    if found is None or behind <= spare:
        return None
    apart = {index: rank - behind for index, rank in enumerate(ranks) if rank is not None and rank >= behind}
    most = max(rank for rank in ranks if rank is not None)
    return Lift(replace(found, axis=most - behind), apart)


def _matmul(view: View) -> Lift | None:
    """The merged axis is one of the batch, or that of the rows: where all queries of one key/value head are
    rows of one product, [batch, length * heads, size]. As an Einsum it stays one."""
    found = _broadcast(view, spare=2)
    form, shapes = _first(view), view.shapes
    if found is not None or form is None or view.forms[1] is not None or view.version < EINSUM_OPSET:
        return found
    rows, columns = shapes
    if rows is None or columns is None or len(rows) != 3 or len(columns) != 3 or form.axis != 1:
        return None
    if columns[0] is None or rows[0] != columns[0]:
        return None
    return Lift(form, {0: 1}, {"equation": "blhi,bio->blho"}, op_type="Einsum")


def _einsum(view: View) -> Lift | None:
    """The merged axis has one letter, in each operand at most once, and is not summed."""
    ranks = [view.rank(index) for index in range(len(view.forms))]
    terms = equation_terms(view.attributes.get("equation", ""), ranks)
    if terms is None:
        return None
    *operands, result = terms
    found: Form | None = None
    letter = ""
    for form, term in zip(view.forms, operands, strict=True):
        if form is None:
            continue
        if found is not None and (term[form.axis] != letter or not found.agrees(form)):
            return None
        letter, found = term[form.axis], form if found is None else found.better(form)
    if found is None or result.count(letter) != 1 or any(term.count(letter) > 1 for term in operands):
        return None
    spare = next((c for c in string.ascii_letters if not any(c in term for term in terms)), None)
    if spare is None:
        return None
    written = [term.replace(letter, letter + spare) for term in terms]
    apart = {index: term.index(letter) for index, term in enumerate(operands) if letter in term}
    equation = ",".join(written[:-1]) + "->" + written[-1]
    return Lift(replace(found, axis=result.index(letter)), apart, {"equation": equation}, strict=True)


def _gather(view: View) -> Lift | None:
    """Along another axis."""
    form, indices = _first(view), view.rank(1)
    axis = None if form is None else _axis(view, form, 0)
    if form is None or axis is None or indices is None or view.forms[1] is not None:
        return None
    moved = replace(form, axis=form.axis + (indices - 1 if form.axis > axis else 0))
    return Lift(moved, {0: form.axis}, {"axis": _past(axis, form)})


def _past(axis: int, form: Form) -> int:
    return axis + (axis > form.axis)


def _axis(view: View, form: Form, default: int) -> int | None:
    """The axis that an attribute names, counted from the front; None for the merged one."""
    rank = view.rank(0)
    axis = integer(view.attributes, "axis", default)
    if rank is None or not -rank <= axis < rank or axis % rank == form.axis:
        return None
    return axis % rank


def _along(default: int) -> Callable[[View], Lift | None]:
    """One input, another axis."""

    def along(view: View) -> Lift | None:
        form = _first(view)
        axis = None if form is None else _axis(view, form, default)
        if form is None or axis is None:
            return None
        return Lift(form, {0: form.axis}, {"axis": _past(axis, form)})

    return along


def _softmax(view: View) -> Lift | None:
    """Before opset 13 all axes from ``axis`` on are one: that must be the last one."""
    found = _along(-1 if view.version >= 13 else 1)(view)
    rank = view.rank(0)
    if found is None or (view.version < 13 and found.attributes["axis"] != rank):
        return None
    return found


def _normalization(view: View) -> Lift | None:
    """Over the axes from ``axis`` on."""
    found = _along(-1)(view)
    behind = found is not None and integer(found.attributes, "axis") > found.form.axis
    return found if behind and view.outputs == 1 else None


def _transpose(view: View) -> Lift | None:
    form, rank = _first(view), view.rank(0)
    if form is None or rank is None:
        return None
    perm = integers(view.attributes, "perm") or list(range(rank - 1, -1, -1))
    if sorted(perm) != list(range(rank)):
        return None
    apart: list[int] = []
    for axis in perm:
        apart += [axis, axis + 1] if axis == form.axis else [_past(axis, form)]
    return Lift(replace(form, axis=perm.index(form.axis)), {0: form.axis}, {"perm": apart})


def _named_axes(view: View, rank: int) -> list[int] | None:
    """The axes of an attribute or of a constant second input, counted from the front."""
    given = view.attributes.get("axes")
    if given is None and len(view.constants) > 1:
        given = view.constants[1]
    if given is None:
        return None
    axes = [int(axis) for axis in np.asarray(given).reshape(-1)]
    return [axis % rank for axis in axes] if axes and all(-rank <= axis < rank for axis in axes) else None


def _with_axes(view: View, lifted: Lift, axes: list[int]) -> Lift:
    if "axes" in view.attributes:
        return replace(lifted, attributes={**lifted.attributes, "axes": axes})
    return replace(lifted, axes={1: axes})


def _without_axes(view: View, *, dropped: bool) -> Lift | None:
    """Of an operator on axes that it names, but the merged one; ``dropped``: they are gone then."""
    form, rank = _first(view), view.rank(0)
    axes = None if rank is None else _named_axes(view, rank)
    if form is None or axes is None or form.axis in axes:
        return None
    before = sum(axis < form.axis for axis in axes) if dropped else 0
    lifted = Lift(replace(form, axis=form.axis - before), {0: form.axis})
    return _with_axes(view, lifted, [_past(axis, form) for axis in axes])


def _unsqueeze(view: View) -> Lift | None:
    form, rank = _first(view), view.rank(0)
    given = view.attributes.get("axes", view.constants[1] if len(view.constants) > 1 else None)
    if form is None or rank is None or given is None:
        return None
    axes = _named_axes(view, rank + np.asarray(given).size)
    if axes is None:
        return None
    kept = [axis for axis in range(rank + len(axes)) if axis not in axes]
    moved = replace(form, axis=kept[form.axis])
    return _with_axes(view, Lift(moved, {0: form.axis}), [_past(axis, moved) for axis in axes])


def _concat(view: View) -> Lift | None:
    ranks = [view.rank(index) for index in range(len(view.forms))]
    found = _broadcast(view) if len(set(ranks)) == 1 else None
    rank = ranks[0]
    if found is None or rank is None:
        return None
    axis = integer(view.attributes, "axis", 1) % rank
    if axis == found.form.axis:
        return None
    return replace(found, attributes={"axis": _past(axis, found.form)}, strict=True)


def _slice(view: View) -> Lift | None:
    """With axes that are named, and not the merged one."""
    form, rank = _first(view), view.rank(0)
    if form is None or rank is None or view.version < 10 or len(view.constants) < 4:
        return None
    axes = None if view.constants[3] is None else [int(a) % rank for a in view.constants[3].reshape(-1)]
    if axes is None or form.axis in axes:
        return None
    return Lift(form, {0: form.axis}, {}, {3: [_past(axis, form) for axis in axes]})


def _gather_elements(view: View) -> Lift | None:
    """Data and indices have the same axes."""
    form = _first(view)
    axis = None if form is None else _axis(view, form, 0)
    if form is None or axis is None or view.rank(0) != view.rank(1):
        return None
    other = view.forms[1]
    if other is not None and (other.axis != form.axis or not form.agrees(other)):
        return None
    return Lift(form, {0: form.axis, 1: form.axis}, {"axis": _past(axis, form)}, strict=True)


def _expand(view: View) -> Lift | None:
    """The shape's entry for the merged axis is its length, or 1: two ones leave both axes as they are."""
    form, rank = _first(view), view.rank(0)
    shape = view.shapes[1]
    entries = shape[0] if shape is not None and len(shape) == 1 else None
    if form is None or rank is None or not isinstance(entries, int):
        return None
    place = form.axis - rank + entries
    moved = replace(form, axis=max(rank, entries) - rank + form.axis)
    return Lift(moved, {0: form.axis}, ones=place if place >= 0 else None)


_OPERATORS: dict[str, Callable[[View], Lift | None]] = {
    **dict.fromkeys((*UNARY, "Identity", "Neg", "Cast", "Clip", "Dropout"), _unary),
    **dict.fromkeys(ELEMENTWISE, lambda view: _broadcast(view) if view.version >= 7 else None),
    "MatMul": _matmul,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _normalization
    ),
    "LpNormalization": _along(-1),
    "Split": _along(0),
    "Transpose": _transpose,
    **dict.fromkeys(
        ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
        lambda view: _without_axes(view, dropped=not view.attributes.get("keepdims", 1)),
    ),
    "Squeeze": lambda view: _without_axes(view, dropped=True),
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Slice": _slice,
    "GatherElements": _gather_elements,
    "Expand": _expand,
    "Einsum": _einsum,
    "Gather": _gather,
}
