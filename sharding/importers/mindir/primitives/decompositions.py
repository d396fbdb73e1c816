"""Matrices decomposed: by reflections (QR), by rotations (singular values, eigenvalues of symmetric ones).

Reflections are those of LAPACK and Eigen, so that signs are MindSpore's too. The signs of singular vectors
and of eigenvectors are nobody's: any is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharding.importers.mindir.primitives.base import ABSENT, Absent, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import INT64, Builder
from sharding.importers.mindir.primitives.steps import (
    Length,
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

_SWEEPS = 40
"""At most, over all pairs of columns; ten do for what is no accident."""
_ORTHOGONAL = 1e-15
"""Cosine of the angle at which columns need no rotation."""
_MODES = ("reduced", "complete", "r")


def reflections(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """What the matrix becomes, upper triangular; the vectors of the reflections that do it, as columns, each
    with a 1 on the diagonal and zeros above; and by what each is scaled, as a row."""
    rows, columns = b.dim(x, -2), b.dim(x, -1)
    count = least(b, rows, columns)
    places, every, some = down(b, rows), across(b, columns), across(b, count)

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        rest, vectors, scales = carried
        at, below = b.op("Equal", [places, turn]), b.op("Greater", [places, turn])
        here = column(b, rest, turn)
        head, tail = total(b, kept(b, at, here)), kept(b, below, here)
        square = total(b, b.op("Mul", [tail, tail]))
        done = b.op("Equal", [square, 0.0])
        length = b.op("Sqrt", [b.op("Add", [b.op("Mul", [head, head]), square])])
        signed = kept(b, b.op("Less", [head, 0.0]), length, b.op("Neg", [length]))
        change = kept(b, done, 1.0, b.op("Sub", [signed, head]))
        scale = kept(b, done, 0.0, b.op("Div", [change, kept(b, done, 1.0, signed)]))
        vector = kept(b, at, 1.0, b.op("Neg", [b.op("Div", [tail, change])]))
        cleared = b.op("And", [below, b.op("Equal", [every, turn])])
        now = b.op("Equal", [some, turn])
        return (
            kept(b, cleared, 0.0, _reflected(b, rest, vector, scale)),
            kept(b, now, vector, vectors),
            kept(b, now, scale, scales),
        ), None

    start = [x, full(b, x, rows, count, 0.0), full(b, x, 1, count, 0.0)]
    rest, vectors, scales = repeated(b, count, start, step)
    return rest, vectors, scales


def _reflected(b: Builder, x: Value, vector: Value, scale: Value) -> Value:
    along = total(b, b.op("Mul", [vector, x]))
    return b.op("Sub", [x, b.op("Mul", [b.op("Mul", [scale, vector]), along])])


def reflected(b: Builder, vectors: Value, scales: Value, x: Value, *, forward: bool = False) -> Value:
    """The product of all reflections times a matrix; ``forward``: of its transpose."""
    count = b.dim(vectors, -1)

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        place = turn if forward else b.op("Sub", [b.op("Sub", [b.value(count), 1]), turn])
        vector, scale = column(b, vectors, place), column(b, scales, place)
        return [_reflected(b, carried[0], vector, scale)], None

    return repeated(b, count, [x], step)[0]


def orthogonal_factor(b: Builder, vectors: Value, scales: Value, columns: Length) -> Value:
    """The first columns of the product of reflections."""
    rows = b.dim(vectors, -2)
    return reflected(b, vectors, scales, identity(b, vectors, rows, columns))


def factors(b: Builder, x: Value, complete: bool) -> tuple[Value, Value]:
    """An orthogonal matrix and an upper triangular one, whose product it is."""
    rest, vectors, scales = reflections(b, x)
    inner = b.dim(x, -2) if complete else b.dim(vectors, -1)
    return orthogonal_factor(b, vectors, scales, inner), part(b, rest, 0, inner, -2)


@primitive("Qr")
def qr(b: Builder, x: Value, *, full_matrices: bool = False) -> Operand:
    """The orthogonal factor and the triangular one."""
    return factors(b, wide(b, x), full_matrices)


@primitive("LinalgQr")
def linalg_qr(b: Builder, x: Value, *, mode: Operand = 0) -> Operand:
    """The same; of mode ``r`` without the orthogonal one."""
    kind = b.text(mode, "mode", _MODES)
    orthogonal, triangular = factors(b, wide(b, x), kind == "complete")
    return (b.const([], x.dtype) if kind == "r" else orthogonal), triangular


def rotated(b: Builder, x: Value) -> tuple[Value, Value]:
    """The matrix with orthogonal columns, the longest first, and the rotations that make them so: what comes
    out is the matrix times these.

    One-sided Jacobi. Half of the columns meet the other half in each turn, all pairs at once; then all but
    the first move on by one place, as in a tournament, so that after a sweep each pair has met.
    """
    rows, columns = b.dim(x, -2), b.dim(x, -1)
    half = b.op("Add", [b.op("Div", [b.value(columns), 2]), 1])
    players = b.op("Mul", [half, 2])
    # One or two guests, columns of zeros that no rotation changes: an even number plays.
    guests = full(b, x, rows, b.op("Sub", [players, columns]), 0.0)
    joined = [b.op("Concat", [x, guests], {"axis": -1}), identity(b, x, players, players)]
    sweep = b.op("Sub", [players, 1])

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        upper, lower = part(b, carried[0], 0, half, -1), part(b, carried[0], half, players, -1)
        top, low = part(b, upper, 0, rows, -2), part(b, lower, 0, rows, -2)
        first, second = (total(b, b.op("Mul", [item, item])) for item in (top, low))
        between = total(b, b.op("Mul", [top, low]))
        lengths = b.op("Mul", [b.op("Sqrt", [first]), b.op("Sqrt", [second])])
        away = b.op("Greater", [b.op("Abs", [between]), b.op("Mul", [lengths, _ORTHOGONAL])])
        cosine, sine = _rotation(b, away, b.op("Sub", [second, first]), between)
        upper, lower = (
            b.op("Sub", [b.op("Mul", [cosine, upper]), b.op("Mul", [sine, lower])]),
            b.op("Add", [b.op("Mul", [sine, upper]), b.op("Mul", [cosine, lower])]),
        )
        any_away = b.op("ReduceMax", [b.cast(away, INT64)], {"keepdims": 0})
        quiet = b.op("Mul", [b.op("Add", [carried[1], 1]), b.op("Sub", [b.value(1), any_away])])
        return [_moved_on(b, upper, lower, half), quiet], b.op("Less", [quiet, sweep])

    start = [b.op("Concat", joined, {"axis": -2}), b.const(0)]
    found, _ = repeated(b, b.op("Mul", [sweep, _SWEEPS]), start, step)
    return _sorted(b, found, rows, columns)


def _rotation(b: Builder, away: Value, difference: Value, between: Value) -> tuple[Value, Value]:
    """Cosine and sine of the smaller angle that makes two columns orthogonal; 1 and 0 where they are."""
    double = b.op("Mul", [between, 2.0])
    squares = b.op("Add", [b.op("Mul", [difference, difference]), b.op("Mul", [double, double])])
    below = b.op("Add", [b.op("Abs", [difference]), b.op("Sqrt", [squares])])
    signed = kept(b, b.op("Less", [difference, 0.0]), b.op("Neg", [double]), double)
    tangent = kept(b, away, b.op("Div", [signed, kept(b, b.op("Greater", [below, 0.0]), below, 1.0)]))
    one = b.op("Add", [b.op("Mul", [tangent, tangent]), 1.0])
    cosine = b.op("Reciprocal", [b.op("Sqrt", [one])])
    return cosine, b.op("Mul", [cosine, tangent])


def _moved_on(b: Builder, upper: Value, lower: Value, half: Value) -> Value:
    """The next pairs: a0 a1 a2 over b0 b1 b2 becomes a0 b0 a1 over b1 b2 a2."""
    others = part(b, upper, 1, half, -1)
    ends = [
        b.op("Slice", [others, b.ints(first), b.ints(last), b.ints((-1,))])
        for first, last in ((0, -1), (-1, 2**62))
    ]
    order = [
        part(b, upper, 0, 1, -1),
        part(b, lower, 0, 1, -1),
        ends[0],
        part(b, lower, 1, half, -1),
        ends[1],
    ]
    return b.op("Concat", order, {"axis": -1})


def _sorted(b: Builder, x: Value, rows: Length, columns: Length) -> tuple[Value, Value]:
    """Columns by their lengths, without the guests; those of the matrix and those of the rotations."""
    end = b.op("Add", [b.value(rows), columns])
    top = part(b, x, 0, rows, -2)
    guests = total(b, b.op("Slice", [x, b.ints(end), b.ints(2**62), b.ints((-2,))]))
    lengths = b.op("Sub", [total(b, b.op("Mul", [top, top])), guests])
    order = b.ops("TopK", [lengths, b.ints(columns)], {"axis": -1}, outputs=2)[1]
    shape = b.ints((end, 1))
    both = part(b, x, 0, end, -2)
    found = b.op("GatherElements", [both, b.op("Expand", [order, shape])], {"axis": -1})
    return part(b, found, 0, rows, -2), part(b, found, rows, end, -2)


def _images(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Singular values as a row, what the right vectors become, each of any length, and these."""
    unit, scaled = _scaled(b, x)
    images, right = rotated(b, scaled)
    images = part(b, images, 0, least(b, b.dim(x, -2), b.dim(x, -1)), -1)
    lengths = b.op("Sqrt", [total(b, b.op("Mul", [images, images]))])
    return b.op("Mul", [lengths, unit]), images, right


def singular_values(b: Builder, x: Value) -> Value:
    """As a row, the largest first."""
    rows, columns = b.dim(x, -2), b.dim(x, -1)
    flat = isinstance(rows, int) and isinstance(columns, int) and rows < columns
    return _images(b, turned(b, x) if flat else x)[0]


def singular(b: Builder, x: Value, complete: bool) -> tuple[Value, Value, Value]:
    """Singular values as a row, the largest first; the left vectors and the right ones, as columns."""
    rows, columns = b.dim(x, -2), b.dim(x, -1)
    if isinstance(rows, int) and isinstance(columns, int) and rows < columns:
        values, right, left = singular(b, turned(b, x), complete)
        return values, left, right
    count = least(b, rows, columns)
    values, images, right = _images(b, x)
    # Reflections make orthogonal columns those of the identity, but for sign and length: their product is
    # the vectors, and what completes them where a singular value is 0.
    rest, vectors, scales = reflections(b, images)
    left = orthogonal_factor(b, vectors, scales, rows if complete else count)
    on = b.cast(b.op("Equal", [down(b, rows), across(b, count)]), x.dtype)
    diagonal = total(b, b.op("Mul", [rest, on]))
    signs = kept(b, b.op("Less", [diagonal, 0.0]), -1.0, 1.0)
    turned_left = b.op("Mul", [part(b, left, 0, count, -1), signs])
    if complete:
        others = b.op("Slice", [left, b.ints(count), b.ints(2**62), b.ints((-1,))])
        turned_left = b.op("Concat", [turned_left, others], {"axis": -1})
    right = right if complete else part(b, right, 0, count, -1)
    return values, turned_left, right


def _scaled(b: Builder, x: Value) -> tuple[Value, Value]:
    """The largest magnitude of each matrix, and the matrices divided by it: squares then stay in range."""
    largest = b.op("Abs", [x])
    for axis in (-1, -2):
        largest = _largest(b, largest, axis)
    unit = kept(b, b.op("Greater", [largest, 0.0]), largest, 1.0)
    return unit, b.op("Div", [x, unit])


def _largest(b: Builder, x: Value, axis: int) -> Value:
    return b.op("ReduceMax", [x, b.ints((axis,))], {"keepdims": 1})


def row_of(b: Builder, x: Value) -> Value:
    """A row without its axis."""
    return b.squeeze(x, [-2])


@primitive("Svd")
def svd(
    b: Builder, x: Value, *, full_matrices: bool = False, compute_uv: bool = True
) -> tuple[Value | Absent, ...]:
    """Singular values, the largest first, and the vectors."""
    if not compute_uv:
        return row_of(b, singular_values(b, wide(b, x))), ABSENT, ABSENT
    values, left, right = singular(b, wide(b, x), full_matrices)
    return row_of(b, values), left, right


@primitive("Eigh", rank=2)
def eigh(b: Builder, x: Value, *, compute_eigenvectors: bool = True, lower: bool = True) -> Operand:
    """Eigenvalues of a symmetric matrix, the smallest first, and the vectors. Of several matrices MindSpore
    gives neither."""
    if x.rank != 2:
        raise RefusedError(f"it is for a single matrix, found {x.rank} axes")
    values, vectors = symmetric(b, wide(b, x), lower)
    return (values, vectors) if compute_eigenvectors else values


def symmetric(b: Builder, x: Value, lower: bool) -> tuple[Value, Value]:
    """The same, of the symmetric matrix whose lower or upper half it is. With a multiple of the identity
    added, which makes all eigenvalues positive, singular vectors are eigenvectors."""
    half = b.op("Trilu", [x], {"upper": int(not lower)})
    strict = b.op("Trilu", [half, b.const(-1 if lower else 1)], {"upper": int(not lower)})
    whole = b.op("Add", [half, turned(b, strict)])
    unit, scaled = _scaled(b, whole)
    rows = b.dim(x, -1)
    shift = _largest(b, total(b, b.op("Abs", [scaled])), -1)
    moved = b.op("Add", [scaled, b.op("Mul", [identity(b, x, rows, rows), shift])])
    _, vectors = rotated(b, moved)
    vectors = b.op("Slice", [vectors, b.ints(-1), b.ints(-(2**62)), b.ints((-1,)), b.ints(-1)])
    values = total(b, b.op("Mul", [vectors, b.op("MatMul", [scaled, vectors])]))
    return row_of(b, b.op("Mul", [values, unit])), vectors
