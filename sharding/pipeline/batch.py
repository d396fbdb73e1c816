"""Whether a model computes the rows of a batch apart, and on which axes its batch lies.

Data groups and micro-batches run the model as it is, on fewer rows. First it is proved that this gives the
rows of the whole result. The shapes of the model are inferred twice, once for a batch of `WAYS` * `ROWS` rows
(the whole) and once for `ROWS` (the part). All other open lengths are numbers, so shape arithmetic becomes
constants. Then the nodes are followed in order. For each value, the part's run is known to hold

* the same as the whole's (weights, masks without a batch axis),
* its own rows of the whole's: the `Split` of the operator rules, which state just that,
* a length: a constant of the whole's run that is another in the part's,
* row numbers: those of the whole's counted from the part's first row,

or nothing is known, and then no output may depend on it. An option of a rule counts only where a rank would
run exactly what the part's run has: the same node, with the part's constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.fold import small_constant
from sharding.graph.symbols import shown_shape
from sharding.graph.values import shape_of, shown_node
from sharding.pipeline.equal_lengths import Meeting, meeting_of
from sharding.pipeline.rows import ROW_RULES, Length, Relation, Rows
from sharding.reading.lengths import Lengths, lengths_of, with_inputs
from sharding.rules.base import NodeView, Option
from sharding.rules.common import axes_parameter
from sharding.rules.flow import FLOW
from sharding.search.randomness import draws
from sharding.search.reshard import local_shape
from sharding.search.steps import Step, steps
from sharding.slices.batch import BatchAxes, names_only
from sharding.slices.placement import REPLICATED, Placement, Split

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array
    from sharding.reading.read import Source

WAYS = 3
ROWS = 1031
"""Both primes; more rows than a folded constant has elements, so that both runs fold the same nodes."""
MAX_CASES = 24
"""Proofs in one attempt."""


def batch_axes(source: Source) -> BatchAxes | str:
    """The axes of inputs and outputs along which the batch may be cut; else why it may not, as the end of a
    sentence that names the first node in the way."""
    candidates = _candidates(source)
    if not candidates:
        first = next(iter(source.model.graph.inputs), None)
        if first is None:
            return "the model has no inputs."
        shape = list(shown_shape(first) or ())
        return (
            f"its inputs have fixed lengths ({first.name!r} is {shape}), which may be "
            f"written into the model anywhere: export it with a symbol for the batch axis (dynamic axes)."
        )
    reason = ""
    for axes in candidates:
        for numbered in lengths_of(source, axes, (WAYS * ROWS,)):
            found = _proved(source, axes, numbered)
            if isinstance(found, BatchAxes):
                return _with_fewest_sums(source, numbered, found)
            reason = reason or found
    return reason


def _proved(source: Source, axes: Mapping[str, int], numbered: Sequence[Lengths]) -> BatchAxes | str:
    """What holds for all of these numbers."""
    found: BatchAxes | str = ""
    for lengths in numbered:
        found = _Attempt(source, axes).run(lengths)
        if not isinstance(found, BatchAxes):
            break
    return found


def _with_fewest_sums(source: Source, numbered: Sequence[Lengths], found: BatchAxes) -> BatchAxes:
    """The same batch with only those sums that its proof needs: inputs of other lengths are not cut."""
    for symbol in found.lengths if len(found.lengths) > 1 else ():  # one alone was tried without
        fewer = [lengths.without(symbol) for lengths in numbered]
        less = _proved(source, found.inputs, fewer)
        if isinstance(less, BatchAxes):
            numbered, found = fewer, less
    return found


class _Attempt:
    """Proofs for these axes as the batch: one, or one for each way in which lengths without names that a node
    wants to be equal may be so."""

    def __init__(self, source: Source, axes: Mapping[str, int]) -> None:
        self.source, self.axes = source, axes
        self.left = MAX_CASES

    def run(self, lengths: Lengths) -> BatchAxes | str:
        self.left -= 1
        proof = _Proof(self.source, self.axes, lengths)
        nodes = list(proof.whole.model.graph)
        if any(node.domain == FLOW for node in nodes):  # a branch that does not run demands nothing
            return proof.run()
        met = next(((node, meeting) for node in nodes if (meeting := meeting_of(node)) is not None), None)
        if met is None:
            return proof.run()
        node, meeting = met
        cases = _cases(meeting, lengths)
        found: BatchAxes | str = f"{_apart(shown_node(node))}."
        for case in cases if self.left >= len(cases) else ():
            found = self.run(case)
            if not isinstance(found, BatchAxes):
                break
        return found


def _apart(name: str) -> str:
    return (
        f"the shape that {name} gives is not known: lengths of inputs that must be equal may need one name "
        "(dynamic axes)"
    )


def _cases(meeting: Meeting, lengths: Lengths) -> list[Lengths]:
    """How two lengths, one of them without a name, may go together; none where that is not known."""
    one, other = meeting.lengths
    if one not in lengths.places.values():
        one, other = other, one
    if one not in lengths.places.values():
        return []
    equal = lengths.equal(one, other)
    cases = [equal, lengths.equal(one, 1), lengths.equal(other, 1)] if meeting.broadcast else [equal]
    if None in cases or lengths.equal(other, other) is None:  # that one is fixed, or follows from others
        return []
    return [case for case in cases if case is not None]


def _candidates(source: Source) -> list[dict[str, int]]:
    """Input name -> axis, for every symbol that may be the batch: first those of first axes."""
    first: dict[object, None] = {}
    later: dict[object, None] = {}
    shapes = {value.name or "": shown_shape(value) or () for value in source.model.graph.inputs}
    for shape in shapes.values():
        for axis, length in enumerate(shape):
            if isinstance(length, str) or (length is None and axis == 0):
                (later if axis else first)[length] = None
    found = []
    for symbol in [*first, *(symbol for symbol in later if symbol not in first)]:
        places = {
            name: [axis for axis, length in enumerate(shape) if length == symbol and (axis == 0 or length)]
            for name, shape in shapes.items()
        }
        if symbol in first:  # a name may stand for lengths that have nothing to do with each other
            places = {name: axes[:1] if axes[:1] == [0] else axes for name, axes in places.items()}
        if all(len(axes) <= 1 for axes in places.values()):
            found.append({name: axes[0] for name, axes in places.items() if axes})
    return found


@dataclass(frozen=True)
class _Unknown:
    """Nothing is known: the node where that began, and why."""

    why: str


class _Proof:
    """One attempt: these axes as the batch, these numbers for the other open lengths."""

    def __init__(self, source: Source, axes: Mapping[str, int], lengths: Lengths) -> None:
        self.axes, self.sums = axes, lengths.sums
        shapes = [shown_shape(value) or () for value in source.model.graph.inputs]
        self.names = names_only([axis for shape in shapes for axis in shape], self.sums)
        self.whole = _at(source, axes, WAYS * ROWS, lengths)
        self.part = _at(source, axes, ROWS, lengths)
        self.part_values = dict(_values(self.part.model))
        self.known: dict[ir.Value, Relation | _Unknown] = {}

    def run(self) -> BatchAxes | str:
        for value in self.whole.model.graph.inputs:
            axis = self.axes.get(value.name or "")
            self.known[value] = REPLICATED if axis is None else Split(axis)
        for value in self.whole.model.graph.initializers.values():
            self.known[value] = self._constant(value)
        for step in steps(self.whole, WAYS, apart=True):
            for value, relation in zip(step.node.outputs, self._outputs(step), strict=True):
                self.known[value] = relation
        outputs = {}
        for value in self.whole.model.graph.outputs:
            found = self.known[value]
            if not isinstance(found, Split):
                why = "it holds the batch's length or row numbers"
                if found == REPLICATED or isinstance(found, _Unknown):
                    why = found.why if isinstance(found, _Unknown) else "it has no batch axis"
                return f"output {value.name!r} cannot be put together from the rows' own outputs: {why}."
            outputs[value.name or ""] = found.axis
        return BatchAxes(dict(self.axes), outputs, dict(self.sums), self.names)

    def _constant(self, value: ir.Value) -> Relation | _Unknown:
        other = self.part_values.get(value.name or "")
        here = small_constant(value)
        there = None if other is None else small_constant(other)
        if here is None and other is not None and other.const_value is value.const_value:
            return REPLICATED
        if here is None or there is None:
            return _Unknown(f"{value.name!r} is a constant for some batches only")
        if here.shape == there.shape and np.array_equal(here, there):
            return REPLICATED
        return Length(here, there)

    def _outputs(self, step: Step) -> Sequence[Relation | _Unknown]:
        inputs = [REPLICATED if value is None else self.known[value] for value in step.inputs]
        count = len(step.node.outputs)
        name = shown_node(step.node)
        for relation in inputs:
            if isinstance(relation, _Unknown):
                return [relation] * count
        if draws(step.node, self.whole.model.functions):
            return [_Unknown(f"{name} draws random numbers for all rows together")] * count
        if all(relation == REPLICATED for relation in inputs):
            return [REPLICATED] * count
        if _drops_lone_rows(step.view):
            return [_Unknown(f"{name} names no axes, and drops the batch's where that is one row")] * count
        others = [self.part_values.get(value.name or "") for value in step.node.outputs]
        if all(other is None or other.const_value is not None for other in others):
            return [_Unknown(f"{name} becomes a constant for some batches only")] * count
        relations: list[Relation] = [item for item in inputs if not isinstance(item, _Unknown)]
        special = ROW_RULES.get(step.node.op_type) if not step.node.domain else None
        if special is not None:
            whole, part = shape_of(step.node.outputs[0]), shape_of(others[0])
            found = special(Rows(step.view, relations, whole, part, WAYS, ROWS))
            if found is not None:
                return [found] * count
        for option in step.options:
            if self._holds(step, option, relations, others):
                return list(option.outputs)
        if any(value.name and shape_of(value) is None for value in step.node.outputs):
            return [_Unknown(_apart(name))] * count
        return [_Unknown(f"{name} joins rows of the batch, or uses its length as a number")] * count

    def _holds(
        self, step: Step, option: Option, inputs: list[Relation], others: Sequence[ir.Value | None]
    ) -> bool:
        """Whether the option is about these inputs, needs no collective, and is what the part's run does."""
        for relation, placement in zip(inputs, option.inputs, strict=True):
            if placement != (REPLICATED if isinstance(relation, Length) else relation):
                return False
        for placement, value, other in zip(option.outputs, step.node.outputs, others, strict=True):
            if not value.name:
                continue
            if not (placement == REPLICATED or placement == Split(getattr(placement, "axis", 0))):
                return False
            if not _has_shape(other, value, placement):
                return False
        if option.emit is None:
            return not any(isinstance(relation, Length) for relation in inputs)
        if (step.view.domain, step.view.op_type) == ("", "Reshape"):
            return True  # its result is its input's elements in a shape, which is the part's
        version = self.whole.model.opset_imports.get("", 1)
        recorders = [_Recorder(rank, step, inputs, version) for rank in range(WAYS)]
        return all(recorder.finds_itself(option) for recorder in recorders)


def _drops_lone_rows(view: NodeView) -> bool:
    """Whether a node drops every axis of length 1: parts of one row would lose the batch."""
    return (view.domain, view.op_type) == ("", "Squeeze") and not axes_parameter(view, 1)


def _has_shape(part: ir.Value | None, whole: ir.Value, placement: Placement) -> bool:
    here, there = shape_of(whole), shape_of(part)
    return here is not None and there is not None and local_shape(here, placement, WAYS) == there


@dataclass
class _Constant:
    value: Array


class _Recorder:
    """An emitter that notes whether a rule writes anything but the node itself with the part's constants."""

    def __init__(self, rank: int, step: Step, inputs: list[Relation], version: int) -> None:
        self.rank, self.world, self.version = rank, WAYS, version
        self.step, self.inputs, self.node = step, inputs, step.node
        self.moving: object = None
        self.copies = 0
        self.same = True

    def finds_itself(self, option: Option) -> bool:
        """Whether the option writes for this rank just what the part's run has."""
        assert option.emit is not None
        produced = list(option.emit(self, list(self.step.node.inputs)))
        return self.copies == 1 and self.same and produced == list(self.step.node.outputs)

    def copy(self, inputs: Sequence[object], **attributes: object) -> list[object]:
        self.copies += 1
        given = [*inputs, *[None] * (len(self.inputs) - len(inputs))]
        for item, relation, value in zip(given, self.inputs, self.step.inputs, strict=False):
            if isinstance(item, _Constant):
                expected: object = None if value is None else small_constant(value)
                if isinstance(relation, Length):
                    expected = relation.part
                self.same &= expected is not None and np.array_equal(item.value, np.asarray(expected))
            else:
                self.same &= item is value and not isinstance(relation, Length)
        for name, item in attributes.items():
            before = self.step.view.attributes.get(name)
            self.same &= np.array_equal(np.asarray(item), np.asarray(before))
        return list(self.step.node.outputs)

    def op(
        self, op_type: str, inputs: Sequence[object], *, outputs: int = 1, domain: str = "", **_: object
    ) -> list[object]:
        self.same = False
        return [object() for _ in range(outputs)]

    def collective(self, op_type: str, value: object, shape: Sequence[object], **_: int) -> object:
        return self.op(op_type, [value])[0]

    def constant(self, value: Array) -> _Constant:
        return _Constant(value)


def _at(source: Source, axes: Mapping[str, int], rows: int, lengths: Lengths) -> Source:
    """The model for this many rows, every open length of its inputs a number."""
    sizes = {}
    for value in source.model.graph.inputs:
        shape = shape_of(value)
        if shape is not None:
            sizes[value.name or ""] = found = [
                lengths.number(length, (value.name or "", axis)) for axis, length in enumerate(shape)
            ]
            if value.name in axes:
                found[axes[value.name or ""]] = rows
    return replace(source, model=with_inputs(source.model, source.path, sizes))


def _values(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        yield value.name or "", value
    for node in model.graph:
        for value in node.outputs:
            yield value.name or "", value
