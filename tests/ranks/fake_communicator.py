"""Ranks as threads of one process: a communicator to test with, without processes, time-outs or sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any, TypeVar

import numpy as np

from ranks.collectives.base import Communicator, Groups
from ranks.errors import PeerLostError

T = TypeVar("T")


class Board:
    """What the threads of one group share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.mail: dict[tuple[int, int], Queue[Any]] = {
            (a, b): Queue() for a in range(size) for b in range(size)
        }
        self.parts: dict[tuple[int, ...], Board] = {}
        self.lock = threading.Lock()

    def part(self, ranks: tuple[int, ...], timeout: float) -> Board:
        """The board of some of the ranks."""
        with self.lock:
            return self.parts.setdefault(ranks, Board(len(ranks), timeout))

    def abort(self) -> None:
        """Ends all waits, those in parts too."""
        self.barrier.abort()
        with self.lock:
            parts = list(self.parts.values())
        for part in parts:
            part.abort()


class FakeCommunicator(Communicator):
    """One rank of a group of threads; notes the calls made on it in ``calls``."""

    name = "fake"
    sends_kept = 1 << 30

    def __init__(self, board: Board, rank: int, size: int, timeout: float) -> None:
        self.board, self.rank, self.size, self.timeout = board, rank, size, timeout
        self.members = tuple(range(size))
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        assert len(set(self._exchange(groups))) == 1, "the ranks split their group differently"
        board = self.board.part(mine, self.timeout)
        part = FakeCommunicator(board, mine.index(self.rank), len(mine), self.timeout)
        part.members = mine
        part.calls = self.calls
        return part

    def _exchange(self, value: Any) -> list[Any]:
        """Everyone's value; copies, so that nobody overwrites what a slower rank still reads."""
        try:
            self.board.slots[self.rank] = value
            self.board.barrier.wait()
            everyone = list(self.board.slots)
            self.board.barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerLostError("A peer thread ended.") from None
        return everyone

    def _note(self, name: str, buffer: Any) -> None:
        assert isinstance(buffer, np.ndarray)
        assert buffer.flags.c_contiguous
        self.calls.append((name, buffer.shape))

    def all_reduce(self, buffer: Any) -> None:
        self._note("all_reduce", buffer)
        parts = self._exchange(buffer.copy())
        assert all(part.shape == buffer.shape and part.dtype == buffer.dtype for part in parts)
        buffer[...] = np.sum(np.stack(parts), axis=0, dtype=buffer.dtype)

    def all_gather(self, buffer: Any, out: Any, axis: int = 0) -> None:
        self._note("all_gather", buffer)
        out[...] = np.concatenate(self._exchange(buffer.copy()), axis=axis)

    def all_to_all(self, buffer: Any, out: Any) -> None:
        self._note("all_to_all", buffer)
        parts = self._exchange(np.split(buffer.copy(), self.size))
        out[...] = np.concatenate([part[self.rank] for part in parts])

    def broadcast(self, buffer: Any, root: int = 0) -> None:
        self._note("broadcast", buffer)
        buffer[...] = self._exchange(buffer.copy())[root]

    def send(self, buffer: Any, peer: int) -> None:
        self._note("send", buffer)
        self.board.mail[self.rank, peer].put(buffer.copy())

    def recv(self, buffer: Any, peer: int) -> None:
        self._note("recv", buffer)
        deadline = time.monotonic() + self.timeout
        while not self.board.barrier.broken and time.monotonic() < deadline:
            try:
                sent = self.board.mail[peer, self.rank].get(timeout=0.05)
            except Empty:
                continue
            assert sent.shape == buffer.shape and sent.dtype == buffer.dtype
            buffer[...] = sent
            return
        raise PeerLostError("A peer thread ended, or sent nothing in time.")

    def barrier(self) -> None:
        self._exchange(None)

    def close(self) -> None:
        """Nothing to leave."""


def on_ranks(size: int, work: Callable[[FakeCommunicator], T], timeout: float = 60) -> list[T]:
    """Runs ``work`` on every rank of a new group, each in a thread, and returns what each returned.

    The first error of a rank is raised (that of a rank that only missed a peer last); the others' waits end
    at once.
    """
    board = Board(size, timeout)

    def one(rank: int) -> T:
        try:
            return work(FakeCommunicator(board, rank, size, timeout))
        except BaseException:
            board.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    errors.sort(key=lambda error: isinstance(error, PeerLostError))
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def same_everywhere(results: Sequence[Sequence[Any]]) -> bool:
    """Whether every rank returned the same bits."""
    first = results[0]
    return all(
        len(other) == len(first) and all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
        for other in results[1:]
    )
