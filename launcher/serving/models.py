"""Models that a server has: each with ranks of its own, which come back after one of them has died."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from launcher.errors import LaunchError, RankFailedError
from launcher.serving.refusals import RETRY_SECONDS, RefusalError

if TYPE_CHECKING:
    from launcher.serving.limits import ServeLimits
    from launcher.serving.metrics import Metrics

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")
MOST_RESTARTS, CALM_SECONDS = 5, 60.0
"""A model whose ranks died more often than that, each time within so many seconds of the last, stays down."""
_LOOK_SECONDS = 1.0
_BACK_OFF = 0.5  # seconds before a second start in a row, doubled for each further one, up to 32


class State(Enum):
    """What may be asked of a model."""

    UNLOADED = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    FAILED = "FAILED"


@dataclass
class Numbers:
    """What a model has done so far: counts, and nanoseconds of all requests together."""

    succeeded: int = 0
    failed: int = 0
    runs: int = 0
    """Of the ranks: fewer than requests, where these are joined."""
    waiting_ns: int = 0
    computing_ns: int = 0
    restarts: int = 0
    last: float = 0.0
    """When it last answered: seconds since 1970."""


class Model(ABC):
    """One model, as clients know it. All of it is for the server's event loop."""

    name: str
    version: str
    state: State
    numbers: Numbers

    @abstractmethod
    async def load(self) -> None:
        """Starts the ranks, if they are not there. Raises what starting raises."""

    @abstractmethod
    async def unload(self) -> None:
        """Ends the ranks."""

    @abstractmethod
    def look(self) -> None:
        """Notes ranks that have died while nobody asked them."""


@dataclass
class Served(Model, Generic[R]):
    """One model with ranks of its own; ``again``: whether ranks that died are started again. `_start` and
    `_stop` run in a thread."""

    name: str
    limits: ServeLimits
    metrics: Metrics
    again: bool = False
    restarts: int | None = None
    """Restarts in a row, each within `CALM_SECONDS` of the last; None: `MOST_RESTARTS`."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Is set while what `_start` starts is not wanted any more."""
    state: State = State.UNLOADED
    reason: str = ""
    numbers: Numbers = field(default_factory=Numbers)
    version: str = "1"
    _ready: R | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "shardrun start"))
    _deaths: list[float] = field(default_factory=list)
    _restarting: asyncio.Task[None] | None = None

    @abstractmethod
    def _start(self) -> R:
        """Starts the ranks; blocks. Raises `ShardrunError`."""

    @abstractmethod
    def _stop(self, ready: R) -> None:
        """Ends them; blocks."""

    @property
    def ready(self) -> R:
        """What answers. Raises `RefusalError` where the model is not ready."""
        if self._ready is None or self.state is not State.READY:
            waits = self.state in {State.LOADING}
            told = {State.LOADING: "is loading", State.FAILED: "has failed"}.get(self.state, "is not loaded")
            raise RefusalError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the model {self.name!r} {told}" + (": ask again later" if waits else ""),
                retry=RETRY_SECONDS if waits else None,
            )
        return self._ready

    def _begin(self) -> None:
        """The ranks are there."""

    async def _end(self) -> None:
        """They are about to end."""

    async def load(self) -> None:
        """Starts the ranks, if they are not there. Raises what starting raises."""
        async with self._changing:
            if self._ready is not None:
                return
            self.state, self.reason = State.LOADING, ""
            self.stopping.clear()
            starting = self._apart(self._started)
            try:
                self._ready = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # The thread goes on: what it starts must not stay.
                self.state = State.UNLOADED
                self.stopping.set()
                with contextlib.suppress(Exception):
                    await self._bury(await starting)
                raise
            except BaseException as error:
                self.state, self.reason = State.FAILED, str(error)
                raise
            self.state = State.READY
            self._begin()

    def _apart(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Has it done in the model's own thread: starts take minutes, and those of all requests are few."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _started(self) -> R:
        ready = self._start()
        if self.stopping.is_set():
            self._stop(ready)
            raise LaunchError(f"the model {self.name!r} was unloaded while it was loading")
        return ready

    async def unload(self) -> None:
        """Ends the ranks."""
        restarting, self._restarting = self._restarting, None
        if restarting is not None:
            restarting.cancel()
            await asyncio.wait({restarting})
        async with self._changing:
            ready, self._ready = self._ready, None
            self.state = State.UNLOADED
            await self._end()
            if ready is not None:
                await self._apart(functools.partial(self._stop, ready))

    @abstractmethod
    def _gone(self, ready: R) -> bool:
        """Whether the ranks have died."""

    def look(self) -> None:
        """Notes ranks that have died while nobody asked them."""
        if self._ready is not None and self._gone(self._ready):
            self.lost(LaunchError("its ranks have ended while nobody asked them"), self._ready)

    def lost(self, error: BaseException, what: R) -> None:
        """The ranks ``what`` have failed: they are started again, or the model has failed."""
        if self._ready is not what:
            return  # another request has told already
        log.error("model %s: %s", self.name, error)
        self._ready = None
        if self._restarting is not None:
            self._restarting.cancel()  # one that somebody else was faster than
        if not self._may_start_again():
            self.state, self.reason = State.FAILED, str(error)
            self._restarting = asyncio.create_task(self._bury(what))
            return
        self.state = State.LOADING
        self._restarting = asyncio.create_task(self._restart(what))

    def _may_start_again(self) -> bool:
        """Whether ranks that died now are to be started again; counts their death."""
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at < CALM_SECONDS), now]
        most = MOST_RESTARTS if self.restarts is None else self.restarts
        return self.again and len(self._deaths) <= most

    async def _bury(self, what: R) -> None:
        with contextlib.suppress(Exception):
            await self._apart(functools.partial(self._stop, what))

    async def _restart(self, what: R) -> None:
        await self._bury(what)
        while True:
            if (before := len(self._deaths) - 1) > 0:
                await asyncio.sleep(_BACK_OFF * 2 ** min(before - 1, 6))
            self.numbers.restarts += 1
            self.metrics.restarts.labels(self.name).inc()
            try:
                await self.load()
            except Exception as error:
                log.error("model %s: its ranks could not be started again: %s", self.name, error)
                if not self._may_start_again():
                    return
                self.state = State.LOADING
            else:
                log.warning("model %s: its ranks were started again", self.name)
                return

    async def until_ready(self, deadline: float) -> R:
        """What answers, if need be after a restart. Raises `RefusalError`."""
        while self.state is State.LOADING and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return self.ready


def is_loss(error: BaseException) -> bool:
    """Whether an error means that a model's ranks are gone."""
    return isinstance(error, RankFailedError | LaunchError)


@dataclass
class Repository:
    """The models of a server, by name."""

    models: dict[str, Model]
    closing: bool = False

    def get(self, name: str, version: str | None = None) -> Model:
        """A model. Raises `RefusalError` for one that is not here."""
        found = self.models.get(name)
        if found is None:
            known = ", ".join(sorted(self.models)[:8])
            raise RefusalError(
                HTTPStatus.NOT_FOUND, f"there is no model {name[:80]!r} here: there is {known}"
            )
        if version not in {None, "", found.version}:
            raise RefusalError(
                HTTPStatus.NOT_FOUND, f"the model {name!r} has no version {version!r}: it has {found.version}"
            )
        return found

    async def load_all(self, told: Callable[[Model], Awaitable[None]] | None = None) -> None:
        """Loads one after another, so that each finds the memory that the others have left."""
        for model in self.models.values():
            await model.load()
            if told is not None:
                await told(model)

    async def watch(self) -> None:
        """Looks after all models, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for model in self.models.values():
                model.look()

    async def close(self) -> None:
        """Ends all ranks."""
        self.closing = True
        await asyncio.gather(*(model.unload() for model in self.models.values()), return_exceptions=True)


def name_of(path: Path) -> str:
    """The name under which a model is served where nobody says another one."""
    return path.resolve().stem or "model"
