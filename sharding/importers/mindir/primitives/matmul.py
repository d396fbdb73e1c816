"""Products of matrices and vectors."""

from __future__ import annotations

from sharding.importers.mindir.primitives.arithmetic import binary
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder, is_float, known_rank, ranked, tensors

FORMATS = (
    "nchw", "nhwc", "nhwc4", "hwkc", "hwck", "kchw", "ckhw", "khwc", "chwk", "hw", "hw4", "nc", "nc4",
    "nc4hw4", "ncdhw", "nwc", "ncw", "ndhwc",
)  # fmt: skip
"""Data layouts in the order of version 3's numbers (`mindapi/base/format.h`, which MindSpore installs)."""
CHANNELS_LAST = frozenset({"nhwc", "ndhwc", "nwc"})
_PLAIN = ("nchw", "ncdhw", "ncw", *sorted(CHANNELS_LAST))


def channels_last(node: Node, setting: Operand = "NCHW") -> bool:
    """Whether the data layout has the channels last: that of a setting, or else the node's."""
    if setting == "NCHW":
        setting = node.attributes.get("format", setting)
    found = Builder.text(setting, "data_format", FORMATS)
    if found not in _PLAIN:
        raise RefusedError(f"data_format must be one of {', '.join(_PLAIN)}, found {found}")
    return found in CHANNELS_LAST


def product(b: Builder, x: Value, y: Value) -> Value:
    """The matrix product in the common type."""
    first, second = (b.computable(item) for item in b.promoted(x, y))
    return b.op("MatMul", [first, second])


def swapped(b: Builder, x: Value) -> Value:
    """The last two axes exchanged; a weight that is constant is turned by the optimizer, once."""
    rank = known_rank(x)
    if rank < 2:
        raise RefusedError(f"a tensor with {rank} axes cannot be transposed as a matrix")
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@primitive("MatMul", "BatchMatMul")
def matmul(
    b: Builder, node: Node, x: Value, y: Value, *, transpose_a: bool = False, transpose_b: bool = False
) -> Value:
    """The product, either factor transposed first if wanted; those of MatMul are matrices. A weight is taken
    as it lies: a transposed one is copied while a model loads."""
    if node.op_type == "MatMul":
        x, y = ranked(x, 2), ranked(y, 2)
        if transpose_b and y.constant is not None and is_float(x.dtype) and is_float(y.dtype):
            first, second = (b.computable(item) for item in b.promoted(x, y))
            return b.op("Gemm", [first, second], {"transA": int(transpose_a) or None, "transB": 1})
    first = swapped(b, x) if transpose_a else x
    second = swapped(b, y) if transpose_b else y
    return product(b, first, second)


@primitive("MatMulExt", "BatchMatMulExt", "Mm", "Mv", "Dot", "Vdot")
def matmul_ext(b: Builder, x: Value, y: Value) -> Value:
    """The product as numpy has it, of vectors too."""
    return product(b, x, y)


@primitive("Outer", "Ger")
def outer(b: Builder, node: Node, x: Value, y: Value) -> Value:
    """Each element of a vector times each of another."""
    first, second = b.promoted(x, y)
    return binary(b, node, "Mul", b.unsqueeze(first, [first.rank or 1]), second)


def _flattens(x: Value) -> bool:
    """Whether a tensor becomes a matrix and back without more than a constant to say the shape; of an unknown
    number of axes, that is all there is."""
    return x.shape is None or (len(x.shape) > 1 and x.shape[:-1].count(None) < 2) or len(x.shape) == 2


def _gemm(b: Builder, x: Value, weight: Value, bias: Operand) -> Value:
    """As one operator, which takes the weight as it lies."""
    operands = b.promoted(x, weight, *([bias] if isinstance(bias, Value) else []))
    first, *others = (b.computable(item) for item in operands)
    rows = first if first.rank == 2 else b.reshape(first, (-1, b.dim(weight, 1)))
    found = b.op("Gemm", [rows, *others], {"transB": 1})
    if first.rank == 2:
        return found
    width = b.dim(weight, 0)
    if first.shape is not None:
        front = tuple(-1 if length is None else length for length in first.shape[:-1])
        return b.reshape(found, (*front, width))
    lead = b.op("Slice", [b.op("Shape", [first]), b.ints(0), b.ints(-1)])
    return b.reshape(found, b.op("Concat", [lead, b.ints(width)], {"axis": 0}))


@primitive("Dense")
def dense(b: Builder, node: Node, x: Value, weight: Value, bias: Operand = None) -> Value:
    """x times the transposed weight (out, in), plus a bias."""
    weight = ranked(weight, 2)
    if weight.rank == 2 and is_float(x.dtype) and is_float(weight.dtype) and _flattens(x):
        return _gemm(b, x, weight, bias)
    turned = swapped(b, weight) if weight.rank != 1 else weight
    found = product(b, x, turned)
    return found if bias is None else binary(b, node, "Add", found, bias)


@primitive("BiasAdd")
def bias_add(b: Builder, node: Node, x: Value, bias: Value, *, data_format: Operand = "NCHW") -> Value:
    """A vector added along the axis of the channels: 1, or the last one for NHWC."""
    if (x.rank is None or x.rank > 2) and not channels_last(node, data_format):
        bias = b.behind(x, bias, 1)
    return binary(b, node, "Add", x, bias)


def _weighed(b: Builder, node: Node, x: Operand, found: Value, beta: Operand, alpha: Operand) -> Value:
    """beta x + alpha found"""
    if isinstance(alpha, Value) or b.number(alpha, "alpha") != 1:
        found = binary(b, node, "Mul", found, alpha)
    if isinstance(beta, Value) or b.number(beta, "beta") != 1:
        x = binary(b, node, "Mul", x, beta)
    return binary(b, node, "Add", x, found)


@primitive("Addmm", "Baddbmm", "Addmv")
def addmm(
    b: Builder, node: Node, x: Value, first: Value, second: Value, *, beta: Operand = 1, alpha: Operand = 1
) -> Value:
    """beta x + alpha (first second)"""
    return _weighed(b, node, x, product(b, first, second), beta, alpha)


@primitive("Addbmm")
def addbmm(
    b: Builder, node: Node, x: Value, first: Value, second: Value, *, beta: Operand = 1, alpha: Operand = 1
) -> Value:
    """beta x + alpha (the sum of first[i] second[i])"""
    total = b.op("ReduceSum", [product(b, first, second), b.ints((0,))], {"keepdims": 0})
    return _weighed(b, node, x, total, beta, alpha)


@primitive("Einsum")
def einsum(b: Builder, *items: Operand, equation: Operand = None) -> Value:
    """A sum of products in Einstein's notation."""
    return _einsum(b, equation, items)


@primitive("EinsumExt")
def einsum_ext(b: Builder, equation: Operand, operands: Operand) -> Value:
    """The same."""
    return _einsum(b, equation, (operands,))


def _einsum(b: Builder, equation: Operand, items: tuple[Operand, ...]) -> Value:
    if not isinstance(equation, str):
        raise RefusedError("its equation is missing")
    found = tensors(items[0] if len(items) == 1 else items)
    wide = [b.computable(item) for item in b.promoted(*found)]
    return b.op("Einsum", wide, {"equation": equation.replace(" ", "")})
