"""Weights by name, mapped from the files that hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.common.registry import Names, Registry
from sharding.common.text import one_line, shortened
from sharding.errors import ModelError

CHUNK = 8 << 20
MOST_AXES = 64
"""numpy's own limit; hostile files have more."""


@dataclass(frozen=True)
class Entry:
    """One tensor: its elements in C order, little-endian, in ``parts`` one after the other."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        return sum(len(part) for part in self.parts)

    def array(self) -> Array:
        """The tensor: a view of the file where that is aligned, else a copy."""
        data = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        flat: Array = np.frombuffer(data, np.uint8)
        if not flat.size:
            return np.empty(self.shape, self.dtype)
        if flat.ctypes.data % self.dtype.itemsize:
            flat = flat.copy()
        return flat.view(self.dtype).reshape(self.shape)

    def chunks(self, dtype: DType | None = None) -> Iterator[bytes]:
        """The bytes in pieces of a few MB, as elements of ``dtype`` if that is another one (`cast`)."""
        for part in self.parts:
            for start in range(0, len(part), CHUNK):
                piece = part[start : start + CHUNK]
                if dtype is None or dtype == self.dtype:
                    yield bytes(piece)
                else:
                    elements = np.frombuffer(piece, np.uint8).view(self.dtype)
                    yield cast(elements, dtype, f"The weight {self.name!r}").tobytes()


@dataclass
class Checkpoint:
    """A checkpoint that was opened. ``format`` is what a person calls it, ``files`` are all that hold it."""

    path: Path
    format: str
    entries: dict[str, Entry]
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class CheckpointFormat:
    """One format: a module of `sharding.importers.checkpoints.formats` holds one, and has its name."""

    is_it: Callable[[Path, bytes], bool]
    """Whether a file that none before it has taken is of it, by its path and its first 70,000 bytes."""
    read: Callable[..., Checkpoint]
    """``read(path)`` opens it, ``read(path, key)`` where it is ``keyed``. Raises `ModelError`."""
    order: int = 0
    """Of ours, the one with the lowest is asked first; those of other packages come after ours."""
    keyed: bool = False
    """Whether a file of it may be encrypted."""
    part: bool = True
    """Whether an index may name files of it."""


FORMATS: Registry[CheckpointFormat] = Registry(
    Names("sharding/importers/checkpoints/formats", "shardrun.checkpoints"), CheckpointFormat
)


def check_entry(entry: Entry, what: str) -> Entry:
    """The entry itself. Raises `ModelError` unless its bytes are those that its type and shape need."""
    # numpy refuses an array without elements, too, whose other axes are so long.
    longest = math.prod(length or 1 for length in entry.shape) * entry.dtype.itemsize
    if len(entry.shape) > MOST_AXES or min(entry.shape, default=0) < 0 or longest >= 1 << 63:
        raise ModelError(f"{what} has the impossible shape {list(entry.shape)[:8]}.")
    needed = math.prod(entry.shape) * entry.dtype.itemsize
    if needed != entry.nbytes:
        raise ModelError(
            f"{what} needs {needed} bytes for its type {entry.dtype} and shape {list(entry.shape)}, but has "
            f"{entry.nbytes}."
        )
    if any(len(part) % entry.dtype.itemsize for part in entry.parts):
        raise ModelError(f"{what} is cut into parts that do not hold whole elements.")
    return entry


def shown_name(name: str) -> str:
    """A name in a file, for people: quoted, on one line, and not endless."""
    return repr(shortened(one_line(name), 100))


def bytes_of(array: Array) -> memoryview:
    """The bytes of an array that lies in C order."""
    return array.reshape(-1).view(np.uint8).data.toreadonly()


def special_dtype(name: str) -> DType:
    """A type that numpy itself lacks, such as ``bfloat16``."""
    import ml_dtypes

    found: DType = np.dtype(getattr(ml_dtypes, name))
    return found


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object's dictionary (``object_pairs_hook``). Raises `ValueError` for a name that is there twice,
    of which `json` would keep the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def cast(array: Array, dtype: DType, what: str) -> Array:
    """Elements as another type. Raises `ModelError` where a number would become infinite or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype)
    if dtype.itemsize <= array.dtype.itemsize:
        lost = np.isfinite(array) & ~np.isfinite(found)
        if lost.any():
            raise ModelError(
                f"{what} has the value {array[lost].reshape(-1)[0]}, which is too large for {dtype}; the "
                f"file has it as {array.dtype}: convert a network that keeps its weights in that type."
            )
    return found
