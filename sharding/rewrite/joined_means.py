"""Means over the columns of several products of one value, reduced as one.

Queries and keys that are normalized over all heads need their mean squares, and where heads are cut each is a
sum of parts of its own: two tiny collectives in a layer. Side by side they are one value, and one collective.
A normalization that is one operator is written as what it computes first, or it could not be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.fold import small_constant
from sharding.graph.values import initializer, plain_attribute, shape_of, use_instead
from sharding.onnx_files.attributes import integer
from sharding.rewrite.graph_writer import GraphWriter
from sharding.rules.base import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 13
"""The first with what is written."""
AXES_INPUT = 18
"""The first opset in which the axes of ReduceMean are an input."""
MEANS = ("ReduceMean", "ReduceSum", "ReduceSumSquare")
NORMALIZATIONS = ("RMSNormalization", "SimplifiedLayerNormalization")
PRODUCTS = ("Gemm", "MatMul", "MatMulNBits")
_FLOAT = 1
_DEPTH = 6
"""The most nodes between a product and the mean of its columns."""


def join_means(graph: ir.Graph, opset: int) -> None:
    """Rewrites the graph in place."""
    if opset < OPSET:
        return
    groups: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in graph:
        key = _key(node)
        if key is not None:
            groups.setdefault(key, []).append(node)
    groups = {key: nodes for key, nodes in groups.items() if len(nodes) > 1}
    if not groups:
        return
    writer = GraphWriter(graph, opset)
    for nodes in groups.values():
        means = [_taken_apart(writer, node) if node.op_type in NORMALIZATIONS else node for node in nodes]
        _join(writer, [node.outputs[0] for node in means])
    graph.sort()  # what read the first mean now waits for all


def _key(node: ir.Node) -> tuple[object, ...] | None:
    """What nodes have in common whose means can stand side by side; None where a node makes none."""
    source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
    shape = shape_of(source)
    if source is None or not shape or not isinstance(shape[-1], int) or source.dtype is None:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()) or result.is_graph_output():
        return None
    normalizes = node.op_type in NORMALIZATIONS
    if normalizes:
        if len(node.outputs) > 1 and any(value.uses() for value in node.outputs[1:]):
            return None
        attributes = {name: plain_attribute(item) for name, item in node.attributes.items()}
        scale = node.inputs[1] if len(node.inputs) == 2 else None
        weights = shape_of(scale)
        axis, stash = integer(attributes, "axis", -1), integer(attributes, "stash_type", 1)
        if weights is None or len(weights) != 1 or axis % len(shape) != len(shape) - 1 or stash != 1:
            return None
        # What it gives has the type of the scale. Doubles are computed in double.
        if scale is None or scale.dtype != source.dtype or source.dtype.name == "DOUBLE":
            return None
    elif node.domain or node.op_type not in MEANS or not _keeps_last(node, len(shape)):
        return None
    multiplied = _multiplied(source, shape[-1])
    if multiplied is None:
        return None
    return (multiplied, "mean" if normalizes else node.op_type, source.dtype, tuple(shape[:-1]))


def _keeps_last(node: ir.Node, rank: int) -> bool:
    """Whether nothing but the last axis is reduced, to length 1."""
    kept = "keepdims" not in node.attributes or bool(node.attributes["keepdims"].value)
    return kept and _axes(node) in ([-1], [rank - 1])


def _axes(node: ir.Node) -> list[int] | None:
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = small_constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return None if given is None else [int(axis) for axis in given.reshape(-1)]


def _multiplied(value: ir.Value | None, columns: int) -> ir.Value | None:
    """What a weight of so many columns is multiplied with to give a value, or what it is the square of."""
    for _ in range(_DEPTH):
        node = None if value is None else value.producer()
        if node is None or (node.domain and node.op_type != "MatMulNBits"):
            return None
        if node.op_type in PRODUCTS:
            # A bias too: one that waits for the other mean would wait for itself.
            fixed = all(item is None or _is_constant(item) for item in node.inputs[1:])
            return node.inputs[0] if fixed and (shape_of(node.outputs[0]) or (0,))[-1] == columns else None
        others = {item for item in node.inputs if item is not None and not _is_constant(item)}
        if node.op_type not in {"Add", "Cast", "Mul", "Pow"} or len(others) != 1:
            return None
        value = next(iter(others))
    return None


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is a weight, or made of one by a node."""
    node = value.producer()
    if node is None:
        return value.is_initializer()
    return all(item is None or item.is_initializer() for item in node.inputs)


def _taken_apart(writer: GraphWriter, node: ir.Node) -> ir.Node:
    """The mean of the squares, with what scales by it after it."""
    writer.place = node
    source, scale, result = node.inputs[0], node.inputs[1], node.outputs[0]
    assert source is not None and scale is not None and source.dtype is not None
    shape, rank = shape_of(source) or (), len(shape_of(source) or ())
    wide = source.dtype != writer.ir.DataType.FLOAT
    value = _like(writer, writer.op("Cast", [source], to=_FLOAT), source, shape) if wide else source
    square = _like(writer, writer.op("Mul", [value, value]), value, shape)
    if writer.opset < AXES_INPUT:
        mean = writer.op("ReduceMean", [square], axes=[rank - 1])
    else:
        mean = writer.op("ReduceMean", [square, writer.constant([rank - 1])])
    mean = _like(writer, mean, value, (*shape[:-1], 1))
    epsilon = float(node.attributes["epsilon"].value) if "epsilon" in node.attributes else 1e-5
    more = _like(writer, writer.op("Add", [mean, _number(writer, epsilon)]), mean, shape_of(mean) or ())
    root = _like(writer, writer.op("Sqrt", [more]), mean, shape_of(mean) or ())
    even = _like(writer, writer.op("Div", [value, root]), value, shape)
    if wide:
        even = writer.described(writer.op("Cast", [even], to=int(source.dtype)), source, shape)
    made = writer.op("Mul", [even, scale])
    made.type, made.shape = result.type, writer.ir.Shape(list(shape))
    use_instead(result, made)
    writer.graph.remove(node, safe=True)
    producer = mean.producer()
    assert producer is not None
    return producer


def _like(writer: GraphWriter, made: ir.Value, old: ir.Value, shape: Sequence[Dim]) -> ir.Value:
    writer.described(made, old, shape)
    made.type = writer.ir.TensorType(writer.ir.DataType.FLOAT)
    return made


def _number(writer: GraphWriter, number: float) -> ir.Value:
    tensor = writer.ir.tensor(np.asarray(number, np.float32))
    return initializer(writer.names.fresh("apart/epsilon"), tensor, writer.graph)


def _join(writer: GraphWriter, means: Sequence[ir.Value]) -> None:
    """Side by side, and each taken out again."""
    last = means[-1].producer()
    assert last is not None
    uses = [list(mean.uses()) for mean in means]
    shape = shape_of(means[0]) or ()
    writer.place = last
    made = writer.op("Concat", means, axis=len(shape) - 1)
    producer = made.producer()
    assert producer is not None
    writer.described(made, means[0], (*shape[:-1], len(means)))
    for index, own in enumerate(uses):
        bounds = [writer.constant([number]) for number in (index, index + 1, len(shape) - 1)]
        one = writer.described(writer.op("Slice", [made, *bounds]), means[index], shape)
        for user, place in own:
            user.replace_input_with(place, one)
