"""Sparse weights, which become dense ones, and those that are not what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sharding.errors import ModelError
from sharding.onnx_files import sparse

PATH = Path("m.onnx")


def tensor(values: Any, indices: Any, dims: list[int], name: str = "w") -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values), name), numpy_helper.from_array(np.asarray(indices)), dims
    )


def model(*held: onnx.SparseTensorProto, nodes: Any = ()) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", [], [])
    graph.sparse_initializer.extend(held)
    return helper.make_model(graph)


CASES: list[tuple[onnx.SparseTensorProto, Any]] = [
    (tensor(np.float32([5, 6]), [1, 3], [2, 2]), [[0, 5], [0, 6]]),
    (tensor(np.float32([5, 6]), [[0, 1], [1, 1]], [2, 2]), [[0, 5], [0, 6]]),
    (tensor(np.int8([7]), [2], [3]), [0, 0, 7]),
    (tensor(np.int8([7]), [0], [3]), [7, 0, 0]),
    (tensor(np.float64([]), np.zeros(0, np.int64), [1, 2]), [[0, 0]]),
    (tensor(np.float64([]), np.zeros((0, 2), np.int64), [1, 2]), [[0, 0]]),
    (tensor(np.array([True]), [[0, 1]], [1, 2]), [[False, True]]),
    (tensor(np.float32([]), np.zeros(0, np.int64), [0, 4]), []),
]


@pytest.mark.parametrize(("given", "dense"), CASES)
def test_a_sparse_weight_becomes_a_dense_one(given: onnx.SparseTensorProto, dense: Any) -> None:
    made = model(given)
    sparse.make_dense(made, PATH)
    assert not made.graph.sparse_initializer
    (held,) = made.graph.initializer
    found = numpy_helper.to_array(held)
    assert held.name == "w" and found.tolist() == dense and list(found.shape) == list(given.dims)
    assert held.data_type == given.values.data_type


WRONG: list[tuple[onnx.SparseTensorProto, str]] = [
    (tensor(np.float32([5]), [4], [2, 2]), "an index lies outside its shape"),
    (tensor(np.float32([5]), [-1], [2, 2]), "an index lies outside its shape"),
    (tensor(np.float32([5]), [[0, 2]], [2, 2]), "an index lies outside its shape"),
    (tensor(np.float32([5]), [[0, -1]], [2, 2]), "an index lies outside its shape"),
    (tensor(np.float32([5]), [0], [0]), "an index lies outside its shape"),
    (tensor(np.float32([5]), [0, 1], [2, 2]), r"it has 1 values and indices of shape \(2,\)"),
    (tensor(np.float32([5]), [[0]], [2, 2]), r"it has 1 values and indices of shape \(1, 1\)"),
    (tensor(np.float32([5]), np.int32([0]), [2]), r"it has 1 values and indices of shape \(1,\)"),
    (tensor(np.float32([[5]]), [0], [2]), "its values must be a vector of numbers"),
    (tensor(np.float32([5]), [0], [-1]), "its values must be a vector of numbers"),
    (tensor(np.array([b"x"], object), [0], [2]), "its values must be a vector of numbers"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_sparse_weights_that_are_none(given: onnx.SparseTensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^m\.onnx: the sparse weight 'w' .*{message}"):
        sparse.make_dense(model(given), PATH)


def test_data_that_are_not_what_they_say() -> None:
    given = tensor(np.float32([5, 6]), [1, 3], [2, 2])
    given.values.raw_data = b"123"
    with pytest.raises(ModelError, match="does not hold what its types and shapes say"):
        sparse.make_dense(model(given), PATH)


def test_all_dense_ones_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_BYTES", 48)
    one, two = tensor(np.float32([5]), [1], [2, 3], "a"), tensor(np.float32([5]), [1], [6], "b")
    sparse.make_dense(model(one, two), PATH)
    with pytest.raises(ModelError, match=r"'c' of shape \[1\] has 4 bytes as a dense one; at most 48"):
        sparse.make_dense(model(one, two, tensor(np.float32([5]), [0], [1], "c")), PATH)


def constant(op: str = "Constant") -> onnx.NodeProto:
    node = helper.make_node(op, [], ["y"], name="n")
    attribute = node.attribute.add()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.CopyFrom(tensor(np.float32([5]), [1], [2]))
    return node


def test_a_constant_becomes_a_dense_one_in_bodies_and_functions_too() -> None:
    inner = helper.make_graph(
        [constant()], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    )
    inner.sparse_initializer.append(tensor(np.float32([5]), [1], [2], "held"))
    made = model(
        nodes=[constant(), helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)]
    )
    made.functions.append(
        helper.make_function("mine", "F", [], ["y"], [constant()], [helper.make_opsetid("", 18)])
    )
    sparse.make_dense(made, PATH)
    bodies = [attribute.g for attribute in made.graph.node[1].attribute]
    for body in bodies:
        assert not body.sparse_initializer and [held.name for held in body.initializer] == ["held"]
    for node in (made.graph.node[0], *(body.node[0] for body in bodies), made.functions[0].node[0]):
        (attribute,) = node.attribute
        assert (attribute.name, attribute.type) == ("value", onnx.AttributeProto.TENSOR)
        assert numpy_helper.to_array(attribute.t).tolist() == [0, 5]


def test_no_other_node_holds_a_sparse_tensor() -> None:
    with pytest.raises(ModelError, match="node 'n' holds a sparse tensor in its attribute 'sparse_value'"):
        sparse.make_dense(model(nodes=[constant("Mine")]), PATH)
