"""Writes nodes for the merged axes of `merged_axes` apart, and what joins them to the rest of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.lifting import Form, Lift
from sharding.names import Names
from sharding.rules.base import Dim
from sharding.shape_values import Known
from sharding.values import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

UNSQUEEZE_INPUT = 13
"""The first opset in which the axes of Unsqueeze are an input."""


@dataclass(frozen=True)
class Source:
    """What a node that merges axes becomes: a Reshape, or a Tile that repeats heads for each row."""

    form: Form
    base: ir.Value


@dataclass(frozen=True)
class Pick:
    """One element of a vector."""

    vector: ir.Value
    index: int


Entry = Any
"""Of a shape: an int, a `Pick`, or a value that is a vector of length 1."""


class Writer:
    """Adds nodes to a graph in place of others."""

    def __init__(self, graph: ir.Graph, opset: int, known: Callable[[ir.Value], Known | None]) -> None:
        import onnx_ir as ir

        self.ir, self.graph, self.opset, self.known = ir, graph, opset, known
        taken = {value.name or "" for node in graph.all_nodes() for value in node.outputs}
        taken |= {value.name or "" for value in (*graph.inputs, *graph.initializers.values())}
        self.names = Names(taken)
        self.apart: dict[ir.Value, ir.Value] = {}
        self.parts: dict[tuple[ir.Value, int], ir.Value] = {}
        self.constants: dict[tuple[Any, ...], ir.Value] = {}
        self.place: ir.Node

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
            inputs[index] = self._constant(axes, np.int32 if narrow else np.int64)
        if plan.ones is not None and inputs[1] is not None:
            entries = self._entries(inputs[1], (shape_of(inputs[1]) or (0,))[0])
            inputs[1] = self._vector([*entries[: plan.ones], 1, 1, *entries[plan.ones + 1 :]])
        kept = [item for name, item in node.attributes.items() if name not in plan.attributes]
        made = self._node(node.op_type, inputs, plan.attributes, kept, len(node.outputs))
        for old_value, new in zip(node.outputs, made, strict=True):
            shape = list(shape_of(old_value) or ())
            shape[plan.form.axis : plan.form.axis + 1] = [plan.form.outer, plan.form.inner]
            self.apart[old_value] = self._described(new, old_value, shape)

    def _merging(self, node: ir.Node, plan: Source) -> None:
        """What the node makes, without merging."""
        value, form, (old,) = self.apart.get(plan.base, plan.base), plan.form, node.outputs
        given = node.inputs[1]
        assert given is not None
        axis = form.axis
        if node.op_type == "Tile":
            shape = list(shape_of(old) or shape_of(value) or ())
            shape[axis : axis + 1] = [form.outer, form.inner]
            entries = self._entries(given, len(shape) - 1)
            counts = self._vector([*entries[: axis + 1], 1, *entries[axis + 1 :]])
            made = self._op("Tile", [self._unsqueezed(value, axis), counts])
            self.apart[old] = self._described(made, old, shape)
            return
        shape = list(shape_of(old) or ())
        shape[axis : axis + 1] = [form.outer, form.inner]
        if same(shape_of(value), shape):
            self.apart[old] = value
            return
        made = self._op("Reshape", [value, self._target(node, form)])
        self.apart[old] = self._described(made, old, shape)

    def _target(self, node: ir.Node, form: Form) -> ir.Value:
        """A Reshape's target with two entries for one; entries that copy an axis are known lengths."""
        given, axis, whole = node.inputs[1], form.axis, shape_of(node.outputs[0]) or ()
        assert given is not None
        known = self.known(given)
        entries = self._entries(given, len(whole))
        entries = [whole[i] if entry == 0 else entry for i, entry in enumerate(entries)]
        outer, inner, pair = form.outer, form.inner, list[Entry]()
        own = None if known is None else known.tolist()[axis]
        if isinstance(own, int):
            pair += [length if isinstance(length, int) else -1 for length in (outer, inner)]
            if own > 0:
                pair = [own // max(pair) if length == -1 else length for length in pair]
        else:
            count = [number for number in (inner, outer) if isinstance(number, int)][:1]
            length = self._op("Div", [self._vector([entries[axis]]), self._constant(count)])
            if not isinstance(own, str):  # it may be -1: what is left
                negative = self._op("Less", [self._vector([entries[axis]]), self._constant([0])])
                length = self._op("Where", [negative, self._constant([-1]), length])
            pair = [length, inner] if isinstance(inner, int) else [outer, length]
        return self._vector([*entries[:axis], *pair, *entries[axis + 1 :]])

    def _part(self, value: ir.Value, axis: int, form: Form) -> ir.Value:
        """An input without a `Form`: it has length 1 there, or was not merged by a Reshape."""
        if (value, axis) in self.parts:
            return self.parts[value, axis]
        shape = list(shape_of(value) or ())
        if shape[axis] == 1:
            made = self._unsqueezed(value, axis)
        else:
            entries = self._lengths(value)
            pair: list[Entry] = [form.outer, form.inner]
            unknown = [place for place, length in enumerate(pair) if not isinstance(length, int)]
            for place in unknown:
                own = self._vector([entries[axis]])
                pair[place] = self._op("Div", [own, self._constant([pair[1 - place]])])
            target = self._vector([*entries[:axis], *pair, *entries[axis + 1 :]])
            shape[axis : axis + 1] = [form.outer, form.inner]
            made = self._described(self._op("Reshape", [value, target]), value, shape)
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
                target = self._vector(self._together(new, axis))
                merged = self._described(self._op("Reshape", [new, target]), old, shape_of(old))
            user.replace_input_with(index, merged)

    def _together(self, new: ir.Value, axis: int) -> list[Entry]:
        """The lengths of a value whose axes ``axis`` and ``axis`` + 1 are one."""
        lengths = self._lengths(new)
        outer, inner = lengths[axis : axis + 2]
        both: Entry
        if isinstance(outer, int) and isinstance(inner, int):
            both = outer * inner
        else:
            both = self._op("Mul", [self._vector([outer]), self._vector([inner])])
        return [*lengths[:axis], both, *lengths[axis + 2 :]]

    def _measured(self, user: ir.Node, new: ir.Value, axis: int) -> None:
        """The shape of the merged value, for a Shape node."""
        numbers = {name: int(item.value) for name, item in user.attributes.items()}
        lengths = self._together(new, axis)[numbers.get("start", 0) : numbers.get("end")]
        self._instead(user, self._vector(lengths))

    def _instead(self, user: ir.Node, value: ir.Value) -> None:
        """A value in place of a node's only output, which is no output of the graph."""
        for reader, index in list(user.outputs[0].uses()):
            reader.replace_input_with(index, value)
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
        if not ("allowzero" in user.attributes and user.attributes["allowzero"].value):
            whole = self._together(new, axis) if 0 in entries[axis:] else []
            entries = [
                (length if isinstance(length, int) else whole[i]) if entry == 0 and i >= axis else entry
                for i, (entry, length) in enumerate(zip(entries, shape, strict=True))
            ]
        user.replace_input_with(0, new)
        user.replace_input_with(1, self._vector(entries))
        return True

    # Shapes as vectors.

    def _entries(self, vector: ir.Value, count: Any) -> list[Entry]:
        """The elements of a shape that is given to a node: known numbers, and picks of the others."""
        known = self.known(vector)
        found = [None] * int(count) if known is None else known.tolist()
        return [item if isinstance(item, int) else Pick(vector, i) for i, item in enumerate(found)]

    def _lengths(self, value: ir.Value) -> list[Entry]:
        shape = shape_of(value) or ()
        if all(isinstance(length, int) for length in shape):
            return list(shape)
        whole = self._op("Shape", [value])
        return [length if isinstance(length, int) else Pick(whole, i) for i, length in enumerate(shape)]

    def _vector(self, entries: Sequence[Entry]) -> ir.Value:
        """A vector of these entries; runs of numbers, and of picks from one vector, are one piece."""
        pieces: list[Any] = []
        for entry in entries:
            last = pieces[-1] if pieces else None
            if isinstance(entry, int) and isinstance(last, list):
                last.append(entry)
            elif isinstance(entry, Pick) and isinstance(last, tuple) and last[0] is entry.vector:
                last[1].append(entry.index)
            elif isinstance(entry, Pick):
                pieces.append((entry.vector, [entry.index]))
            else:
                pieces.append([entry] if isinstance(entry, int) else entry)
        made = [self._piece(piece) for piece in pieces]
        return made[0] if len(made) == 1 else self._op("Concat", made, axis=0)

    def _piece(self, piece: Any) -> Any:
        if isinstance(piece, list):
            return self._constant(piece)
        if isinstance(piece, tuple):
            return self._op("Gather", [piece[0], self._constant(piece[1])], axis=0)
        return piece

    # Nodes.

    def _unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        if self.opset < UNSQUEEZE_INPUT:
            made = self._op("Unsqueeze", [value], axes=[axis])
        else:
            made = self._op("Unsqueeze", [value, self._constant([axis])])
        shape = list(shape_of(value) or ())
        return self._described(made, value, [*shape[:axis], 1, *shape[axis:]])

    def _described(self, made: ir.Value, old: ir.Value, shape: Iterable[Dim] | None) -> ir.Value:
        made.type = old.type
        made.shape = None if shape is None else self.ir.Shape(list(shape))
        made.name = self.names.fresh(f"{old.name}/apart")
        return made

    def _op(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        (made,) = self._node(op_type, inputs, attributes, (), 1)
        return made

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        kept: Iterable[Any],
        outputs: int,
    ) -> list[ir.Value]:
        items = [*kept, *self.ir.convenience.convert_attributes(dict(attributes))]
        node = self.ir.Node("", op_type, inputs, items, num_outputs=outputs)
        node.name = self.names.fresh(f"{self.place.name or self.place.op_type}/apart")
        for value in node.outputs:
            value.name = self.names.fresh(f"{node.name}/{op_type}")
        self.graph.insert_before(self.place, [node])
        return list(node.outputs)

    def _constant(self, numbers: Sequence[int], kind: Any = np.int64) -> ir.Value:
        key = (kind, *numbers)
        if key not in self.constants:
            tensor = self.ir.tensor(np.asarray(numbers, kind))
            made = self.ir.Value(
                name=self.names.fresh("apart/" + "_".join(map(str, numbers))),
                type=self.ir.TensorType(tensor.dtype),
                shape=self.ir.Shape([len(numbers)]),
                const_value=tensor,
            )
            self.graph.register_initializer(made)
            self.constants[key] = made
        return self.constants[key]


def same(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes of as many elements are surely equal: all lengths but one are."""
    if a is None or b is None or len(a) != len(b):
        return False
    return sum(x is None or x != y for x, y in zip(a, b, strict=True)) <= 1
