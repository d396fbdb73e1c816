"""Writes nodes for the merged axes of `merged_axes` apart, and what joins them to the rest of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from sharding.graph.values import integer_of, shape_of, use_instead
from sharding.rewrite.graph_writer import Entry, GraphWriter, Pick
from sharding.rewrite.lifting import Form, Lift
from sharding.rules.base import Dim
from sharding.rules.common import zero_is_zero

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.graph.shape_values import Known


@dataclass(frozen=True)
class Source:
    """What a node that merges axes becomes: a Reshape, or a Tile that repeats heads for each row."""

    form: Form
    base: ir.Value


class Writer(GraphWriter):
    """Adds nodes to a graph in place of others."""

    def __init__(self, graph: ir.Graph, opset: int, known: Callable[[ir.Value], Known | None]) -> None:
        super().__init__(graph, opset)
        self.known = known
        self.apart: dict[ir.Value, ir.Value] = {}
        self.parts: dict[tuple[ir.Value, int], ir.Value] = {}

    def write(self, wanted: Mapping[ir.Node, Lift | Source]) -> set[ir.Value]:
        """Writes all these nodes anew and removes them; returns the values that took the place of others."""
        for node in list(self.graph):
            plan, self.place = wanted.get(node), node
            if isinstance(plan, Lift):
                self._lifted(node, plan)
            elif plan is not None:
                self._merging(node, plan)
        gone = [node for node in self.graph if node in wanted]
        for node in gone:
            for value in node.outputs:
                self._leave(node, value, wanted)
        for node in reversed(gone):
            self.graph.remove(node, safe=True)
        return set(self.apart.values())

    def _lifted(self, node: ir.Node, plan: Lift) -> None:
        inputs = list(node.inputs)
        for index, axis in plan.apart.items():
            value = inputs[index]
            assert value is not None
            inputs[index] = self.apart[value] if value in self.apart else self._part(value, axis, plan.form)
        for index, axes in plan.axes.items():
            old = inputs[index]
            narrow = old is not None and old.dtype == self.ir.DataType.INT32
            inputs[index] = self.constant(axes, np.int32 if narrow else np.int64)
        if plan.ones is not None and inputs[1] is not None:
            entries = self._entries(inputs[1], (shape_of(inputs[1]) or (0,))[0])
            inputs[1] = self.vector([*entries[: plan.ones], 1, 1, *entries[plan.ones + 1 :]])
        kept = [item for name, item in node.attributes.items() if name not in plan.attributes]
        made = self.node(plan.op_type or node.op_type, inputs, plan.attributes, kept, len(node.outputs))
        for old_value, new in zip(node.outputs, made, strict=True):
            self.apart[old_value] = self.described(
                new, old_value, plan.form.parted(shape_of(old_value) or ())
            )

    def _merging(self, node: ir.Node, plan: Source) -> None:
        """What the node makes, without merging."""
        value, form, (old,) = self.apart.get(plan.base, plan.base), plan.form, node.outputs
        given = node.inputs[1]
        assert given is not None
        axis = form.axis
        if node.op_type == "Tile":
            shape = form.parted(shape_of(old) or shape_of(value) or ())
            entries = self._entries(given, len(shape) - 1)
            counts = self.vector([*entries[: axis + 1], 1, *entries[axis + 1 :]])
            made = self.op("Tile", [self.unsqueezed(value, axis), counts])
            self.apart[old] = self.described(made, old, shape)
            return
        shape = form.parted(shape_of(old) or ())
        if same(shape_of(value), shape):
            self.apart[old] = value
            return
        made = self.reshaped(value, self._target(value, node, form))
        self.apart[old] = self.described(made, old, shape)

    def _target(self, value: ir.Value, node: ir.Node, form: Form) -> list[Entry]:
        """A Reshape's target with two entries for one. ``value``: what is reshaped; entries that copy one of
        its axes, all of them before the merged one, are its length."""
        given, axis, whole = node.inputs[1], form.axis, shape_of(node.outputs[0]) or ()
        assert given is not None
        known = self.known(given)
        entries = self._entries(given, len(whole))
        copying = not integer_of(node, "allowzero")
        for place, said in enumerate(whole):
            if entries[place] == 0 and isinstance(said, int):
                entries[place] = said
            elif entries[place] == 0 and copying:
                entries[place] = self.lengths(value)[place]
        outer, inner = form.outer, form.inner
        pair: list[Entry]
        own = None if known is None else known.tolist()[axis]
        if isinstance(own, int):
            known_pair = [length if isinstance(length, int) else -1 for length in (outer, inner)]
            if own > 0:
                known_pair = [own // max(known_pair) if length == -1 else length for length in known_pair]
            pair = [*known_pair]
        else:
            count = [number for number in (inner, outer) if isinstance(number, int)][:1]
            length = self.op("Div", [self.vector([entries[axis]]), self.constant(count)])
            if not isinstance(own, str):  # it may be -1: what is left
                negative = self.op("Less", [self.vector([entries[axis]]), self.constant([0])])
                length = self.op("Where", [negative, self.constant([-1]), length])
            pair = [length, inner] if isinstance(inner, int) else [cast("Entry", outer), length]
        return [*entries[:axis], *pair, *entries[axis + 1 :]]

    def _part(self, value: ir.Value, axis: int, form: Form) -> ir.Value:
        """An input without a `Form`: it has length 1 there, or was not merged by a Reshape."""
        if (value, axis) in self.parts:
            return self.parts[value, axis]
        shape = list(shape_of(value) or ())
        if shape[axis] == 1:
            made = self.unsqueezed(value, axis)
        else:
            entries = self.lengths(value)
            pair: list[Entry] = []
            for length, other in ((form.outer, form.inner), (form.inner, form.outer)):
                if isinstance(length, int):
                    pair.append(length)
                    continue
                assert isinstance(other, int), "one of both is known"
                pair.append(self.op("Div", [self.vector([entries[axis]]), self.constant([other])]))
            entries[axis : axis + 1] = pair
            shape[axis : axis + 1] = [form.outer, form.inner]
            made = self.described(self.reshaped(value, entries), value, shape)
        self.parts[value, axis] = made
        return made

    def _leave(self, node: ir.Node, old: ir.Value, wanted: Mapping[ir.Node, Lift | Source]) -> None:
        """Gives the nodes that stay what they used of a node that goes."""
        new, merged, axis = self.apart[old], None, wanted[node].form.axis
        for user, index in list(old.uses()):
            if user in wanted:
                continue
            here = user.graph is self.graph and not user.domain and index == 0
            self.place = user
            if here and user.op_type == "Reshape" and self._reshaped(user, new, axis):
                continue
            self.place = node
            if here and user.op_type == "Shape" and not user.outputs[0].is_graph_output():
                self._measured(user, new, axis)
                continue
            if merged is None:
                merged = self.reshaped(new, self._together(new, axis))
                merged = self.described(merged, old, shape_of(old))
            user.replace_input_with(index, merged)

    def _together(self, new: ir.Value, axis: int) -> list[Entry]:
        """The lengths of a value whose axes ``axis`` and ``axis`` + 1 are one."""
        lengths = self.lengths(new)
        return [*lengths[:axis], self.times(*lengths[axis : axis + 2]), *lengths[axis + 2 :]]

    def _measured(self, user: ir.Node, new: ir.Value, axis: int) -> None:
        """The shape of the merged value, for a Shape node."""
        numbers = {name: int(item.value) for name, item in user.attributes.items()}
        lengths = self._together(new, axis)[numbers.get("start", 0) : numbers.get("end")]
        self._instead(user, self.vector(lengths))

    def _instead(self, user: ir.Node, value: ir.Value) -> None:
        """A value in place of a node's only output, which is no output of the graph."""
        use_instead(user.outputs[0], value)
        self.graph.remove(user, safe=True)

    def _reshaped(self, user: ir.Node, new: ir.Value, axis: int) -> bool:
        """A Reshape of the merged value as one of the axes apart, or nothing where it makes just these."""
        (result,) = user.outputs
        shape = shape_of(result)
        if same(shape, shape_of(new)):
            if result.is_graph_output():
                user.op_type = "Identity"
                user.attributes.clear()
                user.resize_inputs(1)
                user.replace_input_with(0, new)
                return True
            self._instead(user, new)
            return True
        given = user.inputs[1] if len(user.inputs) > 1 else None
        if given is None or shape is None:
            return False
        entries = self._entries(given, len(shape))
        if not integer_of(user, "allowzero"):
            whole = self._together(new, axis) if 0 in entries else []
            entries = [
                (length if isinstance(length, int) else whole[i]) if entry == 0 else entry
                for i, (entry, length) in enumerate(zip(entries, shape, strict=True))
            ]
            for attribute in self.ir.convenience.convert_attributes(zero_is_zero(self.opset)):
                user.attributes.add(attribute)
        user.replace_input_with(0, new)
        user.replace_input_with(1, self.vector(entries))
        return True

    def _entries(self, vector: ir.Value, count: Dim) -> list[Entry]:
        """The elements of a shape that is given to a node: known numbers, and picks of the others."""
        known = self.known(vector)
        assert isinstance(count, int)
        found = [None] * count if known is None else known.tolist()
        return [item if isinstance(item, int) else Pick(vector, i) for i, item in enumerate(found)]


def same(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes of as many elements are surely equal: all lengths but one are."""
    if a is None or b is None or len(a) != len(b):
        return False
    return sum(x is None or x != y for x, y in zip(a, b, strict=True)) <= 1
