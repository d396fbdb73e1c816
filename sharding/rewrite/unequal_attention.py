"""Attention of ONNX Runtime with values of another width than keys, written out as its parts.

Its one weight holds the columns of queries, keys and values after each other. As long as these are equally
wide, each rank holds its part of three equal blocks. Where they are not, there is no such cut between heads.
So the product is written before the attention, and a Split: `sharding.rewrite.packed_products` makes a weight
of its own for each. The parts are those that
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md lists, and ONNX Runtime computes
the same numbers from both forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.values import initializer, plain_attribute, shape_of
from sharding.onnx_files.attributes import integer, integers
from sharding.rewrite.graph_writer import NodeWriter, take_place
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir

SIZES_ARE_AN_INPUT = 13
"""The first opset in which the sizes of Split are an input."""
DATA, WEIGHTS, BIAS, MASK, PAST, ADDED = range(6)
LEFT = frozenset({"num_heads", "unidirectional", "scale", "mask_filter_value"})
"""The attributes that the parts have too."""
PIECES = 3
"""Queries, keys and values."""


def part_unequal(model: ir.Model) -> bool:
    """Rewrites the main graph, whose shapes are known, in place; whether there was such a node."""
    if model.opset_imports.get("", 1) < SIZES_ARE_AN_INPUT:
        return False
    changed = False
    for node in list(model.graph):
        if (node.domain, node.op_type) == (MICROSOFT, "Attention"):
            changed = _part(model, node) or changed
    return changed


def _part(model: ir.Model, node: ir.Node) -> bool:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    attributes = {name: plain_attribute(item) for name, item in node.attributes.items()}
    sizes = integers(attributes, "qkv_hidden_sizes")
    inputs = [*node.inputs, *[None] * (ADDED + 1 - len(node.inputs))]
    data, weights, bias, mask, past, added, *others = inputs
    alone = all(not value.uses() and not value.is_graph_output() for value in node.outputs[1:])
    if not sizes or len(sizes) != PIECES or len(set(sizes)) == 1 or data is None or weights is None:
        return False
    if past is not None or any(others) or not alone or integer(attributes, "do_rotary", 0):
        return False
    columns = (shape_of(weights) or (None,))[-1]
    if not weights.is_initializer() or columns != sum(sizes) or not _mask_of_keys(data, mask):
        return False
    writer = NodeWriter(model, node)
    product = writer.op("MatMul", [data, weights])
    if bias is not None:
        product = writer.op("Add", [product, bias])
    tensor = writer.ir.tensor(np.asarray(sizes, np.int64))
    lengths = initializer(writer.names.fresh(f"{writer.base}/sizes"), tensor, model.graph)
    axis = [writer.ir.AttrInt64("axis", 2)]
    pieces = writer.ir.Node("", "Split", [product, lengths], axis, num_outputs=PIECES)
    for value in pieces.outputs:
        value.name = writer.names.fresh(f"{writer.base}/Split")
    model.graph.insert_before(node, [pieces])
    kept = {name: value for name, value in attributes.items() if name in LEFT}
    operands = [*pieces.outputs, None, mask, added]
    made = writer.op("MultiHeadAttention", operands, domain=MICROSOFT, **kept)
    take_place(model.graph, node.outputs[0], made)
    model.graph.remove(node, safe=True)
    return True


def _mask_of_keys(data: ir.Value, mask: ir.Value | None) -> bool:
    """Whether a mask, if there is one, is of a form that both operators take."""
    if mask is None:
        return True
    shape, rows = shape_of(mask) or (), (shape_of(data) or ())[:2]
    known = len(rows) == 2 and None not in rows
    if len(shape) == 1:  # how many keys each row has; of twice the length also where they start
        return known and shape == rows[:1]
    if len(shape) == 2:  # of one column it would say nothing there, and be refused here
        return known and shape == rows
    return len(shape) == 3
