"""Rules whose arithmetic with axes is intricate, proved on random shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sharding.slices.placement import Partial, Split
from tests.sharding.proof import Case, Const, options_of, prove

worlds = st.sampled_from((2, 3, 4))
lengths = st.sampled_from((1, 2, 3, 4, 5, 6, 8, 12))
shapes = st.lists(lengths, min_size=1, max_size=4)
few = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)


def _random(shape: list[int]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float32)


def _blocks(shape: list[int]) -> dict[int, tuple[int, ...]]:
    """All block counts that divide, so that every one of them is tried."""
    return {length: tuple(b for b in (2, 3, 4) if length % b == 0) for length in shape}


@st.composite
def reshapes(draw: Callable[[Any], Any]) -> tuple[list[int], list[int]]:
    """Two shapes of the same number of elements: one list of factors grouped in two ways."""
    factors = draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=2, max_size=6))

    def group() -> list[int]:
        cuts = sorted(draw(st.sets(st.integers(1, len(factors) - 1), max_size=3)))
        return [math.prod(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]

    return group(), group()


@few
@given(reshapes(), worlds, st.booleans(), st.booleans(), st.integers(-1, 3))
def test_reshape(
    pair: tuple[list[int], list[int]], world: int, computed: bool, copies: bool, unknown: int
) -> None:
    source, target = pair
    entries = list(target)
    if copies:  # 0 wherever the input has that length at the same place
        entries = [0 if i < len(source) and source[i] == n else n for i, n in enumerate(target)]
    if 0 <= unknown < len(entries):
        entries[unknown] = -1
    shape = np.asarray(entries, dtype=np.int64)
    case = Case(
        "Reshape",
        [_random(source), shape if computed else Const(shape)],
        block_counts=_blocks(source + target),
    )
    options = prove(case, world)
    plain = {option.inputs[0].axis for option in options if isinstance(option.inputs[0], Split)}
    # Whatever keeps its axis must be found: the same length after the same lengths.
    for axis, length in enumerate(source):
        if target[: axis + 1] == source[: axis + 1] and length % world == 0:
            assert axis in plain


@few
@given(reshapes(), worlds, st.sets(st.integers(0, 3)), st.booleans())
def test_reshape_with_symbols(
    pair: tuple[list[int], list[int]], world: int, hidden: set[int], declared: bool
) -> None:
    """Lengths that both sides share are symbols, as a batch is."""
    source, target = pair
    own: list[Any] = list(source)
    out: list[Any] = list(target)
    for axis in hidden:
        if axis < len(source) and target[: axis + 1] == source[: axis + 1]:
            own[axis], out[axis] = f"n{axis}", f"n{axis}" if declared else None
    case = Case(
        "Reshape",
        [_random(source), np.asarray(target, dtype=np.int64)],
        shapes={0: own},
        output_shapes={0: out},
        block_counts=_blocks(source + target),
    )
    prove(case, world)


@few
@given(shapes, worlds, st.randoms(use_true_random=False))
def test_transpose(shape: list[int], world: int, random: Any) -> None:
    perm = list(range(len(shape)))
    random.shuffle(perm)
    options = prove(Case("Transpose", [_random(shape)], {"perm": perm}, block_counts=_blocks(shape)), world)
    assert sum(option.inputs[0] == Split(i) for i in range(len(shape)) for option in options) == sum(
        length % world == 0 for length in shape
    )


@st.composite
def broadcasts(draw: Callable[[Any], Any]) -> list[list[int]]:
    """Shapes that broadcast together."""
    whole = draw(shapes)
    made = []
    for _ in range(draw(st.integers(2, 3))):
        part = [1 if draw(st.booleans()) else length for length in whole]
        made.append(part[draw(st.integers(0, len(part))) :])
    return made


@few
@given(broadcasts(), worlds, st.sampled_from(("Add", "Sub", "Mul", "Where", "Max")))
def test_broadcasting(parts: list[list[int]], world: int, op: str) -> None:
    arrays: list[Any] = [_random(shape) for shape in parts]
    if op == "Where":
        arrays = [arrays[0] > 0, *(arrays * 2)[1:3]]
    elif op != "Max":
        arrays = arrays[:2]
    prove(Case(op, arrays, block_counts=_blocks([n for shape in parts for n in shape])), world)


@st.composite
def products(draw: Callable[[Any], Any]) -> tuple[list[int], list[int]]:
    """Operands of a matrix product, with broadcast batch axes or vectors."""
    m, k, n = draw(lengths), draw(lengths), draw(lengths)
    batch = draw(st.lists(lengths, max_size=2))
    left = [1 if draw(st.booleans()) else length for length in batch]
    right = [1 if draw(st.booleans()) else length for length in batch]
    left, right = left[draw(st.integers(0, 2)) :], right[draw(st.integers(0, 2)) :]
    a = [k] if not left and draw(st.booleans()) else [*left, m, k]
    b = [k] if not right and draw(st.booleans()) else [*right, k, n]
    return a, b


@few
@given(products(), worlds)
def test_matmul(operands: tuple[list[int], list[int]], world: int) -> None:
    a, b = operands
    options = prove(Case("MatMul", [_random(a), _random(b)], block_counts=_blocks(a + b)), world)
    assert any(isinstance(option.outputs[0], Partial) for option in options) == (a[-1] % world == 0)


@few
@given(shapes, worlds, st.data())
def test_slice(shape: list[int], world: int, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True, min_size=1))
    bounds = st.integers(-14, 14) | st.sampled_from((0, 2**63 - 1, -(2**63) + 1))
    starts, ends = [data.draw(bounds) for _ in axes], [data.draw(bounds) for _ in axes]
    steps = [data.draw(st.sampled_from((1, 1, 1, 2, -1))) for _ in axes]
    assume(
        all(
            len(range(*slice(s, e, t).indices(shape[a])))
            for s, e, t, a in zip(starts, ends, steps, axes, strict=True)
        )
    )
    vectors = [Const(np.asarray(v, dtype=np.int64)) for v in (starts, ends, axes, steps)]
    prove(Case("Slice", [_random(shape), *vectors], opset=13, block_counts=_blocks(shape)), world)


@few
@given(shapes, worlds, st.data())
def test_reduce(shape: list[int], world: int, data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL1")))
    axes = data.draw(st.lists(st.sampled_from(range(-len(shape), len(shape))), max_size=3))
    assume(len({axis % len(shape) for axis in axes}) == len(axes))
    attributes = {
        "keepdims": data.draw(st.integers(0, 1)),
        "noop_with_empty_axes": data.draw(st.integers(0, 1)),
    }
    vector = Const(np.asarray(axes, dtype=np.int64))
    prove(Case(op, [_random(shape), vector], attributes, opset=18, block_counts=_blocks(shape)), world)


@few
@given(st.lists(st.sampled_from((2, 4, 6, 8, 12)), min_size=1, max_size=4), lengths, worlds, st.booleans())
def test_concat_and_split(sizes: list[int], other: int, world: int, first: bool) -> None:
    axis = 0 if first else 1
    parts = [_random([size, other] if first else [other, size]) for size in sizes]
    counts = _blocks([*sizes, sum(sizes), other])
    joined = prove(Case("Concat", parts, {"axis": axis}, block_counts=counts), world)
    vector = Const(np.asarray(sizes, dtype=np.int64))
    inputs = [np.concatenate(parts, axis=axis), vector]
    cut = prove(Case("Split", inputs, {"axis": axis}, 13, len(sizes), block_counts=counts), world)
    unit = math.gcd(*sizes)
    exact = any(option.outputs[0] == Split(axis, sum(sizes) // unit) for option in joined)
    assert exact >= (unit % world == 0)
    assert any(option.inputs[0] == Split(axis, sum(sizes) // unit) for option in cut) >= (unit % world == 0)


@few
@given(broadcasts(), worlds, st.booleans())
def test_expand(parts: list[list[int]], world: int, computed: bool) -> None:
    shape: Any = np.asarray(parts[1], dtype=np.int64)
    whole = list(np.broadcast_shapes(tuple(parts[0]), tuple(parts[1])))
    inputs = [_random(parts[0]), shape if computed else Const(shape)]
    prove(Case("Expand", inputs, block_counts=_blocks(whole)), world)


def test_nothing_is_offered_for_what_is_unknown() -> None:
    unknown = Case("MatMul", [_random([3, 12]), _random([12, 12])], shapes={0: None})
    assert options_of(unknown, 2) == []
    symbolic = Case("Softmax", [_random([2, 3])], shapes={0: ["n", 3]})
    assert options_of(symbolic, 2) == []
