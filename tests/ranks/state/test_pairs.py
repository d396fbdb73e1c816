"""How large the first values of state are, as a model's graph and the first step say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
from ranks.state.pairs import batch_axis, first_shapes, head_sizes, least_rooms
from sharding.slices.state import StatePair


def spec(name: str, *shape: Any) -> TensorSpec:
    return TensorSpec(name, np.dtype(np.float32), shape)


FRESH = [spec("input_ids", "b", "n"), spec("length", 1), spec("image", "b", 3, "w", "w"), spec("odd", "o")]
FEEDS = {
    "input_ids": np.zeros((2, 5)), "length": np.zeros(1), "image": np.zeros((2, 3, 8, 8)),
    "odd": np.zeros((7, 7)),  # of another number of axes: it says nothing
}  # fmt: skip
GROWS = StatePair("k", "k+", 2, "append")
CASES: list[tuple[StatePair, tuple[Any, ...], tuple[int, ...] | None]] = [
    (GROWS, ("b", 4, "past", 8), (2, 4, 0, 8)),
    (GROWS, ("b", 4, 100, 8), (2, 4, 0, 8)),
    (GROWS, ("b", 4, "past", "size"), (2, 4, 0, 64)),
    (GROWS, (None, 4, "past", 8), (2, 4, 0, 8)),
    (GROWS, ("other", 4, "past", 8), (2, 4, 0, 8)),
    (GROWS, ("b", "n", "past", "w"), (2, 5, 0, 64)),
    (GROWS, ("b", None, "past", 8), None),
    (GROWS, ("b", "heads", "past", 8), None),
    (StatePair("k", "k+"), (3, "w"), (3, 64)),
    (StatePair("k", "k+"), ("o", 3), (2, 3)),
    (StatePair("k", "k+", 0, "append"), ("b", 3), (0, 3)),
]


@pytest.mark.parametrize(("pair", "shape", "first"), CASES)
def test_the_shape_of_a_first_value(
    pair: StatePair, shape: tuple[Any, ...], first: tuple[int, ...] | None
) -> None:
    """What grows begins with nothing; the graph knows the last axis, names and the batch say the others."""
    specs = {"k": spec("k", *shape)}
    if first is not None:
        assert first_shapes([pair], specs, {"k": 64}, FRESH, FEEDS) == {"k": first}
        return
    with pytest.raises(
        ShardrunError, match=r"first value of the state 'k' cannot be made: axis 1 of float32"
    ):
        first_shapes([pair], specs, {"k": 64}, FRESH, FEEDS)


def test_a_first_step_without_rows_says_no_batch() -> None:
    pair, specs = StatePair("k", "k+"), {"k": spec("k", "other", 3)}
    with pytest.raises(ShardrunError, match="axis 0 of"):
        first_shapes([pair], specs, {}, FRESH, {"length": np.zeros(1)})


@pytest.mark.parametrize(
    ("shape", "fresh", "axis"),
    [
        (("b", 4, "p"), FRESH, 0),
        ((2, "b", "p"), FRESH, 1),
        (("p", 4, "b"), FRESH, 2),
        (("p", "o", "n"), FRESH, 0),
        ((3, 1), [spec("x", 3, 3), spec("y", 1, 1)], 0),
    ],
)
def test_the_axis_of_the_batch(shape: tuple[Any, ...], fresh: list[TensorSpec], axis: int) -> None:
    """That which is named like the first axis of inputs of two axes or more."""
    assert batch_axis(spec("k", *shape), fresh) == axis


def value(name: str, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, weights: dict[str, Any]) -> onnx.ModelProto:
    held = [
        onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()
    ]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, held))


def attention(query: str, key: str = "", **numbers: int) -> onnx.NodeProto:
    names = [query, key, key, "past.k", "past.v"]
    return helper.make_node("GroupQueryAttention", names, ["y"], domain="com.microsoft", **numbers)


WAYS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "declared": ([], {}),
    "a product": ([helper.make_node("MatMul", ["x", "w"], ["q"])], {"w": (16, 96)}),
    "a product with a bias": (
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["q"])],
        {"w": (16, 96), "b": (96,)},
    ),
    "a product behind others": (
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Cast", ["p"], ["c"], to=1),
            helper.make_node("Identity", ["c"], ["q"]),
        ],
        {"w": (16, 96)},
    ),
    "a product of few bits": (
        [helper.make_node("MatMulNBits", ["x", "w", "s"], ["q"], domain="com.microsoft", K=16, N=96)],
        {"w": (96, 1, 8), "s": (7,)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("heads", "groups", "key", "size"), [(4, 4, "", 8), (8, 2, "", 8), (12, 3, "k", 8)])
def test_attention_and_its_query_say_the_head_size(
    way: str, heads: int, groups: int, key: str, size: int
) -> None:
    """All of the query's width where keys come apart, else its share of the packed ones."""
    nodes, weights = WAYS[way]
    inputs = [value("x", "b", "n", 16), value("q", "b", "n", 96)][: 1 if nodes else 2]
    node = attention("q", key, num_heads=heads, kv_num_heads=groups)
    found = head_sizes(model([*nodes, node], inputs, [value("y", None)], weights), ())
    assert found == {"past.k": size, "past.v": size}


@pytest.mark.parametrize("numbers", [{"num_heads": 5, "kv_num_heads": 1}, {}])
def test_widths_that_say_no_head_size(numbers: dict[str, int]) -> None:
    inputs = [value("q", "b", "n", 96)]
    assert head_sizes(model([attention("q", "k", **numbers)], inputs, [], {}), ()) == {}
    assert head_sizes(model([attention("gone", "k", num_heads=4)], inputs, [], {}), ()) == {}


def test_what_is_joined_to_a_cache_says_its_last_axis() -> None:
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["grown"], axis=2),
        helper.make_node("Concat", ["flat", "more"], ["longer"], axis=1),
        helper.make_node("Add", ["past", "wide"], ["sum"]),
    ]
    inputs = [value("past", "b", 4, "p", None), value("new", "b", 4, "n", 24), value("more", "b", "n", 5)]
    inputs.append(value("wide", "b", 4, "p", 99))
    made = model(nodes, [*inputs, value("flat", "b", "p", None)], [value("grown"), value("longer")], {})
    pairs = [StatePair("past", "grown", 2, "append"), StatePair("flat", "longer", 1, "append")]
    assert head_sizes(made, pairs) == {"past": 24}  # of heads there are four axes
    assert head_sizes(made, [StatePair("past", "grown")]) == {}


@pytest.mark.parametrize(
    ("numbers", "rooms"),
    [
        ({"sliding_window_cache": 1, "local_window_size": 32}, {"past.k": 32, "past.v": 32}),
        ({"sliding_window_cache": 0, "local_window_size": 32}, {}),
        ({"local_window_size": 32}, {}),
        ({"sliding_window_cache": 1, "local_window_size": -1}, {}),
        ({"sliding_window_cache": 1}, {}),
    ],
)
def test_attention_to_a_window_asks_for_room(numbers: dict[str, int], rooms: dict[str, int]) -> None:
    assert least_rooms(model([attention("q", **numbers)], [], [], {})) == rooms
