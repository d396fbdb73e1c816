"""Writes the data files of a slice folder: every weight is read once and cut for all files that hold of it.

A few chunks are in memory at a time. While one is cut and written, another thread reads the next one, and
others hash those before it.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sharding.errors import ModelError
from sharding.layout import ALIGNMENT, PAGE, PAGE_BYTES, Layout, Part
from sharding.manifest import FileEntry
from sharding.placement import Placement, Split, held_bytes
from sharding.tensors import WeightTensor, cut

CHUNK_BYTES = 8 << 20
HASHED = 4
"""Chunks that wait to be hashed, besides the one that is written and the one that is read."""

WRITE_BYTES = 256 << 10
"""Of one write: Linux took several times as long for the same file in writes of 4 MB and more."""
HASHERS = 4
"""Threads that hash; each file has one, for a hash is made in order. One does about 1.5 GB/s."""

Array = np.ndarray[Any, Any]


class HashedFile:
    """A file written once from start to end; hashed in the order of writing by the one thread of ``pool``."""

    def __init__(self, path: Path, pool: ThreadPoolExecutor) -> None:
        self.path, self.pool, self.size = path, pool, 0
        self.digest = hashlib.sha256()
        self.file: BinaryIO = path.open("wb", buffering=0)

    def write(self, data: bytes | memoryview) -> Future[None]:
        """Writes; the data must stay as they are until the returned future is done."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.file.write(rest[:WRITE_BYTES]) :]
        self.size += len(data)
        return self.pool.submit(self.digest.update, data)

    def align(self, alignment: int) -> None:
        """Pads with zeros to a multiple."""
        self.write(bytes(-self.size % alignment))

    def entry(self) -> FileEntry:
        """Of the closed file, once the pool has ended."""
        return FileEntry(self.path.name, self.size, self.digest.hexdigest())


def write_data(
    layout: Layout, folder: Path, files: Sequence[str], advance: Callable[[int], None]
) -> dict[str, FileEntry]:
    """Writes these files of the layout into a folder; ``advance`` is told the bytes as they are written."""
    source, world = layout.plan.source, layout.plan.tensor_size
    wanted: dict[str, list[tuple[str, Part]]] = {}
    for file in files:
        for part in layout.parts[file]:
            wanted.setdefault(part.weight, []).append((file, part))
    with ExitStack() as stack:
        threads = min(len(files), HASHERS, os.cpu_count() or 1)
        pools = [stack.enter_context(ThreadPoolExecutor(1, "hash")) for _ in range(threads)]
        open_files = {
            file: HashedFile(folder / file, pools[number % threads]) for number, file in enumerate(files)
        }
        for item in open_files.values():
            stack.callback(item.file.close)
        reader = stack.enter_context(ThreadPoolExecutor(1, "read"))
        writer = Writer(open_files, world, advance, reader)
        for name, weight in source.weights.items():
            if name in wanted:
                writer.weight(weight, wanted[name])
    return {file: item.entry() for file, item in open_files.items()}


class Writer:
    """Cuts weights for several open files."""

    def __init__(
        self,
        files: Mapping[str, HashedFile],
        world: int,
        advance: Callable[[int], None],
        reader: ThreadPoolExecutor,
    ) -> None:
        self.files, self.world, self.advance, self.reader = files, world, advance, reader
        self.buffers: list[Array] = [np.empty(0, np.uint8)] * (HASHED + 2)
        self.turn = 0
        self.hashing: deque[list[Future[None]]] = deque()

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

    def _pass(self, weight: WeightTensor, targets: Mapping[str, Part], inner: int | None) -> None:
        for file, part in targets.items():
            length = held_bytes(weight.nbytes, part.placement, self.world)
            self.files[file].align(PAGE if length >= PAGE_BYTES else ALIGNMENT)
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
            self._write(file, ir.Tensor(own, dtype=weight.tensor.dtype).tobytes())

    def _streamed(self, weight: WeightTensor, targets: Mapping[str, Part], inner: int) -> None:
        """The axes before ``inner`` taken together are rows; their parts are ranges, those of ``inner`` cuts
        of each row."""
        rows, row = math.prod(weight.shape[:inner]), weight.shape[inner:]
        for start, block in self._blocks(weight, rows, row):
            self.hashing.append([])
            for file, part in targets.items():
                for piece in self._pieces(weight, part, block, start, rows):
                    self._write(file, _bytes(piece))
            while len(self.hashing) > HASHED:
                self._wait()

    def _blocks(self, weight: WeightTensor, rows: int, row: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """(first row, rows in memory), a chunk at a time."""
        size = weight.nbytes // rows
        step = max(1, CHUNK_BYTES // size)
        if weight.extent is None:
            whole = np.ascontiguousarray(weight.tensor.numpy()).reshape((rows, *row))
            yield from ((start, whole[start : start + step]) for start in range(0, rows, step))
            return
        path, dtype = weight.extent.path, weight.tensor.dtype.numpy()
        starts = deque(range(0, rows, step))
        with path.open("rb", buffering=0) as file:
            file.seek(weight.extent.offset)

            def read_next() -> tuple[int, Future[Array]]:
                start = starts.popleft()
                buffer = self._buffer(min(step, rows - start) * size)
                return start, self.reader.submit(_read_into, file, buffer, path)

            ahead = size <= 2 * CHUNK_BYTES  # of longer rows one in memory must do
            following: tuple[int, Future[Array]] | None = read_next()
            while following is not None:
                start, reading = following
                block = reading.result()
                following = read_next() if starts and ahead else None
                yield start, block.view(dtype).reshape((-1, *row))
                del block
                if starts and not ahead:
                    while self.hashing:
                        self._wait()
                    self.turn -= 1  # into the same buffer
                    following = read_next()

    def _buffer(self, size: int) -> Array:
        """One of the buffers in turn: what it held is written and hashed by now."""
        self.turn = (self.turn + 1) % len(self.buffers)
        if len(self.buffers[self.turn]) < size:
            self.buffers[self.turn] = np.empty(max(size, CHUNK_BYTES), np.uint8)
        return self.buffers[self.turn][:size]

    def _wait(self) -> None:
        for done in self.hashing.popleft():
            done.result()

    def _pieces(
        self, weight: WeightTensor, part: Part, block: Array, start: int, rows: int
    ) -> Iterator[Array]:
        """What a part holds of a block of rows."""
        placement, parts = part.placement, self._parts(part)
        if not isinstance(placement, Split):
            yield block
        elif _inner_axis(weight, placement) is not None:
            yield cut(block, Split(1, placement.blocks), part.number, parts)
        else:
            size = rows // (parts * placement.blocks)
            for number in range(placement.blocks):
                first = (number * parts + part.number) * size
                here, there = max(first, start), min(first + size, start + len(block))
                if here < there:
                    yield block[here - start : there - start]

    def _parts(self, part: Part) -> int:
        return part.placement.parts(self.world) if isinstance(part.placement, Split) else 1

    def _write(self, file: str, data: bytes | memoryview) -> None:
        future = self.files[file].write(data)
        if self.hashing:
            self.hashing[-1].append(future)
        self.advance(len(data))


def _inner_axis(weight: WeightTensor, placement: Placement) -> int | None:
    """The axis of a split whose parts are not contiguous; None for ranges of the first axes or the whole."""
    if not isinstance(placement, Split) or math.prod(weight.shape[: placement.axis]) == 1:
        return None
    return placement.axis


def _one_copy(placement: Placement) -> Placement:
    return Split(placement.axis, placement.blocks) if isinstance(placement, Split) else placement


def _bytes(piece: Array) -> memoryview:
    """An array's elements, little-endian."""
    if sys.byteorder == "big" and piece.dtype.itemsize > 1:
        piece = piece.byteswap()
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def _read_into(file: Any, buffer: Array, path: Path) -> Array:
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer.data[done:])
        if not count:
            raise ModelError(f"{path} became shorter while it was read: slice it again when it is whole.")
        done += count
    return buffer
