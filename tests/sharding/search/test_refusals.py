"""Indices that a node may refuse on some ranks alone: which axes are parts of which."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sharding.rules.base import NodeView
from sharding.search.refusals import _interval, _is_repeated, _is_within, _lies_in
from tests.sharding import graphs


@pytest.mark.parametrize(
    ("shape", "axis", "before", "inner", "lies"),
    [
        ([2, 3, 4], 0, [6, 4], 0, True),
        ([2, 3, 4], 1, [6, 4], 0, True),
        ([2, 3, 4], 2, [6, 4], 0, False),
        ([2, 3, 4], 2, [6, 4], 1, True),
        ([4, 6], 0, [6, 4], 0, False),
        ([6, 1, 4], 1, [6, 4], 0, True),
        (["n", 4], 0, ["n", 2, 2], 0, True),
        (["n", 4], 1, ["n", 2, 2], 1, False),
        (["n", 2, 2], 2, ["n", 4], 1, True),
        ([None, 4], 0, [None, 4], 0, False),  # nothing is known of them: they may be other lengths
        ([None, 4], 1, [None, 4], 1, False),
        ([2, 3, None], 1, [6, None], 0, True),
    ],
)
def test_an_axis_that_is_part_of_one_before(
    shape: list[Any], axis: int, before: list[Any], inner: int, lies: bool
) -> None:
    assert _lies_in(shape, axis, before, inner) is lies


GRAPH = """g (int64[4, 3] x, float[4, 6] f, int64[1, 3] row, int64[4] one) => (int64[4, 3] y)
<{shapes}> {{ {nodes} y = Identity(x) }}"""


def _made(nodes: str, shapes: str = "int64[4, 3] v", **weights: list[int]) -> ir.Value:
    """The value ``v`` of these nodes."""
    arrays = {name: np.array(item, np.int64) for name, item in weights.items()}
    model = graphs.model(GRAPH.format(nodes=nodes, shapes=shapes), arrays)
    graph = ir.serde.deserialize_model(model).graph
    return next(value for node in graph for value in node.outputs if value.name == "v")


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("v = Clip(x, least, most)", (-2, 5)),
        ("v = Clip(x, least)", None),
        ("v = Clip(x, , most)", None),
        ("v = Clip(x, x, most)", None),
        ("v = Mod(x, most)", (0, 4)),
        ("v = Mod(x, least)", None),
        ("v = Mod(x, none)", None),
        ("v = Mod<fmod = 1>(x, most)", None),
        ("v = Mod(x, x)", None),
        ("v = ArgMax(f)", (0, 0)),
        ("a, v = TopK(f, three)", (0, 0)),
        ("v, a = TopK(f, three)", None),
        ("a = Clip(x, least, most) v = Identity(a)", (-2, 5)),
        ("a = Clip(x, least, most) v = Gather(a, x)", (-2, 5)),
        ("a = Clip(x, least, most) c = Mod(x, nine) v = Concat<axis = 0>(a, c)", (-2, 8)),
        ("a = Clip(x, least, most) v = Concat<axis = 0>(a, x)", None),
        ("a = Clip(x, least, most) c = Mod(x, nine) b = Cast<to = 9>(x) v = Where(b, a, c)", (-2, 8)),
        ("a = Clip(x, least, most) b = Cast<to = 9>(x) v = Where(b, a, nine)", (-2, 5)),
        ("v = Add(x, x)", None),
        ("v = Cast<to = 7>(f)", None),
    ],
)
def test_between_what_whole_numbers_lie(nodes: str, found: tuple[int, int] | None) -> None:
    value = _made(nodes, least=[-2], most=[5], nine=[9], none=[0], three=[3])
    assert _interval(value, 9) == found


def test_bounds_that_attributes_name() -> None:
    node = ir.Node("", "Clip", [ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64))],
                   [ir.AttrInt64("min", 1), ir.AttrInt64("max", 3)])  # fmt: skip
    assert _interval(node.outputs[0], 9) == (1, 3)
    node.attributes.pop("max")
    assert _interval(node.outputs[0], 9) is None


def test_numbers_behind_many_nodes() -> None:
    value = _made(
        "a = Clip(x, least, most) c = Identity(a) d = Identity(c) v = Identity(d)", least=[0], most=[5]
    )
    assert _interval(value, 4) == (0, 5)
    assert _interval(value, 3) is None


SHAPES = (
    "int64[4, 3] e, int64[3, 4] t, int64[3] s, int64[1, 3] r, int64[2, 2, 3] w, int64[4, 3, 1] u, int64[4] o"
)


@pytest.mark.parametrize(
    ("nodes", "shape", "axes"),
    [
        ("v = Expand(row, whole)", "4, 3", {0}),
        ("v = Expand(one, wide)", "2, 4", {0}),
        ("v = Expand(x, whole)", "4, 3", set()),
        ("e = Expand(row, whole) v = Identity(e)", "4, 3", {0}),
        ("e = Expand(row, whole) v = Transpose<perm = [1, 0]>(e)", "3, 4", {1}),
        ("e = Expand(row, whole) v = Transpose(e)", "3, 4", {1}),
        ("e = Expand(row, whole) v = Transpose<perm = [0, 1]>(e)", "4, 3", {0}),
        ("e = Expand(row, whole) v = Reshape(e, halves)", "2, 2, 3", {0, 1}),
        ("e = Expand(row, whole) v = Unsqueeze(e, two)", "4, 3, 1", {0}),
        ("e = Expand(row, whole) v = Add(e, e)", "4, 3", set()),
        ("e = Expand(row, whole) v = Cast<to = 6>(e)", "4, 3", {0}),
    ],
)
def test_axes_along_which_all_is_the_same(nodes: str, shape: str, axes: set[int]) -> None:
    value = _made(nodes, f"{SHAPES}, int64[{shape}] v",
                  whole=[4, 3], wide=[2, 4], halves=[2, 2, 3], two=[2])  # fmt: skip
    rank = shape.count(",") + 1
    assert {axis for axis in range(rank) if _is_repeated(value, axis)} == axes


def test_nothing_is_said_of_unknown_shapes() -> None:
    assert not _is_repeated(None, 0)
    value = _made("v = Expand(row, whole)", "int64[4, 3] v", whole=[4, 3])
    assert _is_repeated(value, 0) and not _is_repeated(value, 0, 0)
    node = value.producer()
    assert node is not None and node.inputs[0] is not None
    node.inputs[0].shape = None
    assert not _is_repeated(value, 0)


@pytest.mark.parametrize(
    ("op_type", "axis", "found", "within"),
    [
        ("Gather", 0, (0, 3), True), ("Gather", 0, (-4, 3), True), ("Gather", 0, (-5, 3), False),
        ("Gather", 0, (0, 4), False), ("Gather", 1, (0, 3), False), ("Gather", -1, (-3, 2), True),
        ("Gather", 2, (0, 0), True), ("Gather", 2, (0, 1), False), ("Gather", 0, None, False),
        ("GatherElements", 0, (0, 3), True), ("GatherND", 0, (0, 3), False),
        ("GatherND", 0, (0, 0), True),
    ],
)  # fmt: skip
def test_indices_within_their_axis(
    op_type: str, axis: int, found: tuple[int, int] | None, within: bool
) -> None:
    def view(shape: list[int] | None) -> NodeView:
        return NodeView(
            op_type, "", 18, 2, {"axis": axis}, [shape, [2]], [None] * 2, [None] * 2, [True] * 2, [[2]]
        )

    assert _is_within(view([4, 3]), found) is within
    assert _is_within(view(None), found) is (found == (0, 0))
