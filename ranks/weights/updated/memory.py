"""Variable weights in memory that other processes map: sealed files without names, and a page with a version.

Each update's new values are one file, sealed before anyone gets it, so that nobody can change or shorten what
others have mapped. A page of its own says which version is the newest; only the owner can write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from ranks.common import forks
from ranks.common.descriptors import close_all
from ranks.common.tensors import element_dtype
from ranks.errors import ShardrunError, WeightsError
from ranks.weights.updated.values import Snapshot, Spec, number_of
from sharding.common.storage import PAGE

if TYPE_CHECKING:
    import onnxruntime as ort

    from sharding.common.arrays import Array, DType


"""Bytes of the page with the version (8 bytes, little-endian), and the alignment of values in a file."""
MOST_FILES = 16
"""Files that a version is spread over at most; then its values are written anew into one. One message over a
socket can carry 253."""
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1: fcntl has no name for it
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SEAL") else 0

Value = tuple[int, tuple[int, ...], int, int]
"""Element type, shape, number of the file, offset in it."""


class File:
    """A sealed file and its mapping, let go of when nothing refers to it any more. Number 0 is the page."""

    def __init__(self, descriptor: int, number: int, size: int) -> None:
        self.descriptor, self.number = descriptor, number
        # Linux before 6.7 refuses shared mappings of a file that is sealed against writing. A private one
        # that cannot be written to has the same pages.
        kind = mmap.MAP_PRIVATE if number else mmap.MAP_SHARED
        self.map = mmap.mmap(descriptor, size, kind, mmap.PROT_READ)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


@dataclass(frozen=True)
class Region:
    """A value in a file; ``array`` is a view of it that nobody can write to."""

    file: File
    offset: int
    array: Array


class Published:
    """The owner's side."""

    def __init__(self, version: int) -> None:
        self._regions: dict[str, Region] = {}
        self._count = 0
        self._version = version
        self._page = _create("version", PAGE)
        try:
            self._map = mmap.mmap(self._page, PAGE)
            fcntl.fcntl(self._page, fcntl.F_ADD_SEALS, _SEALS | _FUTURE_WRITE)
        except OSError as error:
            os.close(self._page)
            raise WeightsError(f"Variable weights cannot be shared: {error.strerror or error}.") from None
        self._cell = np.frombuffer(self._map, "<u8", 1)

    def place(self, arrays: Mapping[str, Array]) -> dict[str, Region]:
        """Copies values into a new file. They are not announced yet. Raises `WeightsError`."""
        kept = {name: region for name, region in self._regions.items() if name not in arrays}
        if arrays and len({id(region.file) for region in kept.values()}) >= MOST_FILES - 1:
            arrays = {**{name: region.array for name, region in kept.items()}, **arrays}
        offsets, size = {}, 0
        for name, array in arrays.items():
            offsets[name] = size
            size += -(-array.nbytes // PAGE) * PAGE
        self._count += 1
        descriptor = _create(f"weights {self._count}", max(size, PAGE))
        try:
            for name, array in arrays.items():
                _write(descriptor, array, offsets[name])
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_WRITE)
            file = File(descriptor, self._count, max(size, PAGE))
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise WeightsError(f"The new weights take {size} bytes of shared memory: {error}.") from None
        return {
            name: Region(file, offset, _view(file.map, offset, array.dtype, array.shape))
            for (name, offset), array in zip(offsets.items(), arrays.values(), strict=True)
        }

    def publish(self, version: int, regions: Mapping[str, Region]) -> None:
        """Makes these values part of the version, and tells everyone that it is there."""
        self._regions.update(regions)
        self._version = version
        self._cell[0] = version

    def describe(self) -> tuple[dict[str, object], list[int]]:
        """The version in words, and copies of its files: first the page, then those in "files"."""
        files = {region.file.number: region.file for region in self._regions.values()}
        description = {
            "version": self._version,
            "files": list(files),
            "values": [
                [name, number_of(item.array.dtype), list(item.array.shape), item.file.number, item.offset]
                for name, item in self._regions.items()
            ],
        }
        copies: list[int] = []
        try:
            for descriptor in (self._page, *(file.descriptor for file in files.values())):
                copies.append(os.dup(descriptor))
        except OSError as error:
            for descriptor in copies:
                os.close(descriptor)
            raise WeightsError(f"Files of shared weights cannot be copied: {error.strerror}.") from None
        return description, copies

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._page)


class _Description(TypedDict):
    """A version in words: its number, the numbers of its files, and for each value its name, element type,
    shape, file and place in it."""

    version: int
    files: list[int]
    values: list[tuple[str, int, list[int], int, int]]


class Attached:
    """The side of a process that reads another one's weights."""

    def __init__(
        self,
        description: Mapping[str, object],
        files: Sequence[int],
        fetch: Callable[[], tuple[Mapping[str, object], Sequence[int]]],
        expected: Mapping[str, tuple[int, tuple[int | None, ...]]],
        ort_values: Callable[[Mapping[str, Array]], dict[str, ort.OrtValue]],
    ) -> None:
        self._fetch: Callable[[], tuple[Mapping[str, object], Sequence[int]]] | None = fetch
        self._expected = expected
        self._ort_values = ort_values
        self._lock = threading.Lock()
        forks.in_child(self, Attached._renew_lock)
        self._maps: dict[int, File] = {}
        left = list(files)
        try:
            if not left:
                raise WeightsError("The owner of the shared weights sent no files.")
            self._page = _opened(left.pop(0), 0)
            self._cell = np.frombuffer(self._page.map, "<u8", 1)
            self._current = self._read(description, left)
        finally:
            close_all(left)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def snapshot(self) -> Snapshot:
        """The owner's newest version, as far as it can be had."""
        if int(self._cell[0]) > self._current.version and self._fetch is not None:
            with self._lock:
                for _ in range(2):  # the first answer may be a late one, of a version between
                    if int(self._cell[0]) > self._current.version and self._fetch is not None:
                        self._renew(self._fetch)
        return self._current

    def _renew(self, fetch: Callable[[], tuple[Mapping[str, object], Sequence[int]]]) -> None:
        try:
            description, files = fetch()
        except TimeoutError:  # the owner may be stopped, and go on
            return
        except (OSError, EOFError, ShardrunError):
            self._fetch = None  # the owner has ended; its last version that came over stays
            return
        left = list(files)
        try:
            close_all(left[:1])
            del left[:1]
            self._current = self._read(description, left)
        finally:
            close_all(left)

    def _read(self, description: Mapping[str, object], left: list[int]) -> Snapshot:
        """A version from its description and files, which are taken out of ``left``."""
        try:
            told = cast("_Description", description)  # what is none ends here
            version, numbers = int(told["version"]), [int(number) for number in told["files"]]
            values = {str(name): (int(e), tuple(map(int, shape)), int(number), int(offset))
                      for name, e, shape, number, offset in told["values"]}  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WeightsError(f"The owner describes its weights in another way ({error!r}).") from None
        if len(numbers) != len(left):
            raise WeightsError(f"The owner's weights lie in {len(numbers)} files, but {len(left)} came.")
        maps: dict[int, File] = {}
        for number in numbers:
            descriptor = left.pop(0)
            known = self._maps.get(number)
            if known is not None:
                os.close(descriptor)
            maps[number] = known or _opened(descriptor, number)
        arrays = {name: _located(name, maps, values[name]) for name in self._checked(values)}
        self._maps = maps
        return Snapshot(version, self._ort_values(arrays), arrays)

    def _checked(self, values: Mapping[str, Value]) -> list[str]:
        for name, (element, shape) in self._expected.items():
            found = values.get(name)
            if found is None:
                found = (0, (), 0, 0)
            fits = found[0] == element and len(found[1]) == len(shape)
            if not fits or any(a not in {None, b} for a, b in zip(shape, found[1], strict=True)):
                raise WeightsError(
                    f"The owner's weights do not fit this model: it has no {name!r} of type {element} and "
                    f"shape {list(shape)}. Both must load the same model with the same variable weights."
                )
        return list(self._expected)


def _located(name: str, maps: Mapping[int, File], value: Value) -> Array:
    """A value in the files that it is said to lie in. Raises `WeightsError` where it would lie outside."""
    element, shape, number, offset = value
    spec = Spec(element, shape)
    file = maps.get(number)
    if file is None or min(shape, default=0) < 0 or not 0 <= offset <= len(file.map) - spec.nbytes:
        raise WeightsError(f"The owner's weight {name!r} lies outside the memory that it shares.")
    return _view(file.map, offset, element_dtype(element), shape)


def _create(name: str, size: int) -> int:
    """A new file in memory of this size. Raises `WeightsError`."""
    if not hasattr(os, "memfd_create") or not _SEALS:
        raise WeightsError("Variable weights are shared on Linux only.")
    descriptor = -1
    try:
        descriptor = os.memfd_create(f"shardrun {name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise WeightsError(f"{size} bytes of shared memory cannot be had: {error.strerror}.") from None
    return descriptor


def _write(descriptor: int, array: Array, offset: int) -> None:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    start = 0
    while start < len(flat):
        start += os.pwrite(descriptor, flat[start : start + (1 << 30)].data, offset + start)


def _view(source: mmap.mmap, offset: int, dtype: DType, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    flat = np.frombuffer(source, np.uint8, count * dtype.itemsize, offset)
    return flat.view(dtype).reshape(shape)


def _opened(descriptor: int, number: int) -> File:
    try:
        return File(descriptor, number, _sealed_size(descriptor, fcntl.F_SEAL_WRITE if number else 0))
    except WeightsError:
        os.close(descriptor)
        raise
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise WeightsError(f"The owner's weights cannot be mapped: {error}.") from None


def _sealed_size(descriptor: int, wanted: int) -> int:
    """A file's size, if nobody can shorten it (to read a mapping past a file's end kills the process)."""
    wanted |= fcntl.F_SEAL_SHRINK
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wanted == wanted:
            return os.fstat(descriptor).st_size
    except OSError:
        pass
    raise WeightsError("The owner's weights do not lie in sealed memory: it is no owner to trust.")
