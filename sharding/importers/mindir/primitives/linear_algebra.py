"""Inverses, triangular systems, and decompositions of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.mindir.primitives.base import (
    Node,
    Operand,
    RefusedError,
    TensorType,
    Value,
    primitive,
)
from sharding.importers.mindir.primitives.matmul import swapped
from sharding.importers.mindir.primitives.operands import floating, promoted, scalar

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder

_MOST_ROWS = 64
"""Of a matrix that is decomposed: each row becomes a few nodes."""


def inverse_of(b: Builder, x: Value) -> Value:
    """The inverse of each matrix. ONNX has no operator for it; ONNX Runtime has."""
    return b.op("Inverse", [x], domain="com.microsoft", types=[TensorType(x.dtype, x.shape)])


@primitive("MatrixInverse", "MatrixInverseExt", settings=("adjoint",))
def matrix_inverse(b: Builder, node: Node, x: Value, *, adjoint: Operand = False) -> Value:
    """The inverse of each matrix, or of its transpose."""
    wide = floating(b, x)
    return inverse_of(b, swapped(b, wide) if adjoint else wide)


def _unit_diagonal(b: Builder, x: Value) -> Value:
    """With ones along the diagonal."""
    ones = b.op("Expand", [scalar(b, 1, x), b.op("Shape", [x])])
    strict = b.op("Sub", [x, b.op("Trilu", [b.op("Trilu", [x], {"upper": 1})], {"upper": 0})])
    return b.op("Add", [strict, b.op("Trilu", [b.op("Trilu", [ones], {"upper": 1})], {"upper": 0})])


@primitive("TriangularSolve", settings=("upper", "transpose", "unitriangular"))
def triangular_solve(
    b: Builder,
    node: Node,
    right: Value,
    matrix: Value,
    *,
    upper: Operand = True,
    transpose: Operand = False,
    unitriangular: Operand = False,
) -> Operand:
    """What a triangular matrix times is the right side, and the matrix."""
    wanted, wide = (floating(b, item) for item in promoted(b, right, matrix))
    half = b.op("Trilu", [wide], {"upper": int(bool(upper))})
    half = _unit_diagonal(b, half) if unitriangular else half
    inverse = inverse_of(b, swapped(b, half) if transpose else half)
    return b.op("MatMul", [inverse, wanted]), wide


@primitive("LogMatrixDeterminant")
def log_determinant(b: Builder, node: Node, x: Value) -> Operand:
    """The determinant's sign and its magnitude's logarithm."""
    found = b.op("Det", [floating(b, x)])
    return b.op("Sign", [found]), b.op("Log", [b.op("Abs", [found])])


def _order(x: Value) -> int:
    length = x.shape[-1] if x.shape else None
    if length is None:
        raise RefusedError("the number of rows must be known: ONNX has no operator that decomposes a matrix")
    if length > _MOST_ROWS:
        raise RefusedError(
            f"it has {length} rows, more than {_MOST_ROWS}: ONNX has no operator that decomposes a matrix"
        )
    return length


def _column(b: Builder, x: Value, place: int) -> Value:
    """One column, as a matrix of one."""
    return b.op("Slice", [x, b.ints((place,)), b.ints((place + 1,)), b.ints((-1,))])


@primitive("Cholesky", settings=("upper",))
def cholesky(b: Builder, node: Node, x: Value, *, upper: Operand = False) -> Value:
    """The triangular matrix that gives a positive definite one as its product with its transpose: column by
    column, what the columns so far leave of the matrix."""
    rest = floating(b, x)
    columns = []
    for place in range(_order(rest)):
        column = _column(b, rest, place)
        corner = b.op("Slice", [column, b.ints((place,)), b.ints((place + 1,)), b.ints((-2,))])
        below = np.zeros((_order(rest), 1), rest.dtype)
        below[place:] = 1
        scaled = b.op("Mul", [b.op("Div", [column, b.op("Sqrt", [corner])]), b.const(below)])
        columns.append(scaled)
        rest = b.op("Sub", [rest, b.op("MatMul", [scaled, swapped(b, scaled)])])
    found = b.op("Concat", columns, {"axis": -1})
    return swapped(b, found) if upper else found


@primitive("CholeskyInverse", settings=("upper",))
def cholesky_inverse(b: Builder, node: Node, x: Value, *, upper: Operand = False) -> Value:
    """The inverse of the matrix that a triangular one decomposes."""
    wide = floating(b, x)
    turned = swapped(b, wide)
    return inverse_of(b, b.op("MatMul", [turned, wide] if upper else [wide, turned]))
