"""Detours of exporters written as the plain operators they stand for, before anything is planned.

Only rewrites that give the same elements in the same order, for shapes that are known to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.rules.base import Dim
from sharding.values import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir


def simplify(graph: ir.Graph) -> None:
    """Rewrites the graph in place. Values that others read stay the same; what is left over stays too."""
    for node in list(graph):
        if node.op_type == "Reshape" and not node.domain:
            _transposed_in_between(graph, node)


def _transposed_in_between(graph: ir.Graph, last: ir.Node) -> None:
    """Reshape, Transpose, Reshape that merge leading axes, turn the others, and take the axes apart again.

    Exporters write so the transposed keys of attention: [batch, heads, length, size] as [-1, length, size],
    [-1, size, length], [batch, heads, size, length]. With a symbolic batch the merged axis has no known
    length, and nothing could be said of the heads in it. One Transpose does the same.
    """
    turn = _only_use(last.inputs[0], "Transpose")
    first = None if turn is None else _only_use(turn.inputs[0], "Reshape")
    if turn is None or first is None or first.inputs[0] is None:
        return
    source, merged = shape_of(first.inputs[0]), shape_of(turn.inputs[0])
    result, attribute = shape_of(last.outputs[0]), turn.attributes.get("perm")
    if source is None or merged is None or result is None or attribute is None or attribute.is_ref():
        return
    perm, leading = list(attribute.as_ints()), len(source) - len(merged) + 1
    if leading < 1 or sorted(perm) != list(range(len(merged))) or perm[0] != 0:
        return
    moved = [source[leading - 1 + axis] for axis in perm[1:]]
    if not _equal(merged[1:], source[leading:]) or not _equal(result, [*source[:leading], *moved]):
        return
    import onnx_ir as ir

    axes = [*range(leading), *(leading - 1 + axis for axis in perm[1:])]
    last.op_type = "Transpose"
    last.replace_input_with(0, first.inputs[0])
    last.resize_inputs(1)
    last.attributes.clear()
    last.attributes.add(ir.AttrInt64s("perm", axes))
    graph.remove([turn, first], safe=True)


def _only_use(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node of this type that a value comes from, if the value has one use and is no output."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or node.op_type != op_type:
        return None
    return node if len(value.uses()) == 1 and not value.is_graph_output() else None


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are surely equal."""
    return None not in a and list(a) == list(b)
