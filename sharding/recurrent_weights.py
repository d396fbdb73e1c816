"""Weights of recurrent operators that exporters build inside the graph, as initializers.

LSTM, GRU and RNN want the gates in another order than PyTorch has them, and both directions in one tensor.
Exporters therefore write slices and concatenations of the parameters. Cut by direction, such a weight would
have to be put together on every rank first: what only moves elements of parameters is moved when the model is
sliced instead, each time that a part of it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.fold import SMALL_ELEMENTS
from sharding.tensors import locate
from sharding.values import replace_by_constant

if TYPE_CHECKING:
    import onnx_ir as ir

RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
WEIGHTS = (1, 2, 3, 7)
"""The inputs W, R, B and P."""
MOVES = frozenset({"Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that move elements and compute nothing."""


def recurrent_weights_to_initializers(model: ir.Model, path: Path) -> None:
    """Replaces weights of recurrent operators that are made of parameters nothing else uses."""
    graph = model.graph
    for node in list(graph):
        if node.op_type not in RECURRENT or node.domain:
            continue
        for index in WEIGHTS:
            value = node.inputs[index] if index < len(node.inputs) else None
            chain = None if value is None else _chain(value, graph)
            if value is not None and chain:
                _replace(model, value, chain, path)


def _chain(value: ir.Value, graph: ir.Graph) -> list[ir.Node]:
    """The nodes that make a value of initializers by moving elements, in order; empty if it is not so."""
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
        if node.op_type not in MOVES or node.domain or current in outputs or not _known(current):
            return []
        if node not in nodes:
            nodes[node] = None
            pending.append((current, True))
            pending += [(item, False) for item in node.inputs if item is not None]
    return order if _alone(order, value) else []


def _known(value: ir.Value) -> bool:
    shape = value.shape
    return value.dtype is not None and shape is not None and all(isinstance(n, int) for n in shape.dims)


def _alone(order: list[ir.Node], value: ir.Value) -> bool:
    """Whether nothing else uses what these nodes make, nor the parameters they move."""
    inside = set(order)
    moved = [item for node in order for item in (*node.inputs, *node.outputs) if item is not None]
    return all(
        item is value
        or (item.const_value is not None and item.const_value.size <= SMALL_ELEMENTS)
        or all(user in inside for user, _ in item.uses())
        for item in moved
    )


def _replace(model: ir.Model, value: ir.Value, chain: list[ir.Node], path: Path) -> None:
    import onnx_ir as ir

    assert value.dtype is not None and value.shape is not None
    sources = dict.fromkeys(
        item for node in chain for item in node.inputs if item is not None and item.is_initializer()
    )
    parameters = {item.name or "": locate(item.name or "", _data(item), path) for item in sources}
    program = _program(chain, value, list(parameters), model.opset_imports.get("", 1))

    def built() -> ir.TensorProtocol:
        from onnx.reference import ReferenceEvaluator

        arrays: dict[str, Any] = {name: weight.array() for name, weight in parameters.items()}
        return ir.tensor(np.asarray(next(iter(ReferenceEvaluator(program).run(None, arrays)))))

    tensor = ir.LazyTensor(built, dtype=value.dtype, shape=ir.Shape(value.shape.dims), name=value.name)
    graph = model.graph
    last = chain.pop()
    assert last is value.producer()
    replace_by_constant(graph, value, tensor)
    for node in reversed(chain):
        graph.remove(node, safe=True)
    outputs = set(graph.outputs)
    for item in sources:
        if not item.uses() and item not in outputs:
            del graph.initializers[item.name or ""]


def _data(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


def _program(chain: list[ir.Node], value: ir.Value, inputs: list[str], opset: int) -> Any:
    import onnx
    import onnx_ir as ir
    from onnx import helper

    graph = helper.make_graph(
        [ir.serde.serialize_node(node) for node in chain],
        "weights",
        [helper.make_empty_tensor_value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(value.name or "")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model
