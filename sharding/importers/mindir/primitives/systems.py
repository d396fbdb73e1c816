"""Linear systems, least squares, products of reflections, and elimination with pivots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.decompositions import (
    orthogonal_factor,
    reflected,
    reflections,
    row_of,
    singular,
)
from sharding.importers.mindir.primitives.linear_algebra import inverse_of, unit_diagonal
from sharding.importers.mindir.primitives.operands import INT64, Builder, Number
from sharding.importers.mindir.primitives.steps import (
    across,
    column,
    down,
    full,
    identity,
    kept,
    least,
    part,
    repeated,
    total,
    turned,
    wide,
)


def _triangle(b: Builder, x: Value, lower: Operand, unit: Operand = False) -> Value:
    half = b.op("Trilu", [x], {"upper": int(not lower)})
    return unit_diagonal(b, half) if unit else half


def _solved(b: Builder, matrix: Value, right: Value) -> Value:
    """What the matrix times is the right side, which may be a vector."""
    inverse = inverse_of(b, matrix)
    if right.rank is not None and matrix.rank is not None and right.rank == matrix.rank - 1:
        return b.squeeze(b.op("MatMul", [inverse, b.unsqueeze(right, [-1])]), [-1])
    return b.op("MatMul", [inverse, right])


@primitive("MatrixSolve")
def matrix_solve(b: Builder, matrix: Value, right: Value, *, adjoint: bool = False) -> Value:
    """What a matrix, or its transpose, times is the right side."""
    whole = wide(b, matrix)
    return _solved(b, turned(b, whole) if adjoint else whole, b.cast(right, whole.dtype))


@primitive("MatrixTriangularSolve")
def matrix_triangular_solve(
    b: Builder, matrix: Value, right: Value, *, lower: Operand = True, adjoint: bool = False
) -> Value:
    """The same of one half of the matrix."""
    half = _triangle(b, wide(b, matrix), lower)
    return _solved(b, turned(b, half) if adjoint else half, b.cast(right, half.dtype))


@primitive("SolveTriangular")
def solve_triangular(
    b: Builder,
    matrix: Value,
    right: Value,
    *,
    trans: Operand = 0,
    lower: Operand = False,
    unit_diagonal: Operand = False,
) -> Value:
    """The same, with ones on the diagonal if wanted."""
    half = _triangle(b, wide(b, matrix), lower, unit_diagonal)
    plain = b.text(trans, "trans", ("n", "t", "c")) == "n"
    return _solved(b, half if plain else turned(b, half), b.cast(right, half.dtype))


@primitive("CholeskySolve")
def cholesky_solve(b: Builder, right: Value, factor: Value, *, upper: bool = False) -> Value:
    """What a matrix times is the right side, of which the triangular factor is given."""
    half = _triangle(b, wide(b, factor), not upper)
    first, second = (turned(b, half), half) if upper else (half, turned(b, half))
    return _solved(b, second, _solved(b, first, b.cast(right, half.dtype)))


@primitive("MatrixPower")
def matrix_power(b: Builder, x: Value, *, n: int = 1) -> Value:
    """A product of equal matrices; of their inverses for a negative number."""
    factor = wide(b, x)
    if n < 0:
        factor, n = inverse_of(b, factor), -n
    found: Value | None = None
    while n:
        if n & 1:
            found = factor if found is None else b.op("MatMul", [found, factor])
        n >>= 1
        factor = b.op("MatMul", [factor, factor]) if n else factor
    return identity(b, factor, b.dim(x, -2), b.dim(x, -1)) if found is None else found


_TERMS = 18
"""Of the exponential's series, for matrices of norm 1 at most: the rest is below float64's precision."""


@primitive("MatrixExp")
def matrix_exp(b: Builder, x: Value) -> Value:
    """The exponential of each matrix: of a part by the series, then squared as often as it was halved."""
    whole = wide(b, x)
    rows = b.dim(x, -1)
    norm = b.op("ReduceMax", [total(b, b.op("Abs", [whole]))], {"keepdims": 0})
    half = b.op("Div", [b.op("Log", [b.op("Max", [norm, 1.0])]), float(np.log(2))])
    halved = b.op("Ceil", [half])
    small = b.op("Div", [whole, b.op("Pow", [b.value(2.0, whole.dtype), halved])])
    one = identity(b, whole, rows, rows)

    def term(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        place = b.cast(b.op("Sub", [b.value(_TERMS), turn]), whole.dtype)
        return [b.op("Add", [one, b.op("Div", [b.op("MatMul", [small, carried[0]]), place])])], None

    def square(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        return [b.op("MatMul", [carried[0], carried[0]])], None

    (series,) = repeated(b, _TERMS, [one], term)
    return repeated(b, b.cast(halved, INT64), [series], square)[0]


@dataclass(frozen=True)
class _LeastSquares:
    solution: Value
    values: Value
    """The matrix's singular values, as a row."""
    rank: Value


def _least_squares(
    b: Builder, matrix: Value, right: Value, precision: DType, weight: Value | None = None
) -> _LeastSquares:
    """The shortest of the solutions that miss the right side least; ``weight``: of the solution's length.
    What is 0 but for rounding to the precision counts as 0, as in LAPACK."""
    values, left, vectors = singular(b, matrix, complete=False)
    longest = b.op("Max", [b.value(b.dim(matrix, -2)), b.dim(matrix, -1)])
    least_part = b.op("Mul", [b.cast(longest, matrix.dtype), float(np.finfo(precision).eps)])
    counts = b.op("Greater", [values, b.op("Mul", [part(b, values, 0, 1, -1), least_part])])
    divisor = kept(b, counts, values, 1.0)
    if weight is not None:
        divisor = b.op("Add", [divisor, b.op("Div", [weight, divisor])])
    inverse = kept(b, counts, b.op("Reciprocal", [divisor]))
    solution = b.op("MatMul", [b.op("Mul", [vectors, inverse]), b.op("MatMul", [turned(b, left), right])])
    rank = b.op("ReduceSum", [b.cast(counts, INT64), b.ints((-2, -1))], {"keepdims": 0})
    return _LeastSquares(solution, values, rank)


def _columns_of(b: Builder, right: Value, matrix: Value) -> tuple[Value, bool]:
    """The right side as a matrix, and whether it was a vector."""
    flat = right.rank is not None and matrix.rank is not None and right.rank == matrix.rank - 1
    found = b.cast(right, matrix.dtype)
    return (b.unsqueeze(found, [-1]) if flat else found), flat


@primitive("Lstsq")
def lstsq(b: Builder, x: Value, a: Value, *, fast: Operand = True, l2_regularizer: Number = 0.0) -> Value:
    """Least squares of a matrix and right sides."""
    if l2_regularizer != 0:
        raise RefusedError("l2_regularizer must be 0, the only number for which MindSpore says what it gives")
    matrix = wide(b, x)
    right, _ = _columns_of(b, a, matrix)
    return _least_squares(b, matrix, right, x.dtype).solution


_DRIVERS = ("gels", "gelsy", "gelss", "gelsd")


@primitive("LstsqV2")
def lstsq_v2(b: Builder, a: Value, right: Value, *, driver: Operand = None) -> Operand:
    """The solution, and what a driver tells beside it: squared residuals where there are more rows than
    columns, ranks, and singular values. What it does not tell has no elements."""
    kind = "gelsy" if driver is None else b.text(driver, "driver", _DRIVERS)
    matrix = wide(b, a)
    sides, flat = _columns_of(b, right, matrix)
    found = _least_squares(b, matrix, sides, a.dtype)
    solution = b.squeeze(found.solution, [-1]) if flat else found.solution
    nothing = b.const([], matrix.dtype)
    rows, columns = b.dim(a, -2), b.dim(a, -1)
    if kind != "gelsy" and not (isinstance(rows, int) and isinstance(columns, int)):
        raise RefusedError(
            f"the matrix's lengths must be known for {kind}, for they decide whether there are residuals"
        )
    residuals = nothing
    if kind != "gelsy" and isinstance(rows, int) and isinstance(columns, int) and rows > columns:
        missed = b.op("Sub", [b.op("MatMul", [matrix, found.solution]), sides])
        residuals = row_of(b, total(b, b.op("Mul", [missed, missed])))
        residuals = b.squeeze(residuals, [-1]) if flat else residuals
    rank = b.const([], np.int64) if kind == "gels" else found.rank
    return solution, residuals, rank, row_of(b, found.values) if kind in {"gelss", "gelsd"} else nothing


@primitive("MatrixSolveLs")
def matrix_solve_ls(b: Builder, matrix: Value, right: Value, weight: Value, *, fast: bool = True) -> Value:
    """Least squares, the solution's length counting too where it is fast."""
    whole = wide(b, matrix)
    counted = b.cast(weight, whole.dtype) if fast else None
    return _least_squares(b, whole, b.cast(right, whole.dtype), matrix.dtype, counted).solution


def _vectors(b: Builder, packed: Value) -> Value:
    """Reflections' vectors, of which a matrix holds what is below the diagonal."""
    strict = b.op("Trilu", [packed, b.const(-1)], {"upper": 0})
    return b.op("Add", [strict, identity(b, packed, b.dim(packed, -2), b.dim(packed, -1))])


def _row(b: Builder, x: Value) -> Value:
    return b.cast(b.unsqueeze(x, [-2]), np.float64)


@primitive("Geqrf")
def geqrf(b: Builder, x: Value) -> Operand:
    """The triangular factor with the reflections' vectors below it, and by what each is scaled."""
    rest, vectors, scales = reflections(b, wide(b, x))
    rows, columns, count = b.dim(x, -2), b.dim(x, -1), b.dim(vectors, -1)
    below = b.op("Trilu", [vectors, b.const(-1)], {"upper": 0})
    if not isinstance(columns, int) or count != columns:
        left = b.op("Sub", [b.value(columns), count])
        shape = b.ints((rows, b.op("Add", [left, 1])))  # of no columns, ONNX Runtime expands nothing
        padded = b.op("Concat", [below, _zeros(b, below, shape)], {"axis": -1})
        below = part(b, padded, 0, columns, -1)
    return b.op("Add", [rest, below]), row_of(b, scales)


def _zeros(b: Builder, like: Value, shape: Value) -> Value:
    row = b.op("Mul", [part(b, like, 0, 1, -1), 0.0])
    return b.op("Expand", [row, shape])


@primitive("Orgqr")
def orgqr(b: Builder, x: Value, tau: Value) -> Value:
    """The first columns of the product of reflections."""
    packed, scales = wide(b, x), _row(b, tau)
    vectors = part(b, _vectors(b, packed), 0, b.dim(scales, -1), -1)
    return orthogonal_factor(b, vectors, scales, b.dim(x, -1))


@primitive("Ormqr")
def ormqr(
    b: Builder, x: Value, tau: Value, other: Value, *, left: bool = True, transpose: bool = False
) -> Value:
    """The product of reflections, or its transpose, times a matrix; from the other side if not ``left``."""
    scales = _row(b, tau)
    vectors = part(b, _vectors(b, wide(b, x)), 0, b.dim(scales, -1), -1)
    target = wide(b, other)
    if left:
        return reflected(b, vectors, scales, target, forward=transpose)
    return turned(b, reflected(b, vectors, scales, turned(b, target), forward=not transpose))


def _exchanged(b: Builder, x: Value, places: Value, first: Value, second: Value) -> Value:
    """Two rows exchanged: those where ``places`` are ``first`` and ``second``."""
    one, other = b.op("Equal", [places, first]), b.op("Equal", [places, second])
    top, low = (total(b, kept(b, at, x)) for at in (one, other))
    return kept(b, one, low, kept(b, other, top, x))


def _permuted(b: Builder, x: Value, pivots: Value, first: int) -> Value:
    """Rows exchanged one after the other, each with that of its pivot, counted from ``first``."""
    places = down(b, b.dim(x, -2))
    partners = b.op("Sub", [b.cast(b.unsqueeze(pivots, [-2]), INT64), first])

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        return [_exchanged(b, carried[0], places, turn, column(b, partners, turn))], None

    return repeated(b, b.dim(pivots, -1), [x], step)[0]


@primitive("LuSolve")
def lu_solve(b: Builder, right: Value, packed: Value, pivots: Value) -> Value:
    """What a matrix times is the right side, of which both triangular factors and the pivots are given."""
    both = wide(b, packed)
    sides, flat = _columns_of(b, right, both)
    # As many right sides as matrices: what is carried through a loop keeps its shape.
    sides = _permuted(b, b.op("Add", [sides, full(b, both, 1, 1, 0.0)]), pivots, 1)
    lower = inverse_of(b, _triangle(b, both, True, True))
    found = b.op("MatMul", [inverse_of(b, _triangle(b, both, False)), b.op("MatMul", [lower, sides])])
    return b.squeeze(found, [-1]) if flat else found


@primitive("LuUnpack")
def lu_unpack(
    b: Builder, packed: Value, pivots: Value, *, unpack_data: Operand = True, unpack_pivots: Operand = True
) -> Operand:
    """The permutation, the lower factor and the upper one, whose product the matrix was."""
    both = wide(b, packed)
    rows, columns = b.dim(packed, -2), b.dim(packed, -1)
    count = least(b, rows, columns)
    lower = part(b, _triangle(b, both, True), 0, count, -1)
    lower = b.op("Add", [b.op("Trilu", [lower, b.const(-1)], {"upper": 0}), identity(b, both, rows, count)])
    upper = part(b, _triangle(b, both, False), 0, count, -2)
    return turned(b, _permuted(b, identity(b, both, rows, rows), pivots, 1)), lower, upper


@primitive("LU")
def lu(b: Builder, x: Value) -> Operand:
    """Both factors in one matrix, the row that was taken as each pivot, and the permutation: elimination
    with the largest element of each column as its pivot."""
    whole = wide(b, x)
    rows, columns = b.dim(x, -2), b.dim(x, -1)
    count = least(b, rows, columns)
    places, every, some = down(b, rows), across(b, columns), across(b, count)

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        rest, pivots, order = carried
        below, right = b.op("Greater", [places, turn]), b.op("Greater", [every, turn])
        here = b.op("Abs", [column(b, rest, turn)])
        left = kept(b, b.op("Less", [places, turn]), -1.0, here)
        best = b.op("ArgMax", [left], {"axis": -2, "keepdims": 1})
        rest, order = (_exchanged(b, item, places, turn, best) for item in (rest, order))
        row = total(b, kept(b, b.op("Equal", [places, turn]), rest))
        pivot = column(b, row, turn)
        scaled = kept(b, below, b.op("Div", [column(b, rest, turn), pivot]))
        rest = kept(b, right, b.op("Sub", [rest, b.op("Mul", [scaled, row])]), rest)
        rest = kept(b, b.op("And", [below, b.op("Equal", [every, turn])]), scaled, rest)
        now = b.op("Equal", [some, turn])
        return [rest, kept(b, now, b.cast(best, np.float64), pivots), order], None

    start = [whole, full(b, whole, 1, count, 0.0), identity(b, whole, rows, rows)]
    packed, pivots, order = repeated(b, count, start, step)
    return packed, row_of(b, pivots), order
