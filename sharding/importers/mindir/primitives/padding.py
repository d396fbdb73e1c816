"""Padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import Builder, Ints, Number, flattened, known_rank, ranked
from sharding.importers.mindir.primitives.running import flipped

# Padding


def padded(
    b: Builder, x: Value, pairs: Sequence[tuple[int, int]], mode: str = "constant", value: Operand = None
) -> Value:
    """Padded by (before, after) along each axis; negative numbers take away."""
    if not any(before or after for before, after in pairs):
        return x
    # Of an unknown number of axes, the pairs are those of the last ones.
    axes = None if x.shape is not None else b.ints(tuple(range(-len(pairs), 0)))
    amounts = [before for before, _ in pairs] + [after for _, after in pairs]
    filler = filler_of(b, x, value) if mode == "constant" else None
    if mode != "constant" and any(item < 0 for item in amounts):
        starts = tuple(-min(before, 0) for before, _ in pairs)
        ends = tuple(min(after, 0) or 2**62 for _, after in pairs)
        x = b.op("Slice", [x, b.ints(starts), b.ints(ends), axes or b.ints(tuple(range(len(pairs))))])
        amounts = [max(item, 0) for item in amounts]
    return b.op("Pad", [x, b.const(amounts, np.int64), filler, axes], {"mode": mode})


def pairs_from_last(x: Value, amounts: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each axis from a list that begins with the last axis; of an unknown number of axes,
    those of the last ones."""
    rank = x.rank if x.rank is not None else len(amounts) // 2
    if len(amounts) % 2 or len(amounts) > 2 * rank:
        raise RefusedError(f"paddings {list(amounts)} do not fit a tensor with {rank} axes")
    pairs = [(0, 0)] * rank
    for i in range(len(amounts) // 2):
        pairs[rank - 1 - i] = (amounts[2 * i], amounts[2 * i + 1])
    return pairs


def _rows(b: Builder, paddings: Operand, x: Value) -> list[tuple[int, int]]:
    """(before, after) of each axis from a table with a row for each."""
    found = b.integers(flattened(paddings), "paddings")
    if x.rank is not None and len(found) != 2 * x.rank:
        raise RefusedError(f"paddings {list(found)} do not fit a tensor with {x.rank} axes")
    return [(found[2 * i], found[2 * i + 1]) for i in range(len(found) // 2)]


@primitive("Pad")
def pad(b: Builder, x: Value, *, paddings: Operand = ()) -> Value:
    """Zeros around."""
    return padded(b, x, _rows(b, paddings, x))


@primitive("PadV3")
def pad_v3(
    b: Builder,
    x: Value,
    paddings: Operand,
    value: Operand = None,
    *,
    mode: Operand = "constant",
    paddings_contiguous: bool = True,
) -> Value:
    """A constant, the nearest edge, a reflection, or the other end; the list begins with the last axis."""
    kind = b.text(mode, "mode", ("constant", "reflect", "edge", "circular"))
    if kind != "circular" and paddings_contiguous and b.known_ints(flattened(paddings)) is None:
        return _padded_later(b, x, flattened(paddings), kind, value)
    found = b.integers(flattened(paddings), "paddings")
    if not paddings_contiguous:
        half = len(found) // 2
        found = tuple(found[i // 2 + (half if i % 2 else 0)] for i in range(len(found)))
    if kind == "circular":
        return _with_ends(b, x, pairs_from_last(x, found), circular=True)
    return padded(b, x, pairs_from_last(x, found), kind, value)


def _padded_later(b: Builder, x: Value, paddings: Operand, mode: str, value: Operand) -> Value:
    """Padded by amounts that only a run tells, in a list that begins with the last axis."""
    amounts, rank = b.ints(paddings), known_rank(x)
    count = amounts.shape[0] if amounts.shape is not None else None
    if count is None or count % 2 or count > 2 * rank:
        raise RefusedError(f"a list of {count or '?'} paddings does not fit a tensor with {rank} axes")
    places = [2 * (rank - 1 - axis) for axis in range(rank)]
    order = [min(place, count) for place in places] + [min(place + 1, count) for place in places]
    zeros = b.const([0], np.int64)
    found = b.op("Gather", [b.op("Concat", [amounts, zeros], {"axis": 0}), b.const(order, np.int64)])
    return b.op("Pad", [x, found, None if mode != "constant" else filler_of(b, x, value)], {"mode": mode})


def filler_of(b: Builder, x: Value, value: Operand) -> Value | None:
    """What constant padding is filled with; None for zeros."""
    return None if value is None else b.single(value, x.dtype)


def _with_ends(b: Builder, x: Value, pairs: Sequence[tuple[int, int]], *, circular: bool) -> Value:
    """Each axis with its other end around it, or with its own end in reverse."""
    for axis, (before, after) in enumerate(pairs, 0 if x.rank is not None else -len(pairs)):
        place, parts = b.ints((axis,)), [x]
        if before < 0 or after < 0:
            raise RefusedError("a padding of this kind cannot be negative")
        for count, at_front in ((before, not circular), (after, circular)):
            start, end = (0, count) if at_front else (-count, 2**62)
            if count:
                part = b.op("Slice", [x, b.ints((start,)), b.ints((end,)), place])
                parts.append(part if circular else flipped(b, part, [axis]))
        if before:
            parts.insert(0, parts.pop(1))
        x = b.op("Concat", parts, {"axis": axis}) if len(parts) > 1 else x
    return x


@primitive("MirrorPad")
def mirror_pad(b: Builder, x: Value, paddings: Operand, *, mode: Operand = "REFLECT") -> Value:
    """A reflection around, without the edge itself (REFLECT) or with it (SYMMETRIC)."""
    pairs = _rows(b, paddings, x)
    x = ranked(x, len(pairs))
    if b.text(mode, "mode", ("reflect", "symmetric")) == "reflect":
        return padded(b, x, pairs, "reflect")
    return _with_ends(b, x, pairs, circular=False)


@primitive("ConstantPadND")
def constant_pad(b: Builder, x: Value, *, padding: Ints = (), value: Number = 0.0) -> Value:
    """One number around; the list begins with the last axis."""
    return padded(b, x, pairs_from_last(x, padding), "constant", value)


@table({
    tuple(f"{kind}Pad{count}D" for count in (1, 2, 3)): mode
    for kind, mode in (("Reflection", "reflect"), ("Replication", "edge"))
})  # fmt: skip
def mirrored(mode: str, b: Builder, x: Value, *, padding: Ints = ()) -> Value:
    """A reflection without the edge, or the nearest edge; the list begins with the last axis."""
    return padded(b, x, pairs_from_last(x, padding), mode)
