"""Small rank models written by hand, and the plain model that all ranks of a group together amount to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT, SHARDRUN = "com.microsoft", "shardrun"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(SHARDRUN, 1)]
DOMAINS = {
    "AllReduce": MICROSOFT,
    "AllGather": MICROSOFT,
    "AllToAll": MICROSOFT,
    "Broadcast": SHARDRUN,
    "Send": SHARDRUN,
    "Recv": SHARDRUN,
}


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node; collectives get their domain."""
    return helper.make_node(op, list(inputs), list(outputs), domain=DOMAINS.get(op, ""), **attributes)


def value(name: str, shape: Sequence[int | str | None] | None, element: int = 1) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto | str],
    weights: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model; an output given by name alone has no declared type."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        list(inputs),
        [onnx.ValueInfoProto(name=item) if isinstance(item, str) else item for item in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def save(models: Sequence[onnx.ModelProto], folder: Path, *, external: bool = False) -> list[Path]:
    """Writes ``rank_0.onnx`` ..., with external data if asked for."""
    paths = []
    for rank, item in enumerate(models):
        path = folder / f"rank_{rank}.onnx"
        copy = onnx.ModelProto()
        copy.CopyFrom(item)
        data = f"rank_{rank}.data" if external else None
        onnx.save(copy, path, save_as_external_data=external, location=data, size_threshold=0)
        paths.append(path)
    return paths


def joined(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """One plain model that computes what all the ranks do, with the operators that collectives stand for.

    It has rank r's outputs as ``r/NAME`` and the inputs of the rank models, which must be the same
    everywhere. Collectives must be in the same order on all ranks, sends before their receives.
    """
    size = len(models)
    inputs = {item.name for item in models[0].graph.input}
    result = onnx.ModelProto()
    result.CopyFrom(models[0])
    graph = result.graph
    for field in ("node", "output", "initializer", "value_info"):
        graph.ClearField(field)

    def name(rank: int, original: str) -> str:
        return original if original in inputs or not original else f"{rank}/{original}"

    def constant(number: Sequence[int]) -> str:
        found = f"constant {list(number)}"
        if found not in {item.name for item in graph.initializer}:
            graph.initializer.append(numpy_helper.from_array(np.array(number, np.int64), found))
        return found

    queues = [list(item.graph.node) for item in models]
    for rank, item in enumerate(models):
        for tensor in item.graph.initializer:
            copy = graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = name(rank, tensor.name)
        for output in item.graph.output:
            graph.output.add().name = name(rank, output.name)
    mail: dict[tuple[int, int], list[str]] = {}
    while any(queues):
        for rank, queue in enumerate(queues):
            while queue and queue[0].domain not in (MICROSOFT, SHARDRUN):
                copy = graph.node.add()
                copy.CopyFrom(queue.pop(0))
                copy.input[:] = [name(rank, item) for item in copy.input]
                copy.output[:] = [name(rank, item) for item in copy.output]
        moved = False
        for rank, queue in enumerate(queues):
            if queue and queue[0].op_type == "Send":
                send = queue.pop(0)
                mail.setdefault((rank, send.attribute[0].i), []).append(name(rank, send.input[0]))
                moved = True
            elif queue and queue[0].op_type == "Recv":
                peer = next(item.i for item in queue[0].attribute if item.name == "peer")
                if mail.get((peer, rank)):
                    recv = queue.pop(0)
                    source = mail[peer, rank].pop(0)
                    graph.node.append(node("Identity", [source], [name(rank, recv.output[0])]))
                    moved = True
        if moved or not any(queues):
            continue
        together = [queue.pop(0) for queue in queues]
        assert len({item.op_type for item in together}) == 1, "the ranks' collectives differ"
        attributes = {item.name: item.i for item in together[0].attribute}
        op = together[0].op_type
        for position in range(len(together[0].input)):
            sources = [name(rank, item.input[position]) for rank, item in enumerate(together)]
            for rank, item in enumerate(together):
                target = name(rank, item.output[position])
                if op == "AllReduce":
                    graph.node.append(node("Sum", sources, [target]))
                elif op == "AllGather":
                    graph.node.append(node("Concat", sources, [target], axis=attributes.get("axis", 1)))
                elif op == "Broadcast":
                    graph.node.append(node("Identity", [sources[attributes.get("root", 0)]], [target]))
                else:
                    parts = []
                    for peer, source in enumerate(sources):
                        pieces = [f"{target}/{peer}/{piece}" for piece in range(size)]
                        graph.node.append(node("Split", [source], pieces, axis=0))
                        parts.append(pieces[rank])
                    graph.node.append(node("Concat", parts, [target], axis=0))
    return result


def random_models(seed: int, size: int) -> list[onnx.ModelProto]:
    """Rank models of one random graph: the same nodes, other weights on each rank.

    Values have shape (rows * k, 4), ``rows`` being the input's, which must be a multiple of ``size``. Any
    value may be an output, an input may be one, and collectives act on whatever there is: inputs, weights and
    each other's results.
    """
    choose = random.Random(seed)
    made: dict[str, int] = {"x": 1}  # value -> k
    nodes: list[onnx.NodeProto] = []
    shapes = {"w": (4, 4), "b": (4,), "c": (size, 4)}
    kinds = [
        "Relu",
        "Neg",
        "Add",
        "Add",
        "Mul",
        "MatMul",
        "Bias",
        "AllReduce",
        "AllReduce",
        "AllGather",
        "AllToAll",
    ]
    for index in range(24):
        recent = [*list(made)[-5:], "x"]
        kind, source, target = choose.choice(kinds), choose.choice(recent), f"v{index}"
        factor = made[source]
        if kind in ("Add", "Mul"):
            partner = choose.choice([item for item, k in made.items() if k == factor])
            nodes.append(node(kind, [source, partner], [target]))
        elif kind == "MatMul":
            nodes.append(node("MatMul", [source, "w"], [target]))
        elif kind == "Bias":
            nodes.append(node("Add", [source, "b"], [target]))
        elif kind == "AllGather":
            if factor * size > 16:
                continue
            factor *= size
            nodes.append(node("AllGather", [source], [target], axis=0, group_size=size))
        elif kind == "AllToAll":
            nodes.append(node("AllToAll", [source], [target], group_size=size))
        else:
            nodes.append(node(kind, [source], [target]))
        made[target] = factor
        if kind in ("AllReduce", "Mul"):  # keeps numbers small
            nodes.append(node("Tanh", [target], [f"{target}/t"]))
            made[f"{target}/t"] = factor
    nodes.append(node("AllReduce", ["c"], ["constant"]))
    outputs = choose.sample(list(made), min(4, len(made)))
    outputs += [item for item in ("x", list(made)[-1], "constant") if item not in outputs]
    models = []
    for rank in range(size):
        generator = np.random.default_rng(seed * 10 + rank)
        weights = {
            key: generator.standard_normal(shape).astype(np.float32) / 2 for key, shape in shapes.items()
        }
        models.append(model(nodes, [value("x", ["rows", 4])], outputs, weights))
    return models


FLOAT = TensorProto.FLOAT
