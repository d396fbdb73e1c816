"""A node on an axis that is taken apart gives what it gives on the one axis: ONNX Runtime runs both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_value_info as value_info
from onnx.helper import np_dtype_to_tensor_dtype as kind_of

from sharding.rewrite.lifting import Form, Lift, View, lift
from tests.sharding import graphs

Array = np.ndarray[Any, Any]
OUTER, INNER = 2, 3
X, Y = graphs.array(6, 6, 6), graphs.array(6, 6, 6, seed=1)


def numbers(*items: int) -> Array:
    return np.array(items, np.int64)


def run(
    op_type: str, version: int, inputs: Sequence[Array | None], attributes: Any, outputs: int
) -> list[Array]:
    """What one node gives."""
    names = ["" if item is None else f"i{place}" for place, item in enumerate(inputs)]
    results = [f"o{place}" for place in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, **attributes)
    given = {name: item for name, item in zip(names, inputs, strict=True) if item is not None}
    graph = onnx.helper.make_graph(
        [node], "one",
        [value_info(name, kind_of(item.dtype), item.shape)
         for name, item in given.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in results],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=8)
    return [np.asarray(item) for item in graphs.session(model).run(None, given)]


def lifted(
    op_type: str,
    inputs: Sequence[Array | None],
    forms: Sequence[Form | None],
    attributes: Any,
    *,
    version: int = 18,
    outputs: int = 1,
) -> Lift | None:
    whole = [item if item is not None and item.dtype.kind == "i" else None for item in inputs]
    shapes = [None if item is None else list(item.shape) for item in inputs]
    return lift(View(op_type, version, attributes, shapes, whole, forms, outputs))


def _apart(array: Array, axis: int, form: Form) -> Array:
    pair = (1, 1) if array.shape[axis] == 1 else (form.outer, form.inner)
    return array.reshape([*array.shape[:axis], *pair, *array.shape[axis + 1 :]])  # type: ignore[list-item]


def check(
    op_type: str,
    inputs: Sequence[Array | None],
    forms: Sequence[Form | None],
    *,
    version: int = 18,
    outputs: int = 1,
    **attributes: Any,
) -> bool:
    """Whether it can be said; then both give the same."""
    found = lifted(op_type, inputs, forms, attributes, version=version, outputs=outputs)
    if found is None:
        return False
    parts = list(inputs)
    for place, axis in found.apart.items():
        held = parts[place]
        assert held is not None
        parts[place] = _apart(held, axis, found.form)
    for place, axes in found.axes.items():
        parts[place] = numbers(*axes)
    if found.ones is not None:
        target = parts[1]
        assert target is not None and target[found.ones] in {1, 6}
        parts[1] = numbers(*target[: found.ones], 1, 1, *target[found.ones + 1 :])
    wanted = run(op_type, version, inputs, attributes, outputs)
    got = run(found.op_type or op_type, version, parts, found.attributes if found.op_type else
              {**attributes, **found.attributes}, outputs)  # fmt: skip
    for one, other in zip(got, wanted, strict=True):
        assert list(one.shape) == found.form.parted(other.shape)
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=1e-5, atol=1e-6)
    return True


def axes_of(op_type: str, inputs: Sequence[Array | None], *, of: int = 0, **more: Any) -> set[int]:
    """The axes of an input that can be apart."""
    array = inputs[of]
    assert array is not None
    found = set()
    for axis in range(array.ndim):
        if array.shape[axis] != OUTER * INNER:
            continue
        forms = [Form(axis, OUTER, INNER) if place == of else None for place in range(len(inputs))]
        if check(op_type, inputs, forms, **more):
            found.add(axis)
    return found


ALONG: list[tuple[str, tuple[Any, ...], dict[str, Any], set[int]]] = [
    ("Tanh", (X,), {}, {0, 1, 2}),
    ("Cast", (X,), {"to": 11}, {0, 1, 2}),
    ("Softmax", (X,), {}, {0, 1}),
    ("Softmax", (X,), {"axis": 1}, {0, 2}),
    ("Softmax", (X,), {"axis": -3}, {1, 2}),
    ("LogSoftmax", (X,), {"version": 11, "axis": 2}, {0, 1}),
    ("LogSoftmax", (X,), {"version": 11, "axis": -1}, {0, 1}),
    ("Softmax", (X,), {"version": 11, "axis": 1}, set()),
    ("Softmax", (X,), {"version": 11}, set()),
    ("LayerNormalization", (X, X[0, 0], Y[0, 0]), {}, {0, 1}),
    ("LayerNormalization", (X, X[0]), {"axis": 1}, {0}),
    ("LayerNormalization", (X, X), {"axis": 0}, set()),
    ("LpNormalization", (X,), {"axis": 1}, {0, 2}),
    ("LpNormalization", (X,), {}, {0, 1}),
    ("Split", (X, numbers(2, 4)), {"outputs": 2}, {1, 2}),
    ("Split", (X, numbers(2, 4)), {"outputs": 2, "axis": -1}, {0, 1}),
    ("Transpose", (X,), {}, {0, 1, 2}),
    ("Transpose", (X,), {"perm": [1, 2, 0]}, {0, 1, 2}),
    ("Transpose", (X,), {"perm": [2, 0, 1]}, {0, 1, 2}),
    ("ReduceSum", (X, numbers(1)), {}, {0, 2}),
    ("ReduceSum", (X, numbers(-3)), {"keepdims": 0}, {1, 2}),
    ("ReduceMean", (X, numbers(0, 2)), {"keepdims": 0}, {1}),
    ("ReduceMax", (X,), {"version": 13, "axes": [1]}, {0, 2}),
    ("ReduceMin", (X,), {"version": 13, "axes": [0, -1], "keepdims": 0}, {1}),
    ("ReduceMean", (X,), {"version": 13}, set()),
    ("ReduceSum", (X,), {}, set()),
    ("Squeeze", (X[:1], numbers(0)), {}, {1, 2}),
    ("Squeeze", (X[:, :1], numbers(-2)), {}, {0, 2}),
    ("Squeeze", (X[:, :, :1],), {"version": 11, "axes": [2]}, {0, 1}),
    ("Squeeze", (X[:1],), {}, set()),
    ("Unsqueeze", (X, numbers(0)), {}, {0, 1, 2}),
    ("Unsqueeze", (X, numbers(1, -1)), {}, {0, 1, 2}),
    ("Unsqueeze", (X, numbers(-2, 0)), {}, {0, 1, 2}),
    ("Unsqueeze", (X,), {"version": 11, "axes": [1, 3]}, {0, 1, 2}),
    ("Concat", (X, Y), {"axis": 1}, {0, 2}),
    ("Concat", (X, Y), {"axis": -1}, {0, 1}),
    ("Concat", (X, Y), {"axis": 0}, {1, 2}),
    ("Slice", (X, numbers(1), numbers(3), numbers(1)), {}, {0, 2}),
    ("Slice", (X, numbers(1, 0), numbers(3, 2), numbers(-1, 0), numbers(1, 2)), {}, {1}),
    ("Slice", (X, numbers(1), numbers(3)), {}, set()),
    ("Slice", (X,), {"version": 9, "starts": [1], "ends": [3], "axes": [1]}, set()),
    ("Gather", (X, numbers(1, 0)), {}, {1, 2}),
    ("Gather", (X, numbers(1, 0).reshape(1, 2)), {"axis": 1}, {0, 2}),
    ("Gather", (X, np.array(3)), {"axis": -1}, {0, 1}),
    ("GatherElements", (X, np.zeros((6, 6, 6), np.int64)), {"axis": 1}, {0, 2}),
    ("GatherElements", (X, np.ones((6, 6, 6), np.int64)), {}, {1, 2}),
    ("Expand", (X, numbers(2, 1, 6, 1, 1)), {}, {0, 1, 2}),
    ("Expand", (X, numbers(6, 1)), {}, {0, 1, 2}),
    ("Expand", (X, numbers(1)), {}, {0, 1, 2}),
    ("Add", (X, Y), {}, {0, 1, 2}),
    ("Add", (X, Y[0]), {}, {0, 1, 2}),
    ("Mul", (X[0], Y), {}, {0, 1}),
    ("Mul", (X, Y[:, :1]), {}, {0, 1, 2}),
    ("Add", (X, Y), {"version": 6}, set()),
    ("MatMul", (X, Y), {}, {0, 1}),
    ("MatMul", (X, Y), {"version": 11}, {0}),
    ("MatMul", (X, Y[0]), {}, {0}),
    ("MatMul", (X[0], Y[0]), {}, set()),
    ("Einsum", (X, Y), {"equation": "abc,acd->bad"}, {0, 1}),
    ("Einsum", (X, Y), {"equation": "abc,dce"}, {0, 1}),
    ("Einsum", (X,), {"equation": "...b->b..."}, {0, 1, 2}),
    ("Einsum", (X[0],), {"equation": "aa->a"}, set()),
    ("Einsum", (X,), {"equation": "abc->ab"}, {0, 1}),
    ("Relu", (X,), {"outputs": 1}, {0, 1, 2}),
    ("Reshape", (X, numbers(36, 6)), {}, set()),
]


@pytest.mark.parametrize("place", range(len(ALONG)), ids=[f"{item[0]}-{n}" for n, item in enumerate(ALONG)])
def test_axes_that_can_be_apart(place: int) -> None:
    op_type, inputs, more, wanted = ALONG[place]
    assert axes_of(op_type, inputs, **more) == wanted


def test_rows_that_are_heads_of_one_product() -> None:
    """[batch, length * heads, size] as queries, keys of the batch: written as an Einsum, from opset 12 on."""
    keys = graphs.array(6, 6, 4)
    form = Form(1, OUTER, INNER)
    assert check("MatMul", (X, keys), (form, None))
    assert not check("MatMul", (X, keys), (form, None), version=11)
    assert not check("MatMul", (X, keys[:1]), (form, None))
    assert not check("MatMul", (X, keys[0]), (form, None))
    assert not check("MatMul", (X, keys), (Form(2, OUTER, INNER), None))
    assert not check("MatMul", (X, keys), (None, Form(2, OUTER, INNER)))


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (Form(1, 2, 3), Form(1, 2, 3), True),
        (Form(1, None, 3), Form(1, 2, 3), True),
        (Form(1, 2, 3), Form(1, None, 3), True),
        (Form(1, 2, 3), Form(1, 2, None), True),
        (Form(1, 2, 3), Form(1, 3, 2), False),
        (Form(1, 2, None), Form(1, None, 3), False),
        (Form(1, "a", 3), Form(1, "b", 3), True),
        (Form(1, "a", 3), Form(1, "a", 6), False),
        (Form(1, "a", None), Form(1, "a", None), False),
        (Form(0, 2, 3), Form(1, 2, 3), False),
    ],
)
def test_two_inputs_that_are_merged(first: Form, second: Form, wanted: bool) -> None:
    for op_type, more in (("Add", {}), ("Concat", {"axis": 2}), ("Einsum", {"equation": "abc,abd->abcd"})):
        assert bool(lifted(op_type, (X, Y), (first, second), more)) is wanted, op_type
    places = np.zeros((6, 6, 6), np.int64)
    assert bool(lifted("GatherElements", (X, places), (first, second), {"axis": 2})) is wanted
    both = first.better(second)
    if wanted and {first.inner, second.inner} | {first.outer, second.outer} >= {2, 3}:
        assert (both.axis, both.outer, both.inner) == (1, 2, 3)


def test_the_length_of_both() -> None:
    assert Form(0, 2, 3).merged == 6
    assert Form(0, 2, None).merged is None
    assert Form(1, 2, 3).parted([5, 6, 7]) == [5, 2, 3, 7]


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "axis"),
    [
        ("Add", [[6, 6], None], {}, 0), ("Einsum", [[6, 6], None], {"equation": "ab,bc"}, 0),
        ("Einsum", [[6, 6], [6, 6]], {"equation": "ab,bc,cd"}, 0), ("Softmax", [None], {}, 0),
        ("Softmax", [[6, 6]], {"axis": 2}, 0), ("Softmax", [[6, 6]], {"axis": -3}, 0),
        ("Transpose", [None], {}, 0), ("Transpose", [[6, 6]], {"perm": [0, 0]}, 0),
        ("Transpose", [[6, 6]], {"perm": [0, 1, 2]}, 0), ("ReduceMax", [None], {"axes": [1]}, 0),
        ("ReduceMax", [[6, 6]], {"axes": [2]}, 0), ("ReduceMax", [[6, 6]], {"axes": []}, 0),
        ("Unsqueeze", [None], {"axes": [0]}, 0), ("Unsqueeze", [[6, 6]], {}, 0),
        ("Unsqueeze", [[6, 6]], {"axes": [3]}, 0), ("Unsqueeze", [[6, 6]], {"axes": [-4]}, 0),
        ("Concat", [[6, 6], [6, 6, 6]], {"axis": 1}, 0), ("Concat", [[6, 6], None], {"axis": 1}, 0),
        ("Slice", [None, [1], [1], [1]], {}, 0), ("Slice", [[6, 6], [1], [1], [1]], {}, 0),
        ("GatherElements", [[6, 6], [6]], {"axis": 1}, 0), ("GatherElements", [[6, 6], None], {"axis": 1}, 0),
        ("Gather", [[6, 6], None], {"axis": 1}, 0), ("Gather", [None, [2]], {"axis": 1}, 0),
        ("Expand", [[6, 6], None], {}, 0), ("Expand", [[6, 6], [None]], {}, 0),
        ("Expand", [None, [2]], {}, 0),
        ("LayerNormalization", [None, [6]], {}, 0),
    ],
)  # fmt: skip
def test_of_too_little_nothing_is_said(
    op_type: str, shapes: list[Any], attributes: dict[str, Any], axis: int
) -> None:
    forms = [Form(axis, OUTER, INNER), *[None] * (len(shapes) - 1)]
    view = View(op_type, 18, attributes, shapes, [None] * len(shapes), forms, 1)
    assert lift(view) is None


def test_places_that_are_merged_are_not_looked_up() -> None:
    form = Form(0, OUTER, INNER)
    assert lifted("Gather", (X, numbers(0, 1, 2, 3, 4, 5)), (None, form), {"axis": 1}) is None
    assert lifted("Gather", (X, numbers(0, 1, 2, 3, 4, 5)), (form, form), {"axis": 1}) is None
    assert lifted("Tanh", (X,), (None,), {}) is None
    assert lifted("Dropout", (X,), (form,), {}, outputs=2) is None
    assert lifted("LayerNormalization", (X, X[0, 0]), (form, None), {}, outputs=3) is None
