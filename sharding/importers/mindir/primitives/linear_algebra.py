"""Inverses, triangular systems, and what follows from a Cholesky decomposition."""

from __future__ import annotations

from collections.abc import Sequence

from sharding.importers.mindir.primitives.base import Operand, TensorType, Value, primitive
from sharding.importers.mindir.primitives.matmul import swapped
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.primitives.steps import (
    across,
    column,
    down,
    full,
    kept,
    repeated,
    total,
    turned,
    wide,
)
from sharding.slices.domains import MICROSOFT


def inverse_of(b: Builder, x: Value) -> Value:
    """The inverse of each matrix. ONNX has no operator for it; ONNX Runtime has."""
    return b.op("Inverse", [x], domain=MICROSOFT, types=[TensorType(x.dtype, x.shape)])


@primitive("MatrixInverse", "MatrixInverseExt")
def matrix_inverse(b: Builder, x: Value, *, adjoint: bool = False) -> Value:
    """The inverse of each matrix, or of its transpose."""
    wide = b.floating(x)
    return inverse_of(b, swapped(b, wide) if adjoint else wide)


def unit_diagonal(b: Builder, x: Value) -> Value:
    """A matrix with ones along the diagonal."""
    ones = b.op("Expand", [b.scalar(1, x), b.op("Shape", [x])])
    strict = b.op("Sub", [x, b.op("Trilu", [b.op("Trilu", [x], {"upper": 1})], {"upper": 0})])
    return b.op("Add", [strict, b.op("Trilu", [b.op("Trilu", [ones], {"upper": 1})], {"upper": 0})])


@primitive("TriangularSolve")
def triangular_solve(
    b: Builder,
    right: Value,
    matrix: Value,
    *,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Operand:
    """What a triangular matrix times is the right side, and the matrix."""
    wanted, wide = (b.floating(item) for item in b.promoted(right, matrix))
    half = b.op("Trilu", [wide], {"upper": int(upper)})
    half = unit_diagonal(b, half) if unitriangular else half
    inverse = inverse_of(b, swapped(b, half) if transpose else half)
    return b.op("MatMul", [inverse, wanted]), wide


@primitive("LogMatrixDeterminant")
def log_determinant(b: Builder, x: Value) -> Operand:
    """The determinant's sign and its magnitude's logarithm."""
    found = b.op("Det", [b.floating(x)])
    return b.op("Sign", [found]), b.op("Log", [b.op("Abs", [found])])


@primitive("Cholesky")
def cholesky(b: Builder, x: Value, *, upper: bool = False) -> Value:
    """The triangular matrix that gives a positive definite one as its product with its transpose: column by
    column, what the columns so far leave of the matrix."""
    whole = wide(b, x)
    rows = b.dim(x, -2)
    places, every = down(b, rows), across(b, rows)

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        rest, found = carried
        here = column(b, rest, turn)
        corner = total(b, kept(b, b.op("Equal", [places, turn]), here))
        scaled = b.op("Div", [here, b.op("Sqrt", [corner])])
        scaled = kept(b, b.op("Less", [places, turn]), 0.0, scaled)
        rest = b.op("Sub", [rest, b.op("MatMul", [scaled, turned(b, scaled)])])
        return [rest, kept(b, b.op("Equal", [every, turn]), scaled, found)], None

    start = [whole, full(b, whole, rows, rows, 0.0)]
    found = repeated(b, rows, start, step)[1]
    return turned(b, found) if upper else found


@primitive("CholeskyInverse")
def cholesky_inverse(b: Builder, x: Value, *, upper: bool = False) -> Value:
    """The inverse of the matrix that a triangular one decomposes."""
    wide = b.floating(x)
    turned = swapped(b, wide)
    return inverse_of(b, b.op("MatMul", [turned, wide] if upper else [wide, turned]))
