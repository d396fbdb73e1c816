"""Requests on their way: which numbers they have, and whether there is room for another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ranks.talk import area

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked

MOST_BYTES = 64 << 20
"""Of the tensors of all requests on their way, where they are several: ranks and launcher hold each twice."""


class Flight:
    """Requests that were sent and are not answered, in the order of their numbers."""

    def __init__(self) -> None:
        self._flying: dict[int, Asked] = {}
        self._slots = list(range(area.SLOTS))
        self._number = 0

    def __len__(self) -> int:
        return len(self._flying)

    def get(self, number: object) -> Asked | None:
        """The request of a number; None where it is none, or not on its way."""
        return self._flying.get(number) if isinstance(number, int) else None

    def fits(self, asked: Asked) -> bool:
        """Whether there is room for one more."""
        flying = self._flying.values()
        if not flying:
            return True
        # Of several that ranks have died beside, nobody knows which was the cause: each goes alone.
        if not self._slots or asked.tries or any(item.tries > 1 for item in flying):
            return False
        return asked.size + sum(item.size for item in flying) <= MOST_BYTES

    def launch(self, asked: Asked) -> None:
        """The request gets the next number, and the lowest slot that is free: who asks one after another
        uses the memory of one."""
        self._number += 1
        asked.number, asked.slot = self._number, self._slots.pop(0)
        asked.tries += 1
        asked.failed = {}  # what other ranks have said of it is nothing to these
        self._flying[asked.number] = asked

    def land(self, asked: Asked) -> None:
        """The request is answered, if it was on its way."""
        if self._flying.pop(asked.number, None) is not None:
            self._slots.append(asked.slot)
            self._slots.sort()

    def clear(self) -> list[Asked]:
        """None is on its way any more; those that were."""
        found = list(self._flying.values())
        self._flying.clear()
        self._slots = list(range(area.SLOTS))
        return found

    @property
    def runs(self) -> list[Asked]:
        """Those that can be told to end."""
        return [item for item in self._flying.values() if item.run is not None]
