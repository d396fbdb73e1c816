"""Cutting rank models at their collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ranks.errors import ModelError
from ranks.sessions.bodies import cut_with_bodies
from ranks.sessions.cut import Cut, cut
from tests.ranks.rank_models import model, node, random_models, value

X = value("x", ["n", 4])


def ops(result: Cut) -> list[list[str]]:
    """The operators of each segment and after it the collectives of its level."""
    return [
        [item.op_type for item in segment.nodes] + [f"[{c.op}]" for c in collectives]
        for segment, collectives in zip(result.segments, result.collectives, strict=True)
    ]


def test_independent_collectives_share_a_cut_and_chained_ones_do_not() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("AllReduce", ["a"], ["a1"]),
        node("Neg", ["a1"], ["a2"]),
        node("AllReduce", ["a2"], ["a3"]),
        node("Abs", ["x"], ["b"]),
        node("AllReduce", ["b"], ["b1"]),
        node("AllReduce", ["b1"], ["b2"]),
        node("Add", ["a3", "b2"], ["y"]),
    ]
    result = cut(model(nodes, [X], ["y"]))
    assert ops(result) == [
        ["Relu", "Abs", "[AllReduce]", "[AllReduce]"],
        ["Neg", "[AllReduce]", "[AllReduce]"],
        ["Add"],
    ]
    assert [c.input for level in result.collectives for c in level] == ["a", "b", "a2", "b1"]
    assert [s.inputs for s in result.segments] == [["x"], ["a1"], ["a3", "b2"]]
    assert [s.outputs for s in result.segments] == [["a", "b"], ["a2"], ["y"]]


def test_the_files_order_can_be_kept() -> None:
    nodes = [
        node("AllReduce", ["x"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("AllReduce", ["x"], ["c"]),
        node("Sum", ["b", "c"], ["y"]),
    ]
    by_level = cut(model(nodes, [X], ["y"]))
    assert [[c.output for c in level] for level in by_level.collectives] == [["a", "c"], ["b"], []]
    kept = cut(model(nodes, [X], ["y"]), keep_order=True)
    assert [[c.output for c in level] for level in kept.collectives] == [["a"], ["b", "c"], []]


def test_nodes_run_later_where_fewer_values_cross_then() -> None:
    nodes = [
        node("Neg", ["x"], ["late"]),  # needed only at the end: from the input, which is there anyway
        node("Relu", ["x"], ["a"]),
        node("Abs", ["a"], ["tail"]),  # stays, for `a` would have to outlive its collective
        node("AllReduce", ["a"], ["b"]),
        node("Sum", ["b", "late", "tail"], ["y"]),
    ]
    result = cut(model(nodes, [X], ["y"]))
    assert ops(result) == [["Relu", "Abs", "[AllReduce]"], ["Neg", "Sum"]]


def test_two_values_that_become_one_are_joined_before_the_cut() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Exp", ["b"], ["c"]),
        node("Log", ["b"], ["d"]),
        node("Add", ["c", "d"], ["e"]),
        node("AllReduce", ["c"], ["f"]),
        node("Add", ["e", "f"], ["y"]),
    ]
    result = cut(model(nodes, [X], ["y"]))
    assert ops(result)[1] == ["Exp", "Log", "Add", "[AllReduce]"]
    assert result.segments[1].outputs == ["c", "e"]


def test_what_nobody_reads_is_left_out_but_its_collectives_are_not() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Exp", ["b"], ["unused"]),
        node("Neg", ["x"], ["y"]),
    ]
    assert ops(cut(model(nodes, [X], ["y"]))) == [["Relu", "[AllReduce]"], ["Neg"]]


def test_constants_are_in_every_segment_that_reads_them_and_cross_nowhere() -> None:
    nodes = [
        helper.make_node("Constant", [], ["k"], value_float=2.0),
        node("Mul", ["x", "k"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Mul", ["b", "k"], ["c"]),
        node("Add", ["c", "w"], ["y"]),
    ]
    result = cut(model(nodes, [X], ["y", "w", "k"], {"w": np.ones(4, np.float32)}))
    assert [segment.inputs for segment in result.segments] == [["x"], ["b"]]
    assert result.segments[1].outputs == ["y", "w", "k"]


def test_values_that_a_subgraph_reads_count_as_read() -> None:
    branch = helper.make_graph([node("Neg", ["a"], ["inner"])], "branch", [], [value("inner", None)])
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("If", ["condition"], ["y0"], then_branch=branch, else_branch=branch),
        node("Add", ["y0", "b"], ["y"]),
    ]
    result = cut(model(nodes, [X, value("condition", [], 9)], ["y"]))
    reader = next(s for s in result.segments if any(item.op_type == "If" for item in s.nodes))
    assert {"a", "condition"} <= {*reader.inputs, *(o for n in reader.nodes for o in n.output)}


def test_allgather_without_axis_gathers_on_axis_1() -> None:
    result = cut(model([node("AllGather", ["x"], ["y"])], [X], ["y"]))
    assert result.collectives[0][0].attributes == {"axis": 1, "group_size": None}


def test_a_collective_of_several_tensors_is_several() -> None:
    result = cut(model([node("AllReduce", ["x", "z"], ["a", "b"])], [X, value("z", [2])], ["a", "b"]))
    assert [(c.input, c.output) for c in result.collectives[0]] == [("x", "a"), ("z", "b")]


@pytest.mark.parametrize("seed", range(30))
def test_every_segment_reads_only_what_is_there(seed: int) -> None:
    for keep_order in (False, True):
        source = random_models(seed, 2)[0]
        result = cut(source, keep_order=keep_order)
        there = set(result.inputs)
        weights = {item.name for item in source.graph.initializer}
        for segment, collectives in zip(result.segments, result.collectives, strict=True):
            assert set(segment.inputs) <= there
            inside = set(segment.inputs) | weights
            for item in segment.nodes:
                assert set(item.input) <= inside
                inside |= set(item.output)
            assert set(segment.outputs) <= inside
            there |= set(segment.outputs)
            assert {c.input for c in collectives} <= there
            there |= {c.output for c in collectives if c.output}
        assert set(result.outputs) <= there
        count = sum(item.domain != "" for item in source.graph.node)
        assert sum(map(len, result.collectives)) == count
        if keep_order:
            order = [item.output[0] for item in source.graph.node if item.domain]
            assert [c.output for level in result.collectives for c in level] == order


def _in_subgraph() -> onnx.ModelProto:
    branch = helper.make_graph([node("AllReduce", ["x"], ["inner"])], "branch", [], [value("inner", None)])
    nodes = [node("SequenceMap", ["x"], ["y"], body=branch)]
    return model(nodes, [X], ["y"])


def _sent_in_branch() -> onnx.ModelProto:
    send = helper.make_node("Send", ["x"], [], domain="shardrun", peer=1)
    branch = helper.make_graph([send, node("Neg", ["x"], ["inner"])], "branch", [], [value("inner", None)])
    nodes = [node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)]
    return model(nodes, [X, value("condition", [], 9)], ["y"])


def _in_function() -> onnx.ModelProto:
    result = model([helper.make_node("F", ["x"], ["y"], domain="local")], [X], ["y"])
    body = [node("AllReduce", ["p"], ["q"])]
    result.functions.append(helper.make_function("local", "F", ["p"], ["q"], body, result.opset_import))
    return result


def _in_functions_subgraph() -> onnx.ModelProto:
    branch = helper.make_graph([node("AllReduce", ["p"], ["inner"])], "branch", [], [value("inner", None)])
    result = model([helper.make_node("F", ["x", "c"], ["y"], domain="local")], [X, value("c", [], 9)], ["y"])
    body = [node("If", ["c"], ["q"], then_branch=branch, else_branch=branch)]
    result.functions.append(helper.make_function("local", "F", ["p", "c"], ["q"], body, result.opset_import))
    return result


def _named(*nodes: onnx.NodeProto, **weights: Any) -> onnx.ModelProto:
    return model(nodes, [X], ["y"], weights)


BAD = {
    "subgraph": (_in_subgraph, "AllReduce node 'inner' lies in a subgraph of SequenceMap node 'y'"),
    "send in a branch": (_sent_in_branch, "Send node '' lies in a subgraph of If node 'y'"),
    "function": (_in_function, "Function F holds the collective AllReduce node 'q'"),
    "function's subgraph": (_in_functions_subgraph, "Function F holds the collective AllReduce node 'inner'"),
    "undefined": (lambda: _named(node("Relu", ["z"], ["y"])), "Relu node 'y' reads 'z', which is no input"),
    "unsorted": (
        lambda: _named(node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])),
        "Relu node 'y' reads 'a'",
    ),
    "twice": (
        lambda: _named(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])),
        "Neg node 'y' produces 'y', which exists already",
    ),
    "input again": (
        lambda: _named(node("Relu", ["x"], ["x"]), node("Neg", ["x"], ["y"])),
        "Relu node 'x' produces 'x', which exists already",
    ),
    "no output": (
        lambda: _named(node("Relu", ["x"], ["z"])),
        "Output 'y' of the model is produced by no node",
    ),
    "attribute": (
        lambda: _named(node("AllReduce", ["x"], ["y"], axis=1)),
        "AllReduce node 'y' has the attribute 'axis', which AllReduce does not know",
    ),
    "type": (
        lambda: _named(node("AllGather", ["x"], ["y"], axis=1.5)),
        "'axis' of AllGather node 'y' must be",
    ),
    "no peer": (
        lambda: _named(node("Send", ["x"], []), node("Relu", ["x"], ["y"])),
        "Send node '' lacks its attribute 'peer'",
    ),
    "no input": (
        lambda: _named(node("AllReduce", [], ["y"])),
        "AllReduce node 'y' has 0 inputs and 1 outputs",
    ),
    "empty name": (lambda: _named(node("AllReduce", [""], ["y"])), "one output per input"),
    "uneven": (
        lambda: _named(node("AllReduce", ["x", "x"], ["y"])),
        "AllReduce node 'y' has 2 inputs and 1 outputs",
    ),
    "recv input": (
        lambda: _named(node("Recv", ["x"], ["y"], peer=0, dtype=1, shape=[1])),
        "Recv node 'y' has 1 inputs and 1 outputs",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_models_that_cannot_be_cut_are_refused_in_one_sentence(case: str) -> None:
    build, message = BAD[case]
    with pytest.raises(ModelError) as caught:
        cut(build())
    assert message in str(caught.value)


def test_a_body_keeps_the_models_functions() -> None:
    """It may call one."""
    exchange = helper.make_node("AllReduce", ["x"], ["sum"], domain="com.microsoft")
    call = helper.make_node("F", ["sum"], ["inner"], domain="local")
    branch = helper.make_graph([exchange, call], "branch", [], [value("inner", None)])
    nodes = [node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)]
    made = model(nodes, [X, value("condition", [], 9)], ["y"])
    made.functions.append(
        helper.make_function("local", "F", ["p"], ["q"], [node("Neg", ["p"], ["q"])], made.opset_import)
    )
    ((control,), _) = cut_with_bodies(made).controls
    assert [[item.name for item in body.model.functions] for body in control.bodies] == [["F"], ["F"]]
