"""Whose turn it is among those that wait: clients take turns, and a higher priority goes first."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits. Within a priority each client that waits gets its turn, however much others ask."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, OrderedDict[str, deque[T]]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """All that wait, in no order."""
        for clients in self._waiting.values():
            for items in clients.values():
                yield from items

    def put(self, item: T, client: str = "", priority: int = 0) -> None:
        """Adds one. Priority 0 goes before 1."""
        clients = self._waiting.setdefault(priority, OrderedDict())
        clients.setdefault(client, deque()).append(item)
        self._count += 1

    def remove(self, item: T, client: str = "", priority: int = 0) -> None:
        """Takes one out that nobody waits for any more, if it is still here."""
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

    def take(self) -> T | None:
        """The next one; None where none waits."""
        return self.take_if(lambda item: True)

    def take_if(self, fits: Callable[[T], bool]) -> T | None:
        """The next one if it fits; else None, and it keeps its place."""
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
