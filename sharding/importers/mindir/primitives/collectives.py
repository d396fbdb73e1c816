"""Collectives inside a network: one file per rank, written by MindSpore's automatic or manual parallelism.

They become the collective operators that rank models have (``com.microsoft``, ``shardrun``), which the ranks'
executor runs. A file does not say which rank it is for, nor, in ``AllReduce``, how many there are.
"""

from __future__ import annotations

from sharding.common.bounds import MAX_RANKS
from sharding.importers.mindir.primitives.base import (
    Node,
    Operand,
    RefusedError,
    TensorType,
    Value,
    primitive,
)
from sharding.importers.mindir.primitives.operands import Builder
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN

_REDUCTIONS = {"max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd", "sum": "ReduceSum"}


def _group_size(node: Node) -> int:
    size = node.attributes.get("rank_size", node.attributes.get("split_count", 1))
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_RANKS:
        raise RefusedError(f"its group has {size!r:.40} ranks")
    return size


def _reduction(node: Node) -> str:
    op = node.attributes.get("op", "sum")
    if not isinstance(op, str) or op not in _REDUCTIONS:
        raise RefusedError(f"op {op!r:.40}; expected one of {', '.join(_REDUCTIONS)}")
    return op


@primitive("AllReduce")
def all_reduce(b: Builder, node: Node, x: Value) -> Value:
    """The sum over all ranks; the largest, the smallest or the product of what all ranks have, gathered."""
    if (op := _reduction(node)) == "sum":
        return b.op("AllReduce", [x], domain=MICROSOFT, types=[TensorType(x.dtype, x.shape)])
    axis = b.const([0])
    part = b.op("Unsqueeze", [x, axis])
    shape = None if x.shape is None else (None, *x.shape)
    every = b.op("AllGather", [part], {"axis": 0}, domain=MICROSOFT, types=[TensorType(x.dtype, shape)])
    return b.cast(b.op(_REDUCTIONS[op], [b.computable(every), axis], {"keepdims": 0}), x.dtype)


@primitive("Broadcast")
def broadcast(b: Builder, node: Node, *tensors: Operand) -> Operand:
    """What one rank has, on all."""
    root = node.attributes.get("root_rank", 0)
    if not isinstance(root, int) or isinstance(root, bool) or root < 0:
        raise RefusedError(f"root_rank is {root!r:.40}; expected a rank")
    sent = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple) else tensors
    if not all(isinstance(item, Value) and not item.sequence for item in sent):
        raise RefusedError("expected tensors")
    return tuple(
        b.op("Broadcast", [x], {"root": root}, domain=OWN_DOMAIN, types=[TensorType(x.dtype, x.shape)])
        for x in sent
        if isinstance(x, Value)
    )


@primitive("AllGather")
def all_gather(b: Builder, node: Node, x: Value) -> Value:
    """The parts of all ranks, joined on axis 0."""
    size = _group_size(node)
    if x.shape == ():
        raise RefusedError("it joins on axis 0 a tensor that has no axes")
    shape = None if x.shape is None else (None if x.shape[0] is None else x.shape[0] * size, *x.shape[1:])
    attributes = {"axis": 0, "group_size": size}
    return b.op("AllGather", [x], attributes, domain=MICROSOFT, types=[TensorType(x.dtype, shape)])


def _to_all(b: Builder, x: Value, size: int) -> Value:
    """Part r of axis 0 goes to rank r; what came from the ranks is joined on axis 0 in their order."""
    if not x.shape or (x.shape[0] or 0) % size:
        raise RefusedError(f"axis 0 of its input cannot be cut into {size} parts")
    return b.op("AllToAll", [x], {"group_size": size}, domain=MICROSOFT, types=[TensorType(x.dtype, x.shape)])


@primitive("ReduceScatter")
def reduce_scatter(b: Builder, node: Node, x: Value) -> Value:
    """Each rank's part of axis 0, reduced over all ranks: the parts are exchanged, then reduced here."""
    op = _reduction(node)
    size = _group_size(node)
    parts = _to_all(b, x, size)
    rest = b.lengths(x)
    split = b.reshape(parts, (size, -1 if isinstance(rest[0], Value) else rest[0] // size, *rest[1:]))
    return b.cast(b.op(_REDUCTIONS[op], [b.computable(split), b.const([0])], {"keepdims": 0}), x.dtype)


@primitive("AlltoAll", "AllToAll")
def all_to_all(b: Builder, node: Node, x: Value) -> Value:
    """Parts along one axis go to the ranks, and what came is joined along another."""
    size = _group_size(node)
    axes = [node.attributes.get(name) for name in ("split_dim", "concat_dim")]
    numbers = [axis for axis in axes if isinstance(axis, int)]
    if len(numbers) != len(axes):
        raise RefusedError(f"split_dim and concat_dim are {axes}; expected numbers")
    split_axis, concat_axis = (b.axis(int(axis), x) for axis in numbers)
    pieces = b.ops("Split", [x], {"axis": split_axis, "num_outputs": size}, outputs=size)
    joined = b.op("Concat", pieces, {"axis": 0}) if size > 1 else pieces[0]
    got = b.ops("Split", [_to_all(b, joined, size)], {"axis": 0, "num_outputs": size}, outputs=size)
    return b.op("Concat", got, {"axis": concat_axis}) if size > 1 else got[0]
