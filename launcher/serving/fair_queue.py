"""Requests that wait for one model of tensors: a bounded queue in which clients take turns."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

from launcher.common.turns import Turns

T = TypeVar("T")


class FairQueue(Turns[T]):
    """`Turns` with a limit, whose next request can be waited for."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._some = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self) >= self._limit

    def put(self, item: T, client: str = "", priority: int = 0) -> None:
        """Adds a request; the caller has asked whether it is ``full``."""
        super().put(item, client, priority)
        self._some.set()

    async def some(self, seconds: float | None = None) -> None:
        """Until there is a request, but for no longer than so many ``seconds``."""
        if seconds is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.some(), seconds)
            return
        while not len(self):
            self._some.clear()
            await self._some.wait()
