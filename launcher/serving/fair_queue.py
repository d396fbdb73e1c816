"""Requests that wait for one model: clients take turns, and a higher priority goes first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A bounded queue. Within a priority each client that waits gets its turn, however much others ask."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0
        self._waiting: dict[int, OrderedDict[str, deque[T]]] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self._count >= self._limit

    def put(self, item: T, client: str, priority: int = 0) -> None:
        """Adds a request; the caller has asked whether it is ``full``. Priority 0 goes before 1."""
        clients = self._waiting.setdefault(priority, OrderedDict())
        clients.setdefault(client, deque()).append(item)
        self._count += 1
        self._some.set()

    def remove(self, item: T, client: str, priority: int = 0) -> None:
        """Takes a request out that nobody waits for any more, if it is still here."""
        items = self._waiting.get(priority, OrderedDict[str, deque[T]]()).get(client)
        if items is not None and item in items:
            items.remove(item)
            self._left(client, priority)

    def _left(self, client: str, priority: int) -> None:
        clients = self._waiting[priority]
        if not clients[client]:
            del clients[client]
        if not clients:
            del self._waiting[priority]
        self._count -= 1

    async def get(self) -> T:
        """The next request, as soon as there is one."""
        while True:
            if (found := self.take()) is not None:
                return found
            self._some.clear()
            await self._some.wait()

    def take(self) -> T | None:
        """The next request; None where nobody waits."""
        return self.take_if(lambda item: True)

    def take_if(self, fits: Callable[[T], bool]) -> T | None:
        """The next request if it fits; else None, and it keeps its place."""
        for priority in sorted(self._waiting):
            clients = self._waiting[priority]
            client, items = next(iter(clients.items()))
            if not fits(items[0]):
                return None
            item = items.popleft()
            clients.move_to_end(client)
            self._left(client, priority)
            return item
        return None
