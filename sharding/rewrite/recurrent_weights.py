"""Weights of recurrent operators that exporters build inside the graph, as initializers.

LSTM, GRU and RNN want the gates in another order than PyTorch has them, and both directions in one tensor.
Exporters therefore write slices and concatenations of the parameters. Cut by direction, such a weight would
have to be put together on every rank first: what only moves elements of parameters is moved when the model is
sliced instead (`sharding.rewrite.built_weights`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.rewrite.built_weights import MOVES, alone, build, chain

if TYPE_CHECKING:
    import onnx_ir as ir

RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
WEIGHTS = (1, 2, 3, 7)
"""The inputs W, R, B and P."""


def recurrent_weights_to_initializers(model: ir.Model, path: Path) -> dict[str, tuple[str, ...]]:
    """Replaces weights of recurrent operators that are made of parameters nothing else uses.

    Returns the names of those for each that was made.
    """
    graph, made_of = model.graph, {}
    for node in list(graph):
        if node.op_type not in RECURRENT or node.domain:
            continue
        for index in WEIGHTS:
            value = node.inputs[index] if index < len(node.inputs) else None
            nodes = None if value is None else chain(value, graph, MOVES)
            if value is not None and nodes and alone(nodes, value):
                made_of[value.name or ""] = build(model, value, nodes, path)
    return made_of
