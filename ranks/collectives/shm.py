"""Collectives over shared memory: CPU ranks of one host, whoever started them.

Small messages: each rank copies its buffer to a slot that all can read, publishes, waits, and adds all slots
in rank order. Two halves are used in turn: when a rank has seen all others in one phase, all have finished
reading what it wrote in the phase before the last. Large messages go in pieces, or, where every rank's
buffer comes from `allocate`, without any copy: each rank adds its own part of all buffers and writes the sum
into all of them.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from ranks.collectives import arrays
from ranks.collectives.arrays import Array
from ranks.collectives.base import Communicator
from ranks.collectives.shm_area import LINE, MAIL, SLOT, Area, create
from ranks.collectives.shm_sync import STEP, Waiter, fence, signature
from ranks.errors import CollectiveError
from ranks.identity import Identity
from ranks.rendezvous import Rendezvous, meet

_WHOLE = 32 << 10  # bytes up to which more than two ranks each add everything, instead of a part each
_DIRECT = 128 << 10  # bytes from which buffers in shared memory are worked on where they are
_PIECE = 256 << 10  # bytes of a piece of a large message: two ranks' pieces stay in the second-level cache
_CHUNK = 32 << 10  # bytes that are added and handed out at a time: they stay in the first-level cache
_MOST_SHAPES = 1024  # remembered
_NOWHERE = (1 << 64) - 1

Reduce = Callable[[Array], None]


class ShmCommunicator(Communicator):
    """The ranks of one host over shared memory. One thread at a time may use it."""

    name = "shm"

    def __init__(self, rendezvous: Rendezvous, area: Area, timeout: float, *, crowded: bool) -> None:
        self.rank = rank = rendezvous.rank
        self.size = size = rendezvous.size
        self.timeout = timeout
        self._rendezvous = rendezvous
        self._area = area
        self._words = area.words
        self._me = area.line(rank)
        self._peers = [(peer, area.line(peer)) for peer in range(size) if peer != rank]
        self._fence = fence()
        self._waiter = Waiter(area.words, rank, dict(self._peers), rendezvous.life, crowded=crowded)
        self._phase = [0]  # in a list, so that the closures of small messages share it
        self._sent = dict.fromkeys(range(size), 0)
        self._received = dict.fromkeys(range(size), 0)
        self._reducers: dict[int, Reduce] = {}  # by id of a buffer that lives
        self._reducers_by_shape: dict[tuple[str, tuple[int, ...]], Reduce] = {}
        self._guards: dict[int, weakref.ref[Array]] = {}
        self._broken = ""
        os.register_at_fork(after_in_child=functools.partial(_break_in_child, weakref.ref(self)))

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A buffer in shared memory, which collectives need not copy; ordinary once 1 GiB is taken."""
        return self._area.allocate(tuple(shape), np.dtype(dtype))

    def all_reduce(self, buffer: Array) -> None:
        try:
            reduce = self._reducers[id(buffer)]
        except KeyError:
            reduce = self._reducer(buffer)
        reduce(buffer)

    def all_gather(self, buffer: Array, out: Array, axis: int = 0) -> None:
        outer, inner = arrays.check_gather(buffer, out, axis, self.size)
        what = _what("all_gather", buffer)
        code = signature("all_gather", buffer.dtype.name, *buffer.shape, axis)
        rows, target = buffer.reshape(outer, inner), out.reshape(outer, self.size, inner)
        offsets = self._offsets(buffer, code, what)
        if offsets:
            for peer, offset in offsets.items():
                target[:, peer] = self._area.arena(peer, offset, rows.shape, rows.dtype)
            self._meet(self._next(code), what)
            return
        for piece in _pieces(rows.shape, SLOT // buffer.itemsize):
            source = rows[piece]
            value = self._next(code)
            self._slot(self.rank, value, source)[...] = source
            self._meet(value, what)
            for peer in range(self.size):
                target[piece[0], peer, piece[1]] = self._slot(peer, value, source)

    def all_to_all(self, buffer: Array, out: Array) -> None:
        arrays.check_exchange(buffer, out, self.size)
        what = _what("all_to_all", buffer)
        code = signature("all_to_all", buffer.dtype.name, *buffer.shape)
        count = buffer.size // self.size
        parts, target = buffer.reshape(self.size, count), out.reshape(self.size, count)
        step = max(1, SLOT // (buffer.itemsize * self.size))
        for start in range(0, count, step) if count else [0]:
            source = parts[:, start : start + step]
            value = self._next(code)
            self._slot(self.rank, value, source)[...] = source
            self._meet(value, what)
            for peer in range(self.size):
                target[peer, start : start + step] = self._slot(peer, value, source)[self.rank]

    def broadcast(self, buffer: Array, root: int = 0) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        arrays.check(buffer, "broadcast", written=root != self.rank)
        what = _what(f"broadcast from rank {root}", buffer)
        code = signature("broadcast", buffer.dtype.name, *buffer.shape, root)
        flat = buffer.reshape(-1)
        step = _PIECE // buffer.itemsize
        for start in range(0, flat.size, step) if flat.size else [0]:
            piece = flat[start : start + step]
            value = self._next(code)
            slot = self._slot(root, value, piece)
            if root == self.rank:
                slot[...] = piece
            self._meet(value, what)
            if root != self.rank:
                piece[...] = slot

    def send(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("send", peer, self.rank, self.size)
        raw = arrays.check(buffer, "send", written=False).reshape(-1).view(np.uint8)
        what = _what(f"send to rank {peer}", buffer)
        code = signature("send/recv", buffer.dtype.name, *buffer.shape)
        line = self._area.mail_line(self.rank, peer)
        self._check()
        for start in range(0, raw.size, MAIL) if raw.size else [0]:
            piece = raw[start : start + MAIL]
            number = self._sent[peer] = self._sent[peer] + 1
            if number > 2:
                self._wait_mail(peer, line + LINE, (number - 2) * STEP, what)
            self._area.mail(self.rank, peer, number & 1, piece.size)[...] = piece
            self._order()
            self._words[line] = number * STEP | code

    def recv(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("recv", peer, self.rank, self.size)
        raw = arrays.check(buffer, "recv", written=True).reshape(-1).view(np.uint8)
        what = _what(f"recv from rank {peer}", buffer)
        code = signature("send/recv", buffer.dtype.name, *buffer.shape)
        line = self._area.mail_line(peer, self.rank)
        self._check()
        for start in range(0, raw.size, MAIL) if raw.size else [0]:
            piece = raw[start : start + MAIL]
            number = self._received[peer] = self._received[peer] + 1
            found = self._wait_mail(peer, line, number * STEP, what)
            if (found ^ code) & (STEP - 1):
                self._fail(
                    f"Rank {peer} sent another type or shape than rank {self.rank} expects in {what()}."
                )
            self._order()
            piece[...] = self._area.mail(peer, self.rank, number & 1, piece.size)
            self._order()
            self._words[line + LINE] = number * STEP

    def barrier(self) -> None:
        self._meet(self._next(signature("barrier")), lambda: "barrier")

    def close(self) -> None:
        if self._broken != _CLOSED:
            self._break(_CLOSED)
            self._words[self._me + 2] = 1
            self._rendezvous.close()

    # How phases go

    def _next(self, code: int) -> int:
        """Begins a phase; its number and signature. The half to write to follows from the number."""
        self._check()
        value = self._phase[0] = self._phase[0] + STEP
        return value | code

    def _meet(self, value: int, what: Callable[[], str]) -> None:
        """Publishes what was written and waits until every rank has done so."""
        self._order()
        words = self._words
        words[self._me] = value
        for peer, line in self._peers:
            if words[line] != value:
                self._await(peer, value, what)
        self._order()

    def _await(self, peer: int, value: int, what: Callable[[], str]) -> None:
        try:
            self._waiter.collective(peer, value, self.timeout, what)
        except CollectiveError as error:
            self._break(str(error))
            raise

    def _wait_mail(self, peer: int, word: int, value: int, what: Callable[[], str]) -> int:
        try:
            return self._waiter.mail(peer, word, value, self.timeout, what)
        except CollectiveError as error:
            self._break(str(error))
            raise

    def _order(self) -> None:
        if self._fence is not None:
            self._fence()

    def _check(self) -> None:
        if self._broken:
            raise CollectiveError(f"The group cannot be used any more: {self._broken}")

    def _break(self, why: str) -> None:
        self._broken = why
        self._reducers.clear()
        self._guards.clear()
        self._reducers_by_shape.clear()

    def _fail(self, why: str) -> NoReturn:
        self._break(why)
        raise CollectiveError(why)

    def _slot(self, rank: int, value: int, like: Array) -> Array:
        return self._area.slot(rank, (value // STEP) & 1, like.shape, like.dtype)

    def _offsets(self, buffer: Array, code: int, what: Callable[[], str]) -> dict[int, int]:
        """Where each rank's large buffer lies in its arena; nothing where one of them does not."""
        if buffer.nbytes < _DIRECT:
            return {}
        words, me = self._words, self._me
        own = self._area.offset_of(buffer)
        value = self._next(code)
        words[me + 1] = _NOWHERE if own is None else own
        self._meet(value, what)
        found = {self.rank: words[me + 1], **{peer: words[line + 1] for peer, line in self._peers}}
        return {} if _NOWHERE in found.values() else dict(sorted(found.items()))

    # Sums

    def _reducer(self, buffer: Array) -> Reduce:
        """The function that sums buffers like this one, remembered while the buffer lives."""
        self._check()
        array = arrays.check_sum(buffer)
        by_shape = (array.dtype.name, array.shape)
        reduce = self._reducers_by_shape.get(by_shape)
        if reduce is None:
            if len(self._reducers_by_shape) >= _MOST_SHAPES:
                self._reducers_by_shape.clear()
            reduce = self._reducers_by_shape[by_shape] = self._new_reducer(array)
        key = id(buffer)

        def forget(
            _: object, reducers: dict[int, Reduce] = self._reducers, guards: Any = self._guards
        ) -> None:
            reducers.pop(key, None)
            guards.pop(key, None)

        self._guards[key] = weakref.ref(buffer, forget)
        self._reducers[key] = reduce
        return reduce

    def _new_reducer(self, like: Array) -> Reduce:
        what = _what("all_reduce", like)
        code = signature("all_reduce", like.dtype.name, *like.shape)
        if like.nbytes >= _DIRECT:
            return lambda buffer: self._reduce_large(buffer, code, what)
        if self.size == 2:
            return self._pair_reducer(like, code, what)
        if like.nbytes <= _WHOLE:
            return lambda buffer: self._reduce_whole(buffer, code, what)
        return lambda buffer: self._reduce_pieces(buffer, code, what)

    def _pair_reducer(self, like: Array, code: int, what: Callable[[], str]) -> Reduce:
        """Two ranks, small message: as few steps as Python allows."""
        (peer, line), me, words, phase = self._peers[0], self._me, self._words, self._phase
        wait, order = self._await, self._fence
        even, odd = (self._area.slot(self.rank, half, like.shape, like.dtype) for half in (0, 1))
        even_in, odd_in = (self._area.slot(peer, half, like.shape, like.dtype) for half in (0, 1))
        add, first = np.add, self.rank == 0

        def reduce(buffer: Array) -> None:
            value = phase[0] = phase[0] + STEP
            if value & STEP:
                mine, theirs = odd, odd_in
            else:
                mine, theirs = even, even_in
            mine[...] = buffer
            value |= code
            if order is not None:
                order()
            words[me] = value
            if words[line] != value:
                wait(peer, value, what)
            if order is not None:
                order()
            # Rank 0's part stands first on both ranks: the bits of a NaN depend on the order.
            if first:
                add(buffer, theirs, buffer)
            else:
                add(theirs, buffer, buffer)

        return reduce

    def _reduce_whole(self, buffer: Array, code: int, what: Callable[[], str]) -> None:
        value = self._next(code)
        self._slot(self.rank, value, buffer)[...] = buffer
        self._meet(value, what)
        arrays.sum_into(buffer, [self._slot(rank, value, buffer) for rank in range(self.size)])

    def _reduce_pieces(self, buffer: Array, code: int, what: Callable[[], str]) -> None:
        flat = buffer.reshape(-1)
        step = _PIECE // buffer.itemsize
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            if self.size == 2:
                self._reduce_whole(piece, code, what)
                continue
            value = self._next(code)
            self._slot(self.rank, value, piece)[...] = piece
            self._meet(value, what)
            parts = _parts(piece.size, self.size)
            mine = parts[self.rank]
            value, before = self._next(code), value
            result = self._slot(self.rank, value, piece[mine])
            arrays.sum_into(result, [self._slot(rank, before, piece)[mine] for rank in range(self.size)])
            self._meet(value, what)
            for rank, part in enumerate(parts):
                piece[part] = self._slot(rank, value, piece[part])

    def _reduce_large(self, buffer: Array, code: int, what: Callable[[], str]) -> None:
        offsets = self._offsets(buffer, code, what)
        if not offsets:
            self._reduce_pieces(buffer, code, what)
            return
        views = [self._area.arena(r, o, (buffer.size,), buffer.dtype) for r, o in offsets.items()]
        mine = _parts(buffer.size, self.size)[self.rank]
        step = _CHUNK // buffer.itemsize
        own, others = views[self.rank], [view for rank, view in enumerate(views) if rank != self.rank]
        for start in range(mine.start, mine.stop, step):
            chunk = slice(start, min(start + step, mine.stop))
            total = own[chunk]
            arrays.sum_into(total, [total, *(view[chunk] for view in others)])
            for view in others:
                view[chunk] = total
        self._meet(self._next(code), what)


_CLOSED = "it was closed."


def connect(identity: Identity, timeout: float) -> ShmCommunicator:
    """Meets the other ranks, which must be on this host, and maps the memory they share."""
    rendezvous = meet(identity, timeout)
    descriptors: list[int] = []
    try:
        cpus = sorted(os.sched_getaffinity(0))
        if identity.rank == 0:
            descriptors.append(create(identity.world_size))
        items = rendezvous.exchange({"cpus": cpus}, descriptors, timeout)
        if identity.rank != 0:
            descriptors += [descriptor for item in items for descriptor in item.descriptors]
        if len(descriptors) != 1:
            raise CollectiveError(
                f"Rank 0 sent {len(descriptors)} file descriptors instead of its shared memory."
            )
        area = Area(descriptors[0], identity.rank, identity.world_size)
        together = {cpu for item in items for cpu in item.data["cpus"]}
        return ShmCommunicator(rendezvous, area, timeout, crowded=identity.world_size > len(together))
    except BaseException:
        rendezvous.close()
        raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _break_in_child(communicator: weakref.ref[ShmCommunicator]) -> None:
    if (parent := communicator()) is not None:
        parent._break("it belongs to the process that this one was forked from.")


def _what(operation: str, buffer: Array) -> Callable[[], str]:
    name, shape = buffer.dtype.name, list(buffer.shape)
    return lambda: f"{operation} of {name}{shape}"


def _parts(count: int, size: int) -> list[slice]:
    """``count`` elements in ``size`` nearly equal parts that begin on cache lines."""
    share = -(-count // size)
    share = -(-share // 64) * 64
    return [slice(min(rank * share, count), min((rank + 1) * share, count)) for rank in range(size)]


def _pieces(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
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
