"""Batch and heads that are merged into one axis for a batched product, taken apart again.

Exporters write attention as a product of three axes: [batch, heads, length, size] becomes [batch * heads,
length, size]. Each rank should have its own heads of every row of the batch, but no cut of the merged axis
can say that, least of all where the batch is a symbol. The same products with both axes give the same
numbers, and the axis of heads can be cut. At most a Reshape leads from one form to the other.

Normalizations of each head are written with merged axes too: [batch, length, heads * size] becomes [batch,
length * heads, size], and what is normalized is made [batch, length, heads * size] again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.fold import small_constant
from sharding.graph.values import integer_of, plain_attribute, shape_of
from sharding.rewrite.lifting import Form, Lift, View, lift
from sharding.rewrite.merged_writer import Source, Writer, same
from sharding.rules.base import Dim
from sharding.rules.products import product, quotient

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.graph.shape_values import Known

PRODUCT_AXES = 3
"""The axes of a batched product with one batch axis; with more, heads already have an axis of their own."""
PRODUCTS = ("MatMul", "Einsum")
"""Operators that are such a product."""
OPSET = 9
"""The first with what is written."""


def take_apart(graph: ir.Graph, opset: int, known: Callable[[ir.Value], Known | None]) -> set[ir.Value]:
    """Rewrites the graph in place; returns the values whose shape may be known better now.

    ``known`` gives the known elements of a value that is a shape.
    """
    if opset < OPSET:
        return set()
    found = _Analysis(graph, opset, known)
    wanted = found.wanted()
    return Writer(graph, opset, known).write(wanted) if wanted else set()


class _Analysis:
    """Which values have a merged axis, and what each node would be with the axes apart."""

    def __init__(self, graph: ir.Graph, opset: int, known: Callable[[ir.Value], Known | None]) -> None:
        self.graph, self.opset, self.known = graph, opset, known
        self.forms: dict[ir.Value, Form] = {}
        self.plans: dict[ir.Node, Lift | Source] = {}
        self.groups: dict[ir.Value, ir.Value] = {}
        self.wanted_values: list[ir.Value] = []
        for node in graph:
            self._node(node)

    def wanted(self) -> dict[ir.Node, Lift | Source]:
        """The nodes to write anew: those connected to a product, or to a Reshape that takes the axes apart
        again, if nothing in between is an output."""
        outputs = {self._group(value) for value in self.graph.outputs if value in self.forms}
        groups = {self._group(value) for value in self.wanted_values} - outputs
        return {node: plan for node, plan in self.plans.items() if self._group(node.outputs[0]) in groups}

    def _node(self, node: ir.Node) -> None:
        if node.domain or any(attribute.is_ref() for attribute in node.attributes.values()):
            return
        if any(value.dtype is None and value.name for value in node.outputs):
            return
        plan = self._source(node) if node.op_type in {"Reshape", "Tile"} else self._lift(node)
        base = node.inputs[0] if node.op_type == "Reshape" else None
        parted = base in self.forms and base is not None and self._parted(base, shape_of(node.outputs[0]))
        if parted and base is not None:
            self.wanted_values.append(base)
        if plan is None:
            return
        self.plans[node] = plan
        self.forms.update(dict.fromkeys(node.outputs, plan.form))
        if isinstance(plan, Lift):
            self._join(*node.outputs, *(v for v in node.inputs if v in self.forms and v is not None))
            ranks = {len(shape_of(value) or ()) for value in (*node.inputs, *node.outputs)}
            if node.op_type in PRODUCTS and ranks == {PRODUCT_AXES} and not plan.op_type:
                self.wanted_values.append(node.outputs[0])
        elif plan.base in self.forms and not parted:
            self._join(node.outputs[0], plan.base)

    def _parted(self, base: ir.Value, target: Sequence[Dim] | None) -> bool:
        """Whether a Reshape takes a merged axis apart again: all as it was, or what was merged goes to the
        axes before and after."""
        apart = self._apart(base)
        return same(apart, target) or _has_boundary(apart, self.forms[base].axis + 1, target)

    def _lift(self, node: ir.Node) -> Lift | None:
        forms = [self.forms.get(value) if value is not None else None for value in node.inputs]
        if not any(forms):
            return None
        view = View(
            node.op_type,
            self.opset,
            {name: plain_attribute(item) for name, item in node.attributes.items()},
            [shape_of(value) for value in node.inputs],
            [None if value is None else small_constant(value) for value in node.inputs],
            forms,
            len(node.outputs),
        )
        try:
            found = lift(view)
        except (IndexError, TypeError, ValueError, ZeroDivisionError):
            return None  # a node that is not what its operator demands
        if found is None or not all(self._can_part(node, index, found) for index in found.apart):
            return None
        dtype = node.outputs[0].dtype
        if found.op_type and (dtype is None or not dtype.is_floating_point()):
            return None  # MatMul takes some whole numbers that Einsum does not
        shapes = [shape_of(value) for value in node.outputs]
        return found if all(shape and found.form.axis < len(shape) for shape in shapes) else None

    def _can_part(self, node: ir.Node, index: int, found: Lift) -> bool:
        value = node.inputs[index]
        assert value is not None
        if value in self.forms:
            return True
        length = (shape_of(value) or ())[found.apart[index]]
        merged = found.form.merged
        if found.strict or isinstance(length, str):
            names = {merged, *(self._length(other) for other in node.inputs)}
            return length is not None and length in names
        return length is not None and (length == 1 or not isinstance(merged, int) or length == merged)

    def _length(self, value: ir.Value | None) -> Dim:
        """The length of a value's merged axis, as it is called there."""
        form, shape = self.forms.get(value) if value is not None else None, shape_of(value)
        return None if form is None or shape is None else shape[form.axis]

    def _source(self, node: ir.Node) -> Source | None:
        base, target = node.inputs[0], shape_of(node.outputs[0])
        if base is None or target is None or len(node.inputs) < 2 or node.inputs[1] is None:
            return None
        source = self._apart(base)
        if source is None:
            return None
        if node.op_type == "Tile":
            form = _repeated(source, self.known(node.inputs[1])) if base not in self.forms else None
        else:
            form = _merged(source, target)
            if form is not None and not self._can_reshape(node, form, target):
                return None
        return None if form is None else Source(form, base)

    def _can_reshape(self, node: ir.Node, form: Form, target: Sequence[Dim]) -> bool:
        assert node.inputs[1] is not None
        entries = self.known(node.inputs[1])
        if entries is None or entries.size != len(target):
            return False
        zeros = not integer_of(node, "allowzero")
        base = self.forms.get(node.inputs[0]) if node.inputs[0] is not None else None
        copied = form.axis if base is None else min(form.axis, base.axis)  # axes that stay where they are
        return not zeros or all(
            entry != 0 or axis < copied or (axis != form.axis and isinstance(target[axis], int))
            for axis, entry in enumerate(entries.tolist())
        )

    def _apart(self, value: ir.Value) -> list[Dim] | None:
        """A value's shape, a merged axis as two."""
        shape, form = shape_of(value), self.forms.get(value)
        if shape is None or form is None:
            return None if shape is None else list(shape)
        return form.parted(shape)

    def _group(self, value: ir.Value) -> ir.Value:
        while (parent := self.groups.get(value, value)) is not value:
            self.groups[value] = self.groups.get(parent, parent)
            value = parent
        return value

    def _join(self, first: ir.Value, *others: ir.Value) -> None:
        for other in others:
            self.groups[self._group(other)] = self._group(first)


def _has_boundary(source: Sequence[Dim] | None, boundary: int, target: Sequence[Dim] | None) -> bool:
    """Whether an axis of a Reshape's target ends where the source has this boundary."""
    if source is None or target is None:
        return False
    before, after = product(source[:boundary]), product(source[boundary:])
    return any(
        (before is not None and product(target[:axis]) == before)
        or (after is not None and product(target[axis:]) == after)
        for axis in range(1, len(target))
    )


def _merged(source: Sequence[Dim], target: Sequence[Dim]) -> Form | None:
    """Which axis of a Reshape's target is made of two lengths, where a boundary of the source lies in it."""
    below = [product(source[axis:]) for axis in range(len(source) + 1)]
    for axis, whole in enumerate(target):
        rest, above, last = product(target[axis + 1 :]), product(target[:axis]), None
        for boundary in range(1, len(source)):  # of several, the one with the most heads in the inner axis
            inner = quotient(below[boundary], rest)
            outer = quotient(product(source[:boundary]), above)
            if outer is None and inner is not None:  # traced exports have some lengths as numbers, some not
                outer = quotient(product((whole,)), product((inner,)))
            if inner in {1, None} or outer == 1 or whole in (inner, outer):
                continue
            if outer is None and axis:
                continue
            if _counts(inner):
                return Form(axis, outer, inner)
            if _counts(outer):
                last = Form(axis, outer, inner)
        if last is not None:
            return last
    return None


def _counts(length: Dim) -> bool:
    return isinstance(length, int) and length > 1


def _repeated(source: Sequence[Dim], repeats: Known | None) -> Form | None:
    """The one axis that is repeated, of known length."""
    if repeats is None or repeats.size != len(source):
        return None
    times: list[int | str | None] = np.asarray(repeats).tolist()
    axes = [axis for axis, count in enumerate(times) if count != 1]
    if len(axes) != 1 or times[axes[0]] is None or not _counts(source[axes[0]]):
        return None
    return Form(axes[0], times[axes[0]], source[axes[0]])
