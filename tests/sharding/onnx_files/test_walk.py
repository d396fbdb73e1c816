"""The way through an ONNX message: main graph, functions, and graphs in graphs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sharding.onnx_files.walk import graphs_in, mentioned, nodes_in, subgraphs, tensors_in


def graph(name: str, *nodes: onnx.NodeProto, weights: tuple[str, ...] = ()) -> onnx.GraphProto:
    made = [numpy_helper.from_array(np.zeros(1, np.float32), weight) for weight in weights]
    result = helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [result], made)


def model() -> onnx.ModelProto:
    """main { If { deep { Loop { deepest } }, flat }, Many { a, b } }, function { Scan { inner } }"""
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.zeros(2, np.float32), "held")
    )
    deepest = graph("deepest", helper.make_node("Add", ["x", "outer"], ["deepest_out"]), weights=("w2",))
    deep = graph("deep", helper.make_node("Loop", ["n"], ["deep_out"], body=deepest), weights=("w1",))
    chosen = helper.make_node("If", ["p"], ["q"], then_branch=deep, else_branch=graph("flat", constant))
    many = helper.make_node("Many", [], [], domain="own", bodies=[graph("a"), graph("b")])
    scan = helper.make_node("Scan", [], [], body=graph("inner", helper.make_node("Neg", ["y"], ["z"])))
    function = helper.make_function("own", "F", [], [], [scan], [helper.make_opsetid("", 18)])
    return helper.make_model(graph("main", chosen, many, weights=("w0",)), functions=[function])


def test_every_graph_once_and_what_is_around_first() -> None:
    whole = model()
    names = [found.name for found in graphs_in(whole.graph, *whole.functions)]
    assert names == ["main", "flat", "deep", "deepest", "a", "b", "F", "inner"]
    assert [found.name for found in subgraphs(whole.graph.node[1])] == ["a", "b"]
    kinds = [node.op_type for node in nodes_in(whole.graph, *whole.functions)]
    assert sorted(kinds) == ["Add", "Constant", "If", "Loop", "Many", "Neg", "Scan"]
    assert [tensor.name for tensor in tensors_in(whole.graph)] == ["w0", "held", "w1", "w2"]


def test_a_graph_that_an_attribute_does_not_announce_is_found_too() -> None:
    node = onnx.NodeProto()
    attribute = node.attribute.add(name="x", type=onnx.AttributeProto.INT)
    attribute.g.name = "hidden"
    assert [found.name for found in subgraphs(node)] == ["hidden"]


def test_what_is_inside_may_change_while_it_is_around() -> None:
    whole = model()
    seen = []
    for found in graphs_in(whole.graph):
        seen.append(found.name)
        if found.name == "main":
            del found.node[0]
    assert seen == ["main", "a", "b"]


def test_names_that_a_node_and_its_graphs_mention() -> None:
    assert set(mentioned(model().graph.node[0])) == {
        "p", "n", "x", "outer", "deep_out", "deepest_out", "flat_out"
    }  # fmt: skip
