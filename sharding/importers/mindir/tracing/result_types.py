"""What a MindIR file declares of nodes' results: their element types, and lengths that nothing else says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.importers.mindir.primitives.base import ABSENT, Absent, ComplexValue, RefusedError, TensorType

if TYPE_CHECKING:
    from sharding.importers.mindir.tracing.outcomes import Traced
    from sharding.importers.mindir.tracing.trace import Tracer


def settled(tracer: Tracer, result: Traced, types: Sequence[TensorType | None]) -> Traced:
    """A result with the element types and lengths that the file declares; raises `RefusedError`."""
    if isinstance(result, (list, tuple)):
        given = list(types) + [None] * (len(result) - len(types))
        made = tuple(_settled(tracer, item, kind) for item, kind in zip(result, given, strict=False))
        return (*made, *[ABSENT] * (len(types) - len(made)))
    return _settled(tracer, result, types[0] if len(types) == 1 else None)


def _settled(tracer: Tracer, result: Traced, kind: TensorType | None) -> Traced:
    if kind is None or result is None or isinstance(result, (tuple, list, Absent)):
        return result
    if isinstance(result, ComplexValue):
        for part in (result.real, result.imaginary):
            _settled(tracer, part, TensorType(part.dtype, kind.shape))
        result.shape = result.real.shape
        return result
    if kind.dtype.kind == "c":  # a file says so of a magnitude, too
        kind = TensorType(tracer.builder.value(result).dtype, kind.shape)
    value = tracer.builder.cast(tracer.builder.value(result, kind.dtype), kind.dtype)
    if kind.shape is None or value.sequence or not tracer.trusts_lengths:
        return value
    if value.shape is None:
        value.shape = kind.shape
    elif kind.shape == (None,) and tracer.version == 1 and len(value.shape) > 1:
        pass  # MindSpore 2.0 writes this where it does not know the number of axes
    elif len(value.shape) != len(kind.shape) or any(
        a is not None and b is not None and a != b for a, b in zip(value.shape, kind.shape, strict=True)
    ):
        raise RefusedError(
            f"its result has the shape {_shown(value.shape)}, but the file says {_shown(kind.shape)}"
        )
    else:
        value.shape = tuple(b if a is None else a for a, b in zip(value.shape, kind.shape, strict=True))
    return value


def _shown(shape: Sequence[int | None] | None) -> str:
    return "?" if shape is None else "[" + ", ".join("?" if n is None else str(n) for n in shape) + "]"
