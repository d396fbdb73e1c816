"""What numpy-based collectives share: checks of buffers, and the sum over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ranks.common.tensors import name_of
from ranks.errors import CollectiveError
from sharding.common.arrays import Array

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer

# Name and code of every element type that collectives move; the extension types come from ml_dtypes.
_NAMES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"),
)
CODES = {name: code for code, name in enumerate(_NAMES, 1)}
NOT_SUMMED = {"bool", *(name for name in _NAMES if name.startswith("float8") or name.endswith("int4"))}
_NARROW = {"float16", "bfloat16"}


def check(buffer: object, what: str, *, written: bool) -> Array:
    """``buffer`` itself, where it is an array that collectives can work on; else a `CollectiveError`."""
    if not isinstance(buffer, np.ndarray):
        raise CollectiveError(f"{what}: the buffer must be a numpy array, but is {type(buffer).__name__}.")
    if name_of(buffer.dtype) not in CODES or not buffer.dtype.isnative:
        raise CollectiveError(
            f"{what}: arrays of {buffer.dtype} cannot be sent; the types are {', '.join(_NAMES)}."
        )
    if not buffer.flags.c_contiguous:
        raise CollectiveError(
            f"{what}: the buffer of shape {buffer.shape} and strides {buffer.strides} is not C-contiguous; "
            "pass numpy.ascontiguousarray of it."
        )
    if written and not buffer.flags.writeable:
        raise CollectiveError(
            f"{what}: the buffer of shape {buffer.shape} is read-only; pass a writable copy."
        )
    return buffer


def check_sum(buffer: object) -> Array:
    """As `check`, for a buffer to be summed over ranks."""
    array = check(buffer, "all_reduce", written=True)
    if name_of(array.dtype) in NOT_SUMMED:
        raise CollectiveError(
            f"all_reduce: arrays of {array.dtype} cannot be summed; convert them to another type."
        )
    return array


def check_gather(buffer: object, out: Buffer, axis: int, size: int) -> tuple[int, int]:
    """Elements before and from ``axis`` on, of one rank's buffer; raises where ``out`` does not fit."""
    source, target = check(buffer, "all_gather", written=False), check(out, "all_gather", written=True)
    if not -source.ndim <= axis < source.ndim:
        raise CollectiveError(f"all_gather: axis {axis} does not exist in a buffer of shape {source.shape}.")
    axis %= source.ndim
    wanted = (*source.shape[:axis], source.shape[axis] * size, *source.shape[axis + 1 :])
    if target.shape != wanted or target.dtype != source.dtype:
        raise CollectiveError(
            f"all_gather along axis {axis} over {size} ranks of {source.dtype}{list(source.shape)} needs an "
            f"output of {source.dtype}{list(wanted)}, but it is {target.dtype}{list(target.shape)}."
        )
    outer = 1
    for extent in source.shape[:axis]:
        outer *= extent
    return outer, source.size // outer if outer else 0


def check_exchange(buffer: object, out: Buffer, size: int) -> None:
    """Raises where all_to_all cannot exchange ``buffer`` for ``out``."""
    source, target = check(buffer, "all_to_all", written=False), check(out, "all_to_all", written=True)
    if source.shape != target.shape or source.dtype != target.dtype:
        raise CollectiveError(
            f"all_to_all: buffer {source.dtype}{list(source.shape)} and output "
            f"{target.dtype}{list(target.shape)} must have one type and shape."
        )
    if not source.ndim or source.shape[0] % size:
        raise CollectiveError(
            f"all_to_all: axis 0 of a buffer of shape {source.shape} does not divide into {size} equal parts."
        )
    if source.size and np.may_share_memory(source, target):
        raise CollectiveError("all_to_all: buffer and output must not share memory.")


def check_peer(what: str, peer: int, rank: int, size: int) -> None:
    """Raises where ``peer`` is not another rank of the group."""
    if not isinstance(peer, (int, np.integer)) or not 0 <= peer < size or peer == rank:
        raise CollectiveError(f"{what}: rank {rank} of {size} cannot exchange with rank {peer!r}.")


def sum_into(out: Array, parts: Sequence[Array]) -> None:
    """Writes the sum of two or more ``parts`` to ``out``, always added from first to last.

    Where more than two float16 or bfloat16 parts are added, the sum is kept in float32 and rounded once.
    ``out`` may be one of the parts only where there are two, or where it is the first.
    """
    if len(parts) > 2 and name_of(out.dtype) in _NARROW:
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            np.add(total, part, out=total, dtype=np.float32)
        out[...] = total
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)


def blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
    """Cuts a matrix into blocks of at most ``most`` elements; an empty one into one empty block."""
    rows, columns = shape
    if not rows * columns:
        yield slice(0, rows), slice(0, columns)
        return
    wide = min(columns, most)
    high = max(1, most // columns)
    for row in range(0, rows, high):
        for column in range(0, columns, wide):
            yield slice(row, min(row + high, rows)), slice(column, min(column + wide, columns))


def split(count: int, size: int) -> list[slice]:
    """``count`` elements in ``size`` nearly equal parts, whose borders do not share a cache line."""
    share = -(-count // size)
    share = -(-share // 64) * 64
    return [slice(min(rank * share, count), min((rank + 1) * share, count)) for rank in range(size)]
