"""Adds nodes to a graph that is read, and the shapes as vectors that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sharding.common.names import Names, all_names
from sharding.graph.values import initializer, onnx_attributes, shape_of, use_instead
from sharding.rules.base import Dim
from sharding.rules.common import zero_is_zero

if TYPE_CHECKING:
    import onnx_ir as ir

UNSQUEEZE_INPUT = 13
"""The first opset in which the axes of Unsqueeze are an input."""


@dataclass(frozen=True)
class Pick:
    """One element of a vector."""

    vector: ir.Value
    index: int


Entry: TypeAlias = "int | Pick | ir.Value"
"""One entry of a shape: a number, an element of a vector, or a value that is a vector of length 1."""
_Piece: TypeAlias = "list[int] | tuple[ir.Value, list[int]] | ir.Value"
"""Entries beside each other: numbers, elements of one vector, or a vector."""


class NodeWriter:
    """Writes nodes before `place`, the node whose place they take; their values are named after `base`."""

    def __init__(self, model: ir.Model, place: ir.Node | None = None) -> None:
        import onnx_ir as ir

        self.ir, self.graph, self.names = ir, model.graph, Names(all_names(model))
        self.written = 0
        if place is not None:
            self.at(place)

    def at(self, place: ir.Node) -> None:
        """Goes on before another node, and names values after its first output."""
        self.place, self.base = place, place.outputs[0].name or ""

    def op(
        self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: object
    ) -> ir.Value:
        """A node with one output."""
        items = onnx_attributes(attributes)
        node = self.ir.Node(domain, op_type, inputs, attributes=items, num_outputs=1)
        node.outputs[0].name = self.names.fresh(f"{self.base}/{op_type}")
        self.graph.insert_before(self.place, [node])
        self.written += 1
        return node.outputs[0]


class GraphWriter:
    """Writes nodes before `place`, the node whose place they take; names end in ``/apart``."""

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        import onnx_ir as ir

        self.ir, self.graph, self.opset = ir, graph, opset
        taken = {value.name or "" for node in graph.all_nodes() for value in node.outputs}
        taken |= {value.name or "" for value in (*graph.inputs, *graph.initializers.values())}
        self.names = Names(taken)
        self.constants: dict[tuple[object, ...], ir.Value] = {}
        self.place: ir.Node

    # Shapes as vectors.

    def lengths(self, value: ir.Value) -> list[Entry]:
        shape = shape_of(value) or ()
        known: list[Entry] = [length for length in shape if isinstance(length, int)]
        if len(known) == len(shape):
            return known
        whole = self.op("Shape", [value])
        return [length if isinstance(length, int) else Pick(whole, i) for i, length in enumerate(shape)]

    def vector(self, entries: Sequence[Entry]) -> ir.Value:
        """A vector of these entries; runs of numbers, and of picks from one vector, are one piece."""
        pieces: list[_Piece] = []
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
        return made[0] if len(made) == 1 else self.op("Concat", made, axis=0)

    def _piece(self, piece: _Piece) -> ir.Value:
        if isinstance(piece, list):
            return self.constant(piece)
        if isinstance(piece, tuple):
            return self.op("Gather", [piece[0], self.constant(piece[1])], axis=0)
        return piece

    def times(self, one: Entry, other: Entry) -> Entry:
        """The product of two entries."""
        if isinstance(one, int) and isinstance(other, int):
            return one * other
        return self.op("Mul", [self.vector([one]), self.vector([other])])

    # Nodes.

    def unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        if self.opset < UNSQUEEZE_INPUT:
            made = self.op("Unsqueeze", [value], axes=[axis])
        else:
            made = self.op("Unsqueeze", [value, self.constant([axis])])
        shape = list(shape_of(value) or ())
        return self.described(made, value, [*shape[:axis], 1, *shape[axis:]])

    def reshaped(self, value: ir.Value, entries: Sequence[Entry]) -> ir.Value:
        """A Reshape to these lengths; of them one may be -1 where none is 0."""
        return self.op("Reshape", [value, self.vector(entries)], **zero_is_zero(self.opset))

    def described(self, made: ir.Value, old: ir.Value, shape: Iterable[Dim] | None) -> ir.Value:
        made.type = old.type
        made.shape = None if shape is None else self.ir.Shape(list(shape))
        made.name = self.names.fresh(f"{old.name}/apart")
        return made

    def op(self, op_type: str, inputs: Sequence[ir.Value], **attributes: object) -> ir.Value:
        (made,) = self.node(op_type, inputs, attributes, (), 1)
        return made

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, object],
        kept: Iterable[ir.Attr],
        outputs: int,
    ) -> list[ir.Value]:
        """A node's outputs; of an attribute that is in both, the one of ``attributes`` counts."""
        items = [*kept, *onnx_attributes(attributes)]
        node = self.ir.Node("", op_type, inputs, items, num_outputs=outputs)
        node.name = self.names.fresh(f"{self.place.name or self.place.op_type}/apart")
        for value in node.outputs:
            value.name = self.names.fresh(f"{node.name}/{op_type}")
        self.graph.insert_before(self.place, [node])
        return list(node.outputs)

    def constant(self, numbers: Sequence[int], kind: type[np.generic] = np.int64) -> ir.Value:
        key = (kind, *numbers)
        if key not in self.constants:
            tensor = self.ir.tensor(np.asarray(numbers, kind))
            name = self.names.fresh("apart/" + "_".join(map(str, numbers)))
            self.constants[key] = initializer(name, tensor, self.graph)
        return self.constants[key]


def take_place(graph: ir.Graph, old: ir.Value, new: ir.Value, left: str | None = None) -> None:
    """The new value takes the old one's name and place, also among the graph's outputs; ``left`` is what the
    old one is called then."""
    name, kind, shape = old.name, old.type, old.shape
    old.name = left
    new.name, new.type, new.shape = name, kind, shape
    use_instead(old, new)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new
