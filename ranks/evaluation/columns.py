"""Arrays of labelled data, read row by row from front to back: a file need not fit into memory.

Members of an ``.npz`` are read through the archive, compressed or not; ``.npy`` files are mapped. Nothing is
ever unpickled. A member in Fortran order has no rows that lie together, so it is read whole.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from ranks.evaluation.compressed import check_member, check_memory
from ranks.evaluation.errors import EvaluationError
from ranks.evaluation.npy import MAX_HEADER, read_header
from sharding.common.arrays import Array, DType
from sharding.common.nearby import hint, shown
from sharding.onnx_files.placeholders import placeholder


@dataclass(frozen=True)
class Header:
    """What is known of an array before it is read."""

    where: str
    shape: tuple[int, ...]
    dtype: DType


class Column(Protocol):
    """One array: ``take`` gives its next rows, or a single number again and again."""

    def take(self, count: int) -> Array: ...


class InMemory:
    """An array that is there already."""

    def __init__(self, array: Array) -> None:
        self._array, self._next = array, 0

    def take(self, count: int) -> Array:
        if self._array.ndim == 0:
            return np.array(self._array)
        start, self._next = self._next, self._next + count
        rows = self._array[start : self._next]
        check_memory(rows.nbytes, "a batch")
        # A copy, so that a mapped file is read here, where its errors have a place.
        return np.array(rows)


class Member:
    """A C-ordered array in an archive, of which each row is read once."""

    def __init__(self, file: IO[bytes], header: Header) -> None:
        self._file, self._header = file, header

    def take(self, count: int) -> Array:
        shape = (count, *self._header.shape[1:])
        check_memory(math.prod(shape) * self._header.dtype.itemsize, self._header.where)
        array = np.empty(shape, self._header.dtype)
        view = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
        done = 0
        while done < array.nbytes:
            read = self._file.readinto(view[done:])  # type: ignore[attr-defined]  # a buffered reader
            if not read:
                raise EvaluationError(
                    f"{self._header.where} ends early: expected the shape {list(self._header.shape)}."
                )
            done += read
        return array


def parse_header(file: IO[bytes], where: str) -> tuple[Header, bool]:
    """The header of ``.npy`` data and whether it is in Fortran order; the file stands behind it then."""
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise EvaluationError(
            f"{where} holds Python objects, which are never unpickled: save numbers or text."
        )
    return Header(where, shape, dtype), fortran


@contextlib.contextmanager
def readable(where: str) -> Iterator[None]:
    """Turns what reading a damaged or missing file raises into `EvaluationError`."""
    try:
        yield
    except EvaluationError:
        raise
    except MemoryError:
        raise EvaluationError(f"{where}: the array does not fit into memory.") from None
    # Damaged archives raise anything from zlib.error to NotImplementedError; they have no common base.
    except Exception as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise EvaluationError(f"{where}: cannot be read: {reason[:300]}.") from None


def _refuse_placeholder(path: Path) -> None:
    instead = placeholder(path)
    if instead is not None:
        raise EvaluationError(f"{path} {instead}.")


class Shard:
    """One ``.npz`` file, or a folder of ``.npy`` files: arrays by name that belong together."""

    def __init__(self, where: str, headers: Mapping[str, Header]) -> None:
        self.where = where
        self.headers = headers

    @contextlib.contextmanager
    def open(self, names: list[str]) -> Iterator[dict[str, Column]]:
        """Columns of these arrays, each at its first row."""
        raise NotImplementedError
        yield {}


class Archive(Shard):
    """An ``.npz`` file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        headers = {}
        _refuse_placeholder(path)
        with readable(str(path)), zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith(".npy"):
                    where = f"{path}: array {entry[:-4]!r}"
                    if entry[:-4] in headers:
                        raise EvaluationError(f"{where} is there twice.")
                    with readable(where), archive.open(entry) as member:
                        headers[entry[:-4]], _ = parse_header(member, where)
        super().__init__(str(path), headers)

    @contextlib.contextmanager
    def open(self, names: list[str]) -> Iterator[dict[str, Column]]:
        with contextlib.ExitStack() as stack:
            columns: dict[str, Column] = {}
            with readable(str(self._path)):
                archive = stack.enter_context(zipfile.ZipFile(self._path))
            for name in names:
                where = self.headers[name].where
                with readable(where):
                    member = stack.enter_context(archive.open(f"{name}.npy"))
                    header, fortran = parse_header(member, where)
                    if fortran or not header.shape:
                        check_member(archive.getinfo(f"{name}.npy"), where)
                        check_memory(math.prod(header.shape) * header.dtype.itemsize, where)
                        with archive.open(f"{name}.npy") as again:
                            whole = np.lib.format.read_array(
                                again, allow_pickle=False, max_header_size=MAX_HEADER
                            )
                        columns[name] = InMemory(whole)
                    else:
                        columns[name] = Member(member, header)
            yield columns


class Files(Shard):
    """A folder of ``.npy`` files."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self._files = {file.stem: file for file in files}
        headers = {}
        for name, file in self._files.items():
            _refuse_placeholder(file)
            with readable(str(file)), file.open("rb") as opened:
                headers[name], _ = parse_header(opened, str(file))
        super().__init__(str(folder), headers)

    @contextlib.contextmanager
    def open(self, names: list[str]) -> Iterator[dict[str, Column]]:
        columns: dict[str, Column] = {}
        for name in names:
            with readable(str(self._files[name])):
                mapped = np.load(self._files[name], mmap_mode="r", allow_pickle=False)
            columns[name] = InMemory(mapped)
        yield columns


def find_shards(path: Path) -> list[Shard]:
    """The data at a path: an ``.npz`` file, a folder of them, or a folder of ``.npy`` files, one an array.

    Raises `EvaluationError`.
    """
    if path.is_file():
        if path.suffix.lower() == ".npy":
            raise EvaluationError(
                f"{path} is one array: expected an .npz file with inputs and labels, or a folder of .npy "
                "files."
            )
        return [Archive(path)]
    if not path.is_dir():
        state = "a device or pipe" if path.exists() else f"no such file or folder{hint(path)}"
        raise EvaluationError(
            f"{shown(path)}: {state}; expected an .npz file, or a folder of .npz or .npy files."
        )
    with readable(str(path)):
        found = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    for entry in found:
        if (
            entry.suffix in {".npz", ".npy"} and not entry.is_file()
        ):  # to open a pipe would wait for its writer
            raise EvaluationError(f"{entry} is no file that can be read; expected arrays.")
    archives = [entry for entry in found if entry.suffix == ".npz"]
    arrays = [entry for entry in found if entry.suffix == ".npy"]
    if archives and arrays:
        raise EvaluationError(
            f"{path} holds .npz and .npy files: expected .npz files (parts of the data, each with every "
            "array) or .npy files (one an array), not both."
        )
    if arrays:
        return [Files(path, arrays)]
    if not archives:
        raise EvaluationError(f"{path} holds neither .npz nor .npy files.")
    return [Archive(entry) for entry in archives]
