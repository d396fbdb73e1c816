"""Writes the data files of a slice folder: every weight is read once and cut for all files that hold of it.

A few chunks are in memory at a time. Each goes through threads that read it, cut and write it (one for each
file), and hash it (again one for each file), so that these overlap; every buffer is used again.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import numpy as np

from sharding.common.limits import processors
from sharding.errors import ModelError
from sharding.onnx_files.tensors import WeightTensor, cut
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.manifest import FileEntry
from sharding.slices.placement import Placement, Split, held_bytes
from sharding.writing.layout import Layout, Part, alignment_of

if TYPE_CHECKING:
    from io import FileIO

    from sharding.common.arrays import Array

T = TypeVar("T")
CHUNK_BYTES = 4 << 20
"""Small enough for what is read, cut, written and hashed one after the other to be in the cache still."""
AHEAD = 4
"""Chunks that wait to be written or hashed, besides the one that is next and the one that is read."""
WRITE_BYTES = 256 << 10
"""The bytes of one write: with 4 MB and more, Linux took several times as long for the same file."""
THREADS = 4
"""That write, and as many that hash: each file has one of both, for both are done in order. A thread hashes
about 2 GB/s where the processor has instructions for it."""


class AtOnce(Executor):
    """Does what is submitted right there: of a little, to start threads would take longest."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def worker(size: int, name: str) -> Executor:
    """What does one thing after the other while ``size`` bytes are written: a thread, if that is worth it."""
    if size <= CHUNK_BYTES:
        return AtOnce()
    return ThreadPoolExecutor(1, name, initializer=WHOLE_FILES.joining())


class HashedFile:
    """A file written once from start to end by the one thread of ``writing``, and hashed in the same order by
    that of ``hashing``."""

    def __init__(self, path: Path, writing: Executor, hashing: Executor) -> None:
        self.path, self.writing, self.hashing = path, writing, hashing
        self.size = self.padding = 0
        self.digest = hashlib.sha256()
        self.file: BinaryIO = path.open("wb", buffering=0)

    def align(self, alignment: int) -> None:
        """What is written next starts at a multiple, after zeros."""
        self.padding += -self.size % alignment
        self.size += -self.size % alignment

    def write(self, data: memoryview, prepare: Callable[[], None] | None = None) -> Future[Future[None]]:
        """Appends bytes, once ``prepare`` has put them there in the file's thread. They must stay as they are
        until the future is done that the returned one gives."""
        padding, self.padding = self.padding, 0
        self.size += len(data)
        return self.writing.submit(self._write, padding, data, prepare)

    def _write(self, padding: int, data: memoryview, prepare: Callable[[], None] | None) -> Future[None]:
        if padding:
            self._append(memoryview(bytes(padding)))
        if prepare is not None:
            prepare()
        return self._append(data)

    def _append(self, data: memoryview) -> Future[None]:
        rest = data
        while rest:
            rest = rest[self.file.write(rest[:WRITE_BYTES]) :]
        return self.hashing.submit(self.digest.update, data)

    def entry(self) -> FileEntry:
        """The manifest's entry for the closed file, once all of it is hashed."""
        return FileEntry(self.path.name, self.size, self.digest.hexdigest())


@dataclass
class Chunk:
    """The buffers of one chunk: its bytes as read, and for a file those that had to be gathered from them."""

    whole: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    gathered: dict[str, Array] = field(default_factory=dict)
    writing: list[Future[Future[None]]] = field(default_factory=list)

    def reserve(self, size: int) -> Array:
        """The buffer for ``size`` bytes that are read."""
        self.whole = _fitting(self.whole, size)
        return self.whole[:size]

    def gather(self, file: str, size: int) -> Array:
        """The buffer for ``size`` bytes that a file gets of these."""
        self.gathered[file] = _fitting(self.gathered.get(file), size)
        return self.gathered[file][:size]

    def wait(self) -> None:
        """Until what the buffers hold is written and hashed; raises what failed."""
        for writing in self.writing:
            writing.result().result()
        self.writing.clear()


def write_data(
    layout: Layout, folder: Path, files: Sequence[str], advance: Callable[[int], None]
) -> dict[str, FileEntry]:
    """Writes these files of the layout into a folder; ``advance`` is told the bytes that are handed over."""
    source, world = layout.plan.source, layout.plan.tensor_size
    wanted: dict[str, list[tuple[str, Part]]] = {}
    for file in files:
        for part in layout.parts[file]:
            wanted.setdefault(part.weight, []).append((file, part))
    total = sum(layout.sizes[file] for file in files)
    with ExitStack() as stack:
        threads = min(len(files), THREADS, processors()) if total > CHUNK_BYTES else 1
        hashers = [stack.enter_context(worker(total, "hash")) for _ in range(threads)]
        open_files: dict[str, HashedFile] = {}
        # Entered after the hashers, writers end before them: what they write is hashed by then.
        writers = [stack.enter_context(worker(total, "write")) for _ in range(threads)]
        for number, file in enumerate(files):
            at = number % threads
            open_files[file] = HashedFile(folder / file, writers[at], hashers[at])
            stack.callback(open_files[file].file.close)
        reader = stack.enter_context(worker(total, "read"))
        writer = Writer(open_files, world, advance, reader)
        # Before the files are closed, on errors too.
        stack.callback(writer.settle)
        for name, weight in source.weights.items():
            if name in wanted:
                writer.weight(weight, wanted[name])
        writer.finish()
    return {file: item.entry() for file, item in open_files.items()}


class Writer:
    """Cuts weights for several open files."""

    def __init__(
        self,
        files: Mapping[str, HashedFile],
        world: int,
        advance: Callable[[int], None],
        reader: Executor,
    ) -> None:
        self.files, self.world, self.advance, self.reader = files, world, advance, reader
        self.chunks = [Chunk() for _ in range(AHEAD + 2)]
        self.turn = 0

    def weight(self, weight: WeightTensor, targets: Sequence[tuple[str, Part]]) -> None:
        """Writes a weight's parts in one pass; further passes for files that get several of them, and for
        splits of several inner axes."""
        waiting = list(targets)
        while waiting:
            now: dict[str, Part] = {}
            later = []
            inner: int | None = None
            for file, part in waiting:
                axis = _inner_axis(weight, part.placement)
                if file in now or (axis is not None and inner not in {None, axis}):
                    later.append((file, part))
                    continue
                now[file] = part
                inner = inner if axis is None else axis
            waiting = later
            self._pass(weight, now, inner)

    def finish(self) -> None:
        """Waits until all is written and hashed; raises what failed."""
        for chunk in self.chunks:
            chunk.wait()

    def settle(self) -> None:
        """Waits until nothing is written any more, whatever failed."""
        wait(writing for chunk in self.chunks for writing in chunk.writing)

    def _pass(self, weight: WeightTensor, targets: Mapping[str, Part], inner: int | None) -> None:
        for file, part in targets.items():
            length = held_bytes(weight.nbytes, part.placement, self.world)
            self.files[file].align(alignment_of(length))
        if weight.tensor.dtype.bitwidth < 8:
            self._packed(weight, targets)
        elif weight.nbytes:
            self._streamed(weight, targets, len(weight.shape) if inner is None else inner)

    def _packed(self, weight: WeightTensor, targets: Mapping[str, Part]) -> None:
        """Elements smaller than a byte are unpacked as a whole."""
        import onnx_ir as ir

        whole = weight.array()
        for file, part in targets.items():
            own = np.ascontiguousarray(cut(whole, _one_copy(part.placement), part.number, self._parts(part)))
            data = memoryview(ir.Tensor(own, dtype=weight.tensor.dtype).tobytes())
            chunk = self._next()
            self._write(chunk, file, data)

    def _streamed(self, weight: WeightTensor, targets: Mapping[str, Part], inner: int) -> None:
        """The axes before ``inner`` taken together are rows; their parts are ranges, those of ``inner`` cuts
        of each row."""
        rows = math.prod(weight.shape[:inner])
        for start, chunk, block in self._blocks(weight, rows):
            for file, part in targets.items():
                placement, parts = part.placement, self._parts(part)
                if not isinstance(placement, Split):
                    self._write(chunk, file, _flat(block))
                elif _inner_axis(weight, placement) is not None:
                    target = chunk.gather(file, block.size // parts)
                    gather = partial(_gather, block, placement.blocks, part.number, parts, target)
                    self._write(chunk, file, target.data, gather)
                else:
                    size = rows // (parts * placement.blocks)
                    firsts = range(part.number * size, rows, parts * size)
                    for piece in _ranges(block, start, size, firsts):
                        self._write(chunk, file, _flat(piece))

    def _blocks(self, weight: WeightTensor, rows: int) -> Iterator[tuple[int, Chunk, Array]]:
        """(first row, chunk, rows as bytes in memory), a chunk at a time."""
        size = weight.nbytes // rows
        step = max(1, CHUNK_BYTES // size)
        if weight.extent is None:
            whole = _little_endian(weight.tensor.numpy()).reshape((rows, size))
            yield from ((start, self._next(), whole[start : start + step]) for start in range(0, rows, step))
            return
        path = weight.extent.path
        starts = deque(range(0, rows, step))
        with path.open("rb", buffering=0) as file:
            file.seek(weight.extent.offset)

            def read(chunk: Chunk) -> tuple[int, Chunk, Future[Array]]:
                start = starts.popleft()
                buffer = chunk.reserve(min(step, rows - start) * size)
                return start, chunk, self.reader.submit(_read_into, file, buffer, path)

            ahead = size <= 2 * CHUNK_BYTES  # of longer rows one in memory must do
            following: tuple[int, Chunk, Future[Array]] | None = read(self._next())
            while following is not None:
                start, chunk, reading = following
                block = reading.result().reshape((-1, size))
                following = read(self._next()) if starts and ahead else None
                yield start, chunk, block
                if starts and not ahead:
                    chunk.wait()
                    following = read(chunk)

    def _next(self) -> Chunk:
        """One of the chunks in turn: what it held is written and hashed by now."""
        self.turn = (self.turn + 1) % len(self.chunks)
        chunk = self.chunks[self.turn]
        chunk.wait()
        return chunk

    def _parts(self, part: Part) -> int:
        return part.placement.parts(self.world) if isinstance(part.placement, Split) else 1

    def _write(
        self, chunk: Chunk, file: str, data: memoryview, prepare: Callable[[], None] | None = None
    ) -> None:
        chunk.writing.append(self.files[file].write(data, prepare))
        self.advance(len(data))


def _inner_axis(weight: WeightTensor, placement: Placement) -> int | None:
    """The axis of a split whose parts are not contiguous; None for ranges of the first axes or the whole."""
    if not isinstance(placement, Split) or math.prod(weight.shape[: placement.axis]) == 1:
        return None
    return placement.axis


def _one_copy(placement: Placement) -> Placement:
    return Split(placement.axis, placement.blocks) if isinstance(placement, Split) else placement


def _fitting(buffer: Array | None, size: int) -> Array:
    """A buffer of at least ``size`` bytes: this one, unless it grew for one long row and is too large now."""
    if buffer is not None and size <= len(buffer) <= max(size, CHUNK_BYTES):
        return buffer
    return np.empty(max(size, CHUNK_BYTES), np.uint8) if size > CHUNK_BYTES // 2 else np.empty(size, np.uint8)


def _ranges(block: Array, start: int, size: int, firsts: Iterable[int]) -> Iterator[Array]:
    """What a block that starts at row ``start`` has of ranges of ``size`` rows with these first rows."""
    for first in firsts:
        here, there = max(first, start), min(first + size, start + len(block))
        if here < there:
            yield block[here - start : there - start]


def _gather(block: Array, blocks: int, number: int, parts: int, target: Array) -> None:
    """A part of every row, put together in ``target``."""
    size = block.shape[1] // (parts * blocks)
    rows = target.reshape((len(block), blocks, size))
    rows[...] = block.reshape((len(block), blocks, parts, size))[:, :, number]


def _flat(rows: Array) -> memoryview:
    return rows.reshape(-1).data


def _little_endian(array: Array) -> Array:
    """An array's bytes as ONNX stores them."""
    if sys.byteorder == "big" and array.dtype.itemsize > 1:
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _read_into(file: FileIO, buffer: Array, path: Path) -> Array:
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer.data[done:])
        if not count:
            raise ModelError(f"{path} became shorter while it was read: slice it again when it is whole.")
        done += count
    return buffer
