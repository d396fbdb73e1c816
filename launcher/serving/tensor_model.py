"""A model of tensors: requests wait in a fair queue, and a few are on their way to its ranks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from launcher.common.within import Within
from launcher.serving.batching import Batch, Batching
from launcher.serving.fair_queue import FairQueue
from launcher.serving.models import Served, State
from launcher.serving.refusals import RETRY_SECONDS, RefusalError, is_loss
from launcher.serving.seeing.traces import CURRENT, Trace
from sharding.common.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.group.group import Group
    from launcher.serving.embedding.encoder import Encoder
    from launcher.serving.metrics import Late
    from sharding.common.arrays import Array

    Arrays = Mapping[str, Array]

AHEAD = 2
"""Runs on their way at once: the next one lies ready when ranks have finished one. More would gain nothing,
and let whoever asks next wait for more."""
_MORE, _QUICK_NS, _STEADY = 2, 5_000_000, 16
"""So many more go where ranks would compute all of them within so short a time, by each of so many runs in a
row: ranks and this process then wake up less often, which takes as long as such a run, and nobody waits for
much. They go until a run takes twice as long: models at the edge would else change all the time."""


@dataclass(eq=False)
class Request:
    """One request that waits or is computed."""

    feeds: Arrays
    deadline: float
    answer: asyncio.Future[Arrays]
    came: int = field(default_factory=time.monotonic_ns)
    trace: Trace | None = field(default_factory=CURRENT.get)


@dataclass
class TensorModel(Served["Group"]):
    """A group of ranks behind a queue. ``open_group``: starts it."""

    open_group: Callable[[], Group] = field(kw_only=True)
    batching: Batching = field(default_factory=Batching, kw_only=True)
    encoder: Encoder | None = field(default=None, kw_only=True)
    """How texts become inputs, where the model is an encoder of texts."""
    created: int = field(default_factory=lambda: int(time.time()), kw_only=True)
    _queue: FairQueue[Request] = field(init=False)
    _worker: asyncio.Task[None] | None = None
    _runs: set[asyncio.Future[None] | asyncio.Future[dict[str, Array]]] = field(default_factory=set)
    """Those on their way to the ranks."""
    _quick: int = 0
    """How many runs in a row were short."""
    _observed: tuple[Late, Late] | None = None
    _landed: asyncio.Event = field(default_factory=asyncio.Event)
    """A run has ended."""

    def __post_init__(self) -> None:
        self._queue = FairQueue(self.limits.queue)

    def _start(self) -> Group:
        group = self.open_group()
        try:
            self.batching = self.batching.checked(group)
            if self.encoder is not None:
                self.encoder = self.encoder.proved(group.predict)
        except BaseException:
            group.close()
            raise
        return group

    def _stop(self, ready: Group) -> None:
        ready.close()

    def _groups(self, ready: Group) -> Sequence[Group]:
        return (ready,)

    def _begin(self) -> None:
        if self._ready is not None:
            self._ready._read_in(asyncio.get_running_loop())
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _end(self) -> None:
        tasks = [*self._runs, *([self._worker] if self._worker is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._worker = None
        while (request := self._queue.take()) is not None:
            _fail(request, self._unloaded())

    def _unloaded(self) -> RefusalError:
        return RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, f"the model {self.name!r} was unloaded")

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether anything is to be answered."""
        return bool(self.under_way or self._queue or self._runs)

    async def predict(
        self, feeds: Arrays, *, client: str, priority: int = 0, seconds: float | None = None
    ) -> Arrays:
        """The outputs of one request. Raises `RefusalError` where there is no room or no time, and what the
        ranks raise. A caller that is cancelled leaves the queue."""
        ready = self.ready
        # What does not fit is refused before it waits, and holds up nobody else: no file is read for it.
        fitting = ready._tensors(feeds, hint=False)
        if self._queue.full:
            self.metrics.refused.labels(self.name).inc()
            raise RefusalError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{counted(len(self._queue), 'request')} waiting for the model {self.name!r} already: "
                "ask again later",
                retry=RETRY_SECONDS,
            )
        allowed = min(seconds or self.limits.seconds, self.limits.seconds)
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        request = Request(fitting, time.monotonic() + allowed, answer)
        if self._has_room and not self._queue:
            self._send(ready, request)
        else:
            self._queue.put(request, client, priority)
        try:
            async with Within(allowed):
                return await answer
        except asyncio.TimeoutError:
            raise RefusalError(
                HTTPStatus.GATEWAY_TIMEOUT, f"the model {self.name!r} did not answer within {allowed:g} s"
            ) from None
        finally:
            # Its place is for others at once, and its tensors are freed.
            self._queue.remove(request, client, priority)

    @property
    def _has_room(self) -> bool:
        """Whether a request may go to the ranks as it is, at once."""
        most = AHEAD + (_MORE if self._quick >= _STEADY else 0)
        return self.batching.rows == 1 and len(self._runs) < most

    def _send(self, ready: Group, request: Request) -> None:
        """Sends a request by itself, without a task: most need none."""
        began, ahead = time.monotonic_ns(), len(self._runs)
        try:
            sent = ready._submit_fitting(request.feeds)
        except Exception as error:
            self._fail(request, error)
            return
        self._runs.add(sent)
        sent.add_done_callback(functools.partial(self._sent, request, began, ahead))

    def _sent(self, request: Request, began: int, ahead: int, sent: asyncio.Future[dict[str, Array]]) -> None:
        """Ranks have answered it; who waits next goes to them."""
        self._runs.discard(sent)
        try:
            if sent.cancelled():
                self._fail(request, self._unloaded())
            elif (error := sent.exception()) is not None:
                self._fail(request, error)
            else:
                self._answered(Batch([request]), [sent.result()], began, ahead)
        except Exception as error:
            self._fail(request, error)
        while self._queue and self._has_room and self.state is State.READY:
            if (following := self._queue.take()) is not None and not following.answer.done():
                self._send(self.ready, following)
        if len(self._runs) < AHEAD:
            self._landed.set()

    async def _work(self) -> None:
        while True:
            await self._queue.some()
            await self._until_room(AHEAD - 1)
            if (first := self._queue.take()) is None:
                continue
            batch = Batch([first], self.batching.padding)
            async with self._told(batch):
                await self._fill(batch)
                batch.drop(lambda request: request.answer.done())
                if not batch.requests:
                    continue
                last = max(request.deadline for request in batch.requests)
                group, began = await self.until_ready(last), time.monotonic_ns()
                ahead, sent = len(self._runs), group.submit_async(batch.feeds())
                run = asyncio.create_task(self._finish(batch, sent, began, ahead))
                self._runs.add(run)
                run.add_done_callback(functools.partial(self._land, batch, sent))

    async def _until_room(self, most: int) -> None:
        """Until at most so many runs are on their way."""
        while len(self._runs) > most:
            self._landed.clear()
            await self._landed.wait()

    def _land(
        self, batch: Batch[Request], sent: asyncio.Future[dict[str, Array]], run: asyncio.Task[None]
    ) -> None:
        self._runs.discard(run)
        self._landed.set()
        if run.cancelled():  # maybe before its first step, in which case it has told nobody
            sent.cancel()
            for request in batch.requests:
                self._fail(request, self._unloaded())

    async def _fill(self, batch: Batch[Request]) -> None:
        """Adds requests that go together. One that ranks could not begin yet waits for more of them."""
        await self.batching.fill(batch, self._queue)
        while self.batching.rows > 1 and self._runs and batch.rows < self.batching.rows:
            await self._until_room(len(self._runs) - 1)
            await self.batching.fill(batch, self._queue, wait=False)

    @contextlib.asynccontextmanager
    async def _told(self, batch: Batch[Request]) -> AsyncIterator[None]:
        """Nobody is left without an answer, and nothing that goes wrong with some ends the work."""
        try:
            yield
        except BaseException as error:
            told = error if isinstance(error, Exception) else self._unloaded()
            for request in batch.requests:
                self._fail(request, told)
            if not isinstance(error, Exception):
                raise

    async def _finish(
        self, batch: Batch[Request], sent: asyncio.Future[dict[str, Array]], began: int, ahead: int
    ) -> None:
        async with self._told(batch):
            try:
                answers = batch.split(await sent)
            except Exception:
                if len(batch.requests) == 1:
                    raise
                # One of them is at fault: each gets its own answer. What the ranks died beside has been
                # repeated by their group already, but together.
                await self._one_by_one(batch.requests)
                return
            self._answered(batch, answers, began, ahead)

    async def _one_by_one(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.answer.done():
                continue  # nobody waits for it any more
            alone, began, ahead = Batch([request]), time.monotonic_ns(), len(self._runs)
            async with self._told(alone):
                group = await self.until_ready(request.deadline)
                outputs = await group.submit_async(alone.feeds())
                self._answered(alone, [outputs], began, ahead)

    def _answered(self, batch: Batch[Request], answers: Sequence[Arrays], began: int, ahead: int) -> None:
        """``ahead``: how many were on their way when it was sent. Ranks compute those first."""
        ended = time.monotonic_ns()
        together = (ended - began) // (1 + ahead) * (AHEAD + _MORE)
        most = _QUICK_NS * (2 if self._quick >= _STEADY else 1)
        self._quick = self._quick + 1 if together < most else 0
        self.numbers.runs += 1
        if self._observed is None:
            metrics = self.metrics
            self._observed = metrics.late(metrics.batches, self.name), metrics.late(metrics.waited, self.name)
        batches, waited = self._observed
        batches.observe(batch.rows)
        for request, own in zip(batch.requests, answers, strict=True):
            self.numbers.succeeded += 1
            self.numbers.waiting_ns += began - request.came
            self.numbers.computing_ns += ended - began
            self.numbers.last = time.time()
            waited.observe((began - request.came) / 1e9)
            if request.trace is not None:
                request.trace.passed("queue", request.came, began)
                request.trace.passed("predict", began, ended, rows=batch.rows, requests=len(batch.requests))
            if not request.answer.done():
                request.answer.set_result(own)

    def _fail(self, request: Request, error: BaseException) -> None:
        if not isinstance(error, RefusalError):
            self.numbers.failed += 1
        if is_loss(error):
            self.look()
        _fail(request, error)


def _fail(request: Request, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
