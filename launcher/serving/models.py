"""Models that a server has: each with ranks of its own, which their group starts again where they die."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, TypeVar

from launcher.errors import LaunchError
from launcher.serving.refusals import RETRY_SECONDS, RefusalError

if TYPE_CHECKING:
    from launcher.group.group import Group
    from launcher.serving.limits import ServeLimits
    from launcher.serving.metrics import Metrics

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_ASK_SECONDS = 0.02
_LONGEST_TEXT = 600.0
"""How long texts of a version that another one has replaced may still grow."""


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
    numbers: Numbers

    @property
    @abstractmethod
    def state(self) -> State:
        """What may be asked of it."""

    @property
    @abstractmethod
    def groups(self) -> Sequence[Group]:
        """The ranks that it has now."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that wait for their turn."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether anything is to be answered."""

    @abstractmethod
    async def load(self) -> None:
        """Starts the ranks, if they are not there. Raises what starting raises."""

    @abstractmethod
    async def unload(self) -> None:
        """Ends the ranks."""

    @abstractmethod
    def look(self) -> None:
        """Notes ranks that have died while nobody asked them."""

    @abstractmethod
    def used(self) -> Callable[[], None]:
        """A request is under way until what this gives is called: ranks that are to end when nobody needs
        them stay for it."""

    @abstractmethod
    async def retire(self) -> None:
        """Ends the ranks, once all that is under way is answered."""


@dataclass
class Served(Model, Generic[R]):
    """One model with ranks of its own. `_start` and `_stop` run in a thread."""

    name: str
    limits: ServeLimits
    metrics: Metrics
    stopping: threading.Event = field(default_factory=threading.Event)
    """Is set while what `_start` starts is not wanted any more."""
    reason: str = ""
    """Why it has failed."""
    numbers: Numbers = field(default_factory=Numbers)
    version: str = "1"
    under_way: int = 0
    """Requests that need it, from the moment that they name it."""
    _stage: State = State.UNLOADED
    _ready: R | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "shardrun start"))
    _noted: int = 0
    """Restarts of the ranks that there are now which are counted already."""
    _burial: asyncio.Task[None] | None = None

    @abstractmethod
    def _start(self) -> R:
        """Starts the ranks; blocks. Raises `ShardrunError`."""

    @abstractmethod
    def _stop(self, ready: R) -> None:
        """Ends them; blocks."""

    @abstractmethod
    def _groups(self, ready: R) -> Sequence[Group]:
        """The groups of ranks among it."""

    @property
    def groups(self) -> Sequence[Group]:
        """The ranks that it has now."""
        return () if self._ready is None else self._groups(self._ready)

    @property
    def state(self) -> State:
        """What may be asked of it: that of its ranks, once they are there."""
        if self._stage is not State.READY:
            return self._stage
        away = [state for group in self.groups if (state := group.state) != "ready"]
        if not away:
            return State.READY
        return State.LOADING if set(away) == {"restarting"} else State.FAILED

    @property
    def ready(self) -> R:
        """What answers. Raises `RefusalError` where the model is not ready."""
        state = self.state
        if self._ready is None or state is not State.READY:
            waits = state is State.LOADING
            told = {State.LOADING: "is loading", State.FAILED: "has failed"}.get(state, "is not loaded")
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
            self.look()
            if self._ready is not None:
                return
            await self._buried()
            self._stage, self.reason = State.LOADING, ""
            self.stopping.clear()
            starting = self._apart(self._started)
            try:
                self._ready = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # The thread goes on: what it starts must not stay.
                self._stage = State.UNLOADED
                self.stopping.set()
                with contextlib.suppress(Exception):
                    await self._bury(await starting)
                raise
            except BaseException as error:
                self._stage = State.UNLOADED if self.stopping.is_set() else State.FAILED
                self.reason = str(error)
                raise
            self._stage, self._noted = State.READY, 0
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
        """Ends the ranks, also those that are being started, or started again; once it has begun also where
        nobody waits for it any more."""
        if self._stage is State.LOADING:
            self.stopping.set()
        await asyncio.shield(self._unload())

    async def _unload(self) -> None:
        async with self._changing:
            self.look()
            ready, self._ready = self._ready, None
            self._stage = State.UNLOADED
            await self._end()
            if ready is not None:
                await self._apart(functools.partial(self._stop, ready))
            await self._buried()

    def look(self) -> None:
        """Notes ranks that have died while nobody asked them: how often they were started again, and whether
        none come any more."""
        if self._ready is None:
            return
        restarts = sum(group.restarts for group in self.groups)
        if more := restarts - self._noted:
            self._noted = restarts
            self.numbers.restarts += more
            self.metrics.restarts.labels(self.name).inc(more)
        if self.state is not State.FAILED:
            return
        ready, self._ready = self._ready, None
        self._stage, self.reason = State.FAILED, "its ranks have ended"
        log.error("model %s: its ranks have ended, and none are started again", self.name)
        self._burial = asyncio.create_task(self._bury(ready))

    async def _bury(self, what: R) -> None:
        with contextlib.suppress(Exception):
            await self._apart(functools.partial(self._stop, what))

    async def _buried(self) -> None:
        burial, self._burial = self._burial, None
        if burial is not None:
            await asyncio.wait({burial})

    async def until_ready(self, deadline: float) -> R:
        """What answers, if need be after a restart. Raises `RefusalError`."""
        while self.state is State.LOADING and time.monotonic() < deadline:
            await asyncio.sleep(_ASK_SECONDS)
        return self.ready

    def used(self) -> Callable[[], None]:
        """As `Model.used`."""
        self.under_way += 1
        return self._left

    def _left(self) -> None:
        self.under_way -= 1

    async def retire(self) -> None:
        """Ends the ranks, once all that is under way is answered."""
        end = time.monotonic() + max(_LONGEST_TEXT, self.limits.seconds)
        while self.busy and time.monotonic() < end:
            await asyncio.sleep(_ASK_SECONDS)
        with contextlib.suppress(Exception):
            await self.unload()


@dataclass
class Repository:
    """The models of a server, by name. ``versions``: makes another version of those that may have several;
    raises `RefusalError` for one that there is not."""

    models: dict[str, Model]
    closing: bool = False
    versions: dict[str, Callable[[str], Model]] = field(default_factory=dict)
    _coming: dict[str, str] = field(default_factory=dict)
    """Versions that are being loaded beside those that answer."""
    _beside: dict[str, Model] = field(default_factory=dict)
    """The same, once there is something that may have ranks."""
    _retiring: dict[asyncio.Task[None], Model] = field(default_factory=dict)

    def get(self, name: str, version: str | None = None) -> Model:
        """A model. Raises `RefusalError` for one that is not here."""
        found = self.models.get(name)
        if found is None:
            known = ", ".join(sorted(self.models)[:8])
            raise RefusalError(
                HTTPStatus.NOT_FOUND, f"there is no model {name[:80]!r} here: there is {known}"
            )
        if version not in {None, "", found.version}:
            beside = self._beside.get(name)
            if beside is not None and beside.version == version:
                return beside
            raise RefusalError(
                HTTPStatus.NOT_FOUND,
                f"the model {name!r} has no version {str(version)[:40]!r}: it has {found.version}",
            )
        return found

    @property
    def all(self) -> Iterable[Model]:
        """All that have ranks, or may have them: also versions that come or go."""
        return [*self.models.values(), *self._beside.values(), *self._retiring.values()]

    async def load_all(self, told: Callable[[Model], Awaitable[None]] | None = None) -> None:
        """Loads one after another, so that each finds the memory that the others have left. One that a client
        unloads meanwhile is left as it is."""
        for name in list(self.models):
            model = self.models[name]  # now: a client may have had another version loaded
            try:
                await model.load()
            except LaunchError:
                if model.state is not State.UNLOADED:
                    raise
                continue
            if told is not None:
                await told(model)

    async def replace(self, name: str, version: str, check: Callable[[Model, Model], None]) -> None:
        """Loads another version beside the one that answers, has it checked against that one, and lets it
        answer from then on; the other one ends when all that it was asked is answered.

        Raises what starting and ``check`` raise, and `RefusalError`; the version before goes on then."""
        before = self.get(name)
        if before.version == version:
            await before.load()
            return
        self._refuse_two(name, "ask again")
        if (make := self.versions.get(name)) is None:
            raise RefusalError(
                HTTPStatus.NOT_FOUND, f"this server knows of no other versions of the model {name!r}"
            )
        self._coming[name] = version
        try:
            found = await asyncio.to_thread(make, version)  # which may read the model
            self._beside[name] = found
            try:
                await found.load()
                if before.state is State.READY:
                    check(found, before)
                if self.closing:
                    raise RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is ending")
            except BaseException:
                await found.unload()
                raise
        finally:
            del self._coming[name]
            self._beside.pop(name, None)
        self.models[name] = found
        retiring = asyncio.create_task(before.retire())
        self._retiring[retiring] = before
        retiring.add_done_callback(self._retiring.pop)
        log.info("the model %s is now version %s", name, version)

    async def unload(self, name: str) -> None:
        """Ends a model's ranks. Raises `RefusalError` while another version of it is being loaded."""
        found = self.get(name)
        self._refuse_two(name, "unload it")
        await found.unload()

    def _refuse_two(self, name: str, advice: str) -> None:
        if (version := self._coming.get(name)) is not None:
            raise RefusalError(
                HTTPStatus.CONFLICT,
                f"version {version} of {name!r} is being loaded: {advice} when it is",
                retry=RETRY_SECONDS,
            )

    async def watch(self) -> None:
        """Looks after all models, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for model in self.all:
                model.look()

    async def close(self) -> None:
        """Ends all ranks."""
        self.closing = True
        retiring = dict(self._retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        models = {id(model): model for model in (*self.all, *retiring.values())}
        await asyncio.gather(*(model.unload() for model in models.values()), return_exceptions=True)
