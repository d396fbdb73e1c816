"""Sparse weights made dense, as ONNX Runtime does when it loads a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import ModelError
from sharding.onnx_files.walk import graphs_in

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 1 << 28
"""The most that all dense forms take together: a few bytes of a hostile file can ask for any size."""


def make_dense(proto: onnx.ModelProto, path: Path) -> None:
    """Replaces sparse initializers, and sparse tensors in Constant nodes, by dense ones.

    Raises `ModelError` for one that is not what SparseTensorProto in onnx.proto demands (indices linear, or
    one row per value), or too large.
    """
    left = MAX_BYTES
    for graph, node in _holders(proto):
        if graph is not None:
            for sparse in graph.sparse_initializer:
                dense, left = _dense(sparse, path, left)
                graph.initializer.append(dense)
            del graph.sparse_initializer[:]
        if node is None:
            continue
        for attribute in node.attribute:
            if not attribute.HasField("sparse_tensor"):
                continue
            if node.op_type != "Constant":
                raise ModelError(
                    f"{path}: node {node.name or node.op_type!r} holds a sparse tensor in its attribute "
                    f"{attribute.name!r}, which cannot be sliced: store it as a dense one."
                )
            dense, left = _dense(attribute.sparse_tensor, path, left)
            attribute.Clear()
            attribute.name, attribute.type = "value", attribute.TENSOR
            attribute.t.CopyFrom(dense)


def _holders(
    proto: onnx.ModelProto,
) -> Iterator[tuple[onnx.GraphProto | None, onnx.NodeProto | None]]:
    """Every graph, with None, and every node, with None."""
    import onnx

    for holder in graphs_in(proto.graph, *proto.functions):
        if not isinstance(holder, onnx.FunctionProto):
            yield holder, None
        for node in holder.node:
            yield None, node


def _dense(sparse: onnx.SparseTensorProto, path: Path, left: int) -> tuple[onnx.TensorProto, int]:
    import onnx

    name = sparse.values.name
    what = f"{path}: the sparse weight {name!r}"
    dims = list(sparse.dims)
    try:
        values = onnx.numpy_helper.to_array(sparse.values)
        indices = onnx.numpy_helper.to_array(sparse.indices)
    except Exception:  # data of the wrong length, in another file, of an unknown type, ...
        raise ModelError(f"{what} does not hold what its types and shapes say.") from None
    if min(dims, default=0) < 0 or values.ndim != 1 or values.dtype.kind not in "fiubc":
        raise ModelError(f"{what} of shape {dims} is not valid: its values must be a vector of numbers.")
    size = math.prod(dims) * values.dtype.itemsize
    if size > left:
        raise ModelError(
            f"{what} of shape {dims} has {size} bytes as a dense one; at most {MAX_BYTES} are made of "
            f"all sparse ones: store it as a dense one."
        )
    wanted = [(len(values),), (len(values), len(dims))]
    if indices.dtype != np.int64 or indices.shape not in wanted:
        raise ModelError(
            f"{what} is not valid: it has {len(values)} values and indices of shape {indices.shape}."
        )
    dense = np.zeros(dims, values.dtype)
    try:
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), dims) if len(values) else indices.reshape(-1)
        if len(values):
            if indices.min() < 0:
                raise IndexError
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError):
        raise ModelError(f"{what} is not valid: an index lies outside its shape {dims}.") from None
    return onnx.numpy_helper.from_array(dense, name), left - size
