"""Shapes that rewriting writes: what is known as numbers, what only a run tells by its place."""

from __future__ import annotations

import onnx_ir as ir

from sharding.rewrite.graph_writer import GraphWriter, Pick
from tests.sharding import graphs


def writer() -> tuple[GraphWriter, ir.Value]:
    text = "g (float[n, 4, m] x) => (float[n, 4, m] y) { y = Relu(x) }"
    graph = ir.serde.deserialize_model(graphs.model(text, {})).graph
    made = GraphWriter(graph, 18)
    made.place = graph[0]
    return made, graph.inputs[0]


def test_known_lengths_are_numbers() -> None:
    made, x = writer()
    first, middle, last = made.lengths(x)
    assert isinstance(first, Pick) and isinstance(last, Pick) and middle == 4
    assert (first.index, last.index) == (0, 2) and first.vector is last.vector
    x.shape = ir.Shape([3, 4, 5])
    assert made.lengths(x) == [3, 4, 5]


def test_runs_of_entries_are_one_piece() -> None:
    made, x = writer()
    first, _, last = made.lengths(x)
    joined = made.vector([2, 3, first, last, 5]).producer()
    assert joined is not None and joined.op_type == "Concat"
    pieces = [value.producer() for value in joined.inputs if value is not None]
    assert [piece.op_type if piece is not None else "" for piece in pieces] == ["", "Gather", ""]
    alone = made.vector([first, last]).producer()
    assert alone is not None and alone.op_type == "Gather"
