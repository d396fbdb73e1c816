"""Weights that nodes compute from weights alone, computed when the model is sliced: initializers instead.

The value is computed each time that a part of it is written, with onnx's reference implementation, from the
weights where they lie; nothing is kept in memory between.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.fold import SMALL_ELEMENTS, is_alike, program
from sharding.graph.values import replace_by_constant
from sharding.onnx_files.tensors import locate

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array

MOVES = frozenset({"Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that move elements and compute nothing."""


def chain(value: ir.Value, graph: ir.Graph, operators: Collection[str]) -> list[ir.Node]:
    """The nodes that make a value of initializers with these operators, in order; empty if it is not so."""
    nodes: dict[ir.Node, None] = {}
    order: list[ir.Node] = []
    outputs = set(graph.outputs)
    pending = [(value, False)]
    while pending:
        current, done = pending.pop()
        node = current.producer()
        if done and node is not None:
            order.append(node)
            continue
        if node is None:
            if not current.is_initializer() or current.const_value is None:
                return []
            continue
        if node.op_type not in operators or node.domain or current in outputs or not _known(current):
            return []
        if not is_alike(node, graph.opset_imports.get("", 1)):
            return []
        if node not in nodes:
            nodes[node] = None
            pending.append((current, True))
            pending += [(item, False) for item in node.inputs if item is not None]
    return order


def _known(value: ir.Value) -> bool:
    shape = value.shape
    return value.dtype is not None and shape is not None and all(isinstance(n, int) for n in shape.dims)


def alone(order: list[ir.Node], value: ir.Value) -> bool:
    """Whether nothing else uses these nodes' weights, or the values between them and ``value``."""
    inside = set(order)
    moved = [item for node in order for item in (*node.inputs, *node.outputs) if item is not None]
    return all(
        item is value or _is_small(item) or all(user in inside for user, _ in item.uses()) for item in moved
    )


def _is_small(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size <= SMALL_ELEMENTS


def parameters(order: list[ir.Node]) -> list[ir.Value]:
    """The initializers that these nodes use, each once."""
    used = (item for node in order for item in node.inputs if item is not None and item.is_initializer())
    return list(dict.fromkeys(used))


def build(model: ir.Model, value: ir.Value, order: list[ir.Node], path: Path) -> tuple[str, ...]:
    """Puts an initializer in the place of a value that these nodes, of one output each, make of initializers.

    Returns the names of the initializers that it replaces, without single numbers, which many weights use.
    Arithmetic in less than single precision is done in single, and rounded once, at the end.
    """
    import onnx_ir as ir

    assert value.dtype is not None and value.shape is not None
    sources = parameters(order)
    weights = {item.name or "": locate(item.name or "", _data(item), path) for item in sources}
    messages = [ir.serde.serialize_node(node) for node in order]
    made_of = program(messages, value.name or "", weights, model.opset_imports.get("", 1))
    dtype = value.dtype.numpy()

    def built() -> ir.TensorProtocol:
        from onnx.reference import ReferenceEvaluator

        arrays: dict[str, object] = {name: _widened(weight.array()) for name, weight in weights.items()}
        result = np.asarray(next(iter(ReferenceEvaluator(made_of).run(None, arrays))))
        return ir.tensor(result.astype(dtype, copy=False))

    tensor: ir.TensorProtocol = ir.LazyTensor(
        built, dtype=value.dtype, shape=ir.Shape(value.shape.dims), name=value.name
    )
    if tensor.size <= SMALL_ELEMENTS:  # what rules may look at is not computed each time
        tensor = built()
    graph = model.graph
    *before, last = order
    assert last is value.producer()
    replace_by_constant(graph, value, tensor)
    for node in reversed(before):
        graph.remove(node, safe=True)
    outputs = set(graph.outputs)
    gone = [item for item in sources if not item.uses() and item not in outputs]
    for item in gone:
        del graph.initializers[item.name or ""]
    return tuple(item.name or "" for item in gone if item.shape and not _is_whole_number(item))


def _is_whole_number(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _widened(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name in {"float16", "bfloat16"} else array


def _data(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value
