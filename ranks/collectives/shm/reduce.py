"""The sum over the ranks of one host."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from ranks.collectives import arrays
from ranks.collectives.shm.phases import DIRECT, Phases, What, say
from ranks.collectives.shm.sync import STEP, signature
from ranks.common.tensors import name_of
from sharding.common.arrays import Array

_WHOLE = 32 << 10  # bytes up to which more than two ranks each add everything, instead of a part each
_PIECE = 512 << 10  # bytes of a piece of a large message: what two ranks work on stays in their caches
_CHUNK = 1 << 20  # bytes that are added before they are handed out: they are still in the cache then
GLANCES = 50  # at a counter, before the calls that a longer wait takes
_MOST_SHAPES = 1024  # remembered

Reduce = Callable[["Array"], None]


class Sums:
    """Sums of this group: picks the way for a buffer once, and remembers it while the buffer lives."""

    def __init__(self, phases: Phases) -> None:
        self.known: dict[int, Reduce] = {}  # by id of a buffer
        self._phases = phases
        self._guards: dict[int, weakref.ref[Array]] = {}
        self._by_shape: dict[tuple[str, tuple[int, ...]], Reduce] = {}
        phases.when_broken.append(self._forget_all)

    def all_reduce(self) -> Reduce:
        """The function that sums any buffer: a plain function, as a method would take longer to call."""
        known, find = self.known, self.find

        def reduce(buffer: Array) -> None:
            try:
                way = known[id(buffer)]
            except KeyError:
                way = find(buffer)
            way(buffer)

        return reduce

    def find(self, buffer: Array) -> Reduce:
        """The function that sums buffers like this one; raises where such a buffer cannot be summed."""
        self._phases.check()
        array = arrays.check_sum(buffer)
        by_shape = (name_of(array.dtype), array.shape)
        reduce = self._by_shape.get(by_shape)
        if reduce is None:
            if len(self._by_shape) >= _MOST_SHAPES:
                self._by_shape.clear()
            reduce = self._by_shape[by_shape] = self._new(array)
        key, known, guards = id(buffer), self.known, self._guards

        def forget(_: object) -> None:
            known.pop(key, None)
            guards.pop(key, None)

        guards[key] = weakref.ref(buffer, forget)
        known[key] = reduce
        return reduce

    def _forget_all(self) -> None:
        self.known.clear()
        self._guards.clear()
        self._by_shape.clear()

    def _new(self, like: Array) -> Reduce:
        phases, what = self._phases, say("all_reduce", like)
        code = signature("all_reduce", name_of(like.dtype), *like.shape)
        if like.nbytes >= DIRECT:
            return lambda buffer: _large(phases, buffer, code, what)
        if phases.size == 2:
            return _small_pair(phases, like, code, what)
        if like.nbytes <= _WHOLE:
            return lambda buffer: _small(phases, buffer, code, what)
        return lambda buffer: _pieces(phases, buffer, code, what)


def _small_pair(phases: Phases, like: Array, code: int, what: What) -> Reduce:
    """Two ranks, small message: as few steps as Python allows."""
    peer, line = phases.peers[0]
    me, words, number, wait, order = phases.me, phases.words, phases.number, phases.wait, phases.order
    even, odd = (phases.slot(phases.rank, half * STEP, like) for half in (0, 1))
    even_in, odd_in = (phases.slot(peer, half * STEP, like) for half in (0, 1))
    add, first, glances = np.add, phases.rank == 0, range(GLANCES)

    def reduce(buffer: Array) -> None:
        value = next(number)
        if value & STEP:
            mine, theirs = odd, odd_in
        else:
            mine, theirs = even, even_in
        mine[...] = buffer
        value |= code
        if order is not None:
            order()
        words[me] = value
        for _ in glances:
            if words[line] == value:
                break
        else:
            wait(peer, value, what)
        if order is not None:
            order()
        # Rank 0's part stands first on both ranks: which of two NaNs comes out depends on the order.
        if first:
            add(buffer, theirs, buffer)
        else:
            add(theirs, buffer, buffer)

    return reduce


def _small(phases: Phases, buffer: Array, code: int, what: What) -> None:
    """Every rank adds the slots of all, in rank order."""
    value = phases.begin(code)
    phases.slot(phases.rank, value, buffer)[...] = buffer
    phases.meet(value, what)
    arrays.sum_into(buffer, [phases.slot(rank, value, buffer) for rank in range(phases.size)])


def _pieces(phases: Phases, buffer: Array, code: int, what: What) -> None:
    """Large buffers in ordinary memory, piece by piece through the slots."""
    flat = buffer.reshape(-1)
    step = _PIECE // buffer.itemsize
    reduce = _piece_pair if phases.size == 2 else _piece
    for start in range(0, flat.size, step):
        reduce(phases, flat[start : start + step], code, what)


def _piece_pair(phases: Phases, piece: Array, code: int, what: What) -> None:
    value = phases.begin(code)
    phases.slot(phases.rank, value, piece)[...] = piece
    phases.meet(value, what)
    theirs = phases.slot(1 - phases.rank, value, piece)
    # In place, not from both slots: that halves the time at 384 KB.
    np.add(*((piece, theirs) if phases.rank == 0 else (theirs, piece)), out=piece)


def _piece(phases: Phases, piece: Array, code: int, what: What) -> None:
    """Each rank adds its own part of the piece and shows the sum; then all copy each other's sums."""
    value = phases.begin(code)
    phases.slot(phases.rank, value, piece)[...] = piece
    phases.meet(value, what)
    parts = arrays.split(piece.size, phases.size)
    mine = parts[phases.rank]
    total = piece[mine]
    arrays.sum_into(total, [total, *(phases.slot(peer, value, piece)[mine] for peer, _ in phases.peers)])
    value = phases.begin(code)
    phases.slot(phases.rank, value, total)[...] = total
    phases.meet(value, what)
    for peer, _ in phases.peers:
        piece[parts[peer]] = phases.slot(peer, value, piece[parts[peer]])


def _large(phases: Phases, buffer: Array, code: int, what: What) -> None:
    """Buffers in shared memory: each rank adds its own part of all, and writes the sum into all."""
    buffers = phases.buffers(buffer, code, what)
    if not buffers:
        _pieces(phases, buffer, code, what)
        return
    mine = arrays.split(buffer.size, phases.size)[phases.rank]
    others = [buffers[peer] for peer, _ in phases.peers]
    step = _CHUNK // buffer.itemsize
    for start in range(mine.start, mine.stop, step):
        chunk = slice(start, min(start + step, mine.stop))
        total = buffers[phases.rank][chunk]
        arrays.sum_into(total, [total, *(other[chunk] for other in others)])
        for other in others:
            other[chunk] = total
    phases.meet(phases.begin(code), what)
