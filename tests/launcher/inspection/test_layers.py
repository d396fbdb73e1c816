"""Layers found by the names of weights and the scopes of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.inspection.layers import FIRST, MAX_SCOPES, SCOPES, Used, by_layer, layer_of, scope_of


@pytest.mark.parametrize(
    ("weight", "layer"),
    [
        ("encoder.layer.3.mlp.up.weight", "encoder.layer.3"),
        ("h.0.attn.c_attn.weight", "h.0"),
        ("/model/layers.11/self_attn/q_proj/weight", "model.layers.11"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("bert.embeddings.word_embeddings.weight", "bert.embeddings"),
        ("lm_head.weight", "lm_head"),
        ("val_95", None),
        ("weight.0", "weight"),
        ("", None),
        ("...", None),
    ],
)
def test_a_weights_name_names_its_layer(weight: str, layer: str | None) -> None:
    assert layer_of(weight) == layer


@pytest.mark.parametrize(
    ("name", "metadata", "scope"),
    [
        (
            "node_linear",
            {SCOPES: "['', 'bert.encoder', 'bert.encoder.layer.0', 'linear']"},
            "bert.encoder.layer.0",
        ),
        ("/encoder/layer.3/attention/MatMul", {}, "encoder.layer.3.attention"),
        ("MatMul_12", {}, ""),
        ("node", {SCOPES: "['linear']"}, ""),
        ("node", {SCOPES: "not a list"}, ""),
        ("node", {SCOPES: "'x'," * MAX_SCOPES}, ""),
    ],
)
def test_a_nodes_scope_is_what_exporters_write(name: str, metadata: dict[str, str], scope: str) -> None:
    assert scope_of(name, metadata) == scope


def test_weights_and_collectives_are_put_into_their_layers_in_order_of_execution() -> None:
    nodes = [
        Used("", "Gather", ["embed.weight", "ids"], ["a"]),
        Used("com.microsoft", "AllGather", ["a"], ["b"]),
        Used("", "MatMul", ["b", "val_1"], ["c"], "net.0.up"),
        Used("", "Add", ["c", "net.0.up.bias"], ["d"]),
        Used("", "MatMul", ["d", "val_2"], ["e"]),
        Used("com.microsoft", "AllReduce", ["e"], ["f"]),
        Used("", "MatMul", ["f", "net.1.weight"], ["g"]),
        Used("", "MatMul", ["g", "embed.weight"], ["h"]),
        Used("shardrun", "Send", ["h"], []),
        Used("", "AllReduce", ["h"], ["i"]),
    ]
    layers = by_layer(nodes, {"embed.weight", "val_1", "val_2", "net.0.up.bias", "net.1.weight", "unused"})
    assert [(layer.name, layer.weights, layer.collectives) for layer in layers] == [
        ("embed", ["embed.weight"], [0]),
        ("net.0", ["val_1", "net.0.up.bias", "val_2"], [1]),
        ("net.1", ["net.1.weight"], [2]),
    ]


def test_what_comes_before_any_layer_has_a_place() -> None:
    nodes = [Used("com.microsoft", "AllReduce", ["x"], ["y"])]
    assert [(layer.name, layer.collectives) for layer in by_layer(nodes, set())] == [(FIRST, [0])]


def test_names_without_modules_give_layers_of_their_own() -> None:
    nodes = [
        Used("", "MatMul", ["x", "fc1_weight"], ["a"]),
        Used("", "Add", ["a", "fc1_bias"], ["b"]),
        Used("", "Conv", ["b", "k", "bn_running_mean"], ["c"]),
        Used("com.microsoft", "AllReduce", ["c"], ["d"]),
        Used("", "Mul", ["d", "s"], ["e"]),
        Used("", "MatMul", ["e", "head.weight"], ["f"]),
        Used("", "MatMul", ["f", "last"], ["g"]),
    ]
    names = {name for node in nodes for name in node.inputs if len(name) > 2 or name in {"k", "s"}}
    assert [(layer.name, layer.weights, layer.collectives) for layer in by_layer(nodes, names)] == [
        ("fc1", ["fc1_weight", "fc1_bias"], []),
        ("k", ["k", "bn_running_mean", "s"], [0]),
        ("head", ["head.weight", "last"], []),
    ]


@given(st.lists(st.text("a1./_-é", max_size=12), max_size=20))
def test_every_weight_that_is_read_is_in_one_layer(names: list[str]) -> None:
    layers = by_layer([Used("", "Add", [name, name], []) for name in names], set(names))
    assert sorted(name for layer in layers for name in layer.weights) == sorted(set(names))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["_running_", "a.moving_x", "_w", "._:"])
def test_a_name_of_a_megabyte_is_read_at_once(piece: str) -> None:
    """With a pattern that looks at the rest again for each piece that would take a quarter of an hour."""
    name = piece * (10**6 // len(piece)) + "!"
    (layer,) = by_layer([Used("", "MatMul", [name], ["y"])], [name])
    assert layer.weights == [name]


def test_what_is_only_added_begins_a_layer_where_nothing_came_before() -> None:
    nodes = [Used("", "Add", ["x", "shift"], ["a"]), Used("", "Mul", ["a", "factor"], ["b"])]
    (layer,) = by_layer(nodes, {"shift", "factor"})
    assert (layer.name, layer.weights) == ("shift", ["shift", "factor"])
