"""A model of tensors: requests wait in a fair queue and go through its ranks one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from launcher.common.within import Within
from launcher.serving.batching import Batch, Batching
from launcher.serving.fair_queue import FairQueue
from launcher.serving.models import Served, is_loss
from launcher.serving.refusals import RETRY_SECONDS, RefusalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.group.group import Group
    from sharding.common.arrays import Array

    Arrays = Mapping[str, Array]


@dataclass(eq=False)
class Request:
    """One request that waits or is computed."""

    feeds: Arrays
    deadline: float
    answer: asyncio.Future[Arrays]
    came: int = field(default_factory=time.monotonic_ns)
    tries: int = 0


@dataclass
class TensorModel(Served["Group"]):
    """A group of ranks behind a queue. ``open_group``: starts it."""

    open_group: Callable[[], Group] = field(kw_only=True)
    batching: Batching = field(default_factory=Batching, kw_only=True)
    _queue: FairQueue[Request] = field(init=False)
    _worker: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._queue = FairQueue(self.limits.queue)
        self._queued = self.metrics.queued.labels(self.name)

    def _start(self) -> Group:
        group = self.open_group()
        try:
            self.batching.check(group)
        except BaseException:
            group.close()
            raise
        return group

    def _stop(self, ready: Group) -> None:
        ready.close()

    def _gone(self, ready: Group) -> bool:
        return ready.state == "failed"

    def _begin(self) -> None:
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _end(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})
            self._worker = None
        while (request := self._queue.take()) is not None:
            _fail(request, self._unloaded())
        self._tell_waiting()

    def _unloaded(self) -> RefusalError:
        return RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, f"the model {self.name!r} was unloaded")

    def _tell_waiting(self) -> None:
        self._queued.set(len(self._queue))

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def tell_spent(self) -> None:
        """Has the metrics say what the ranks that there are have spent."""
        if (group := self._ready) is not None:
            spent = {
                "run": group.run_seconds,
                "communication": group.communication_seconds,
                "segments": group.segment_seconds,
            }
            for what, seconds in spent.items():
                self.metrics.busy.labels(self.name, what).set(seconds)

    async def predict(
        self, feeds: Arrays, *, client: str, priority: int = 0, seconds: float | None = None
    ) -> Arrays:
        """The outputs of one request. Raises `RefusalError` where there is no room or no time, and what the
        ranks raise. A caller that is cancelled leaves the queue."""
        self.ready._tensors(feeds)  # what does not fit is refused before it waits
        if self._queue.full:
            self.metrics.refused.labels(self.name).inc()
            raise RefusalError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{len(self._queue)} requests wait for the model {self.name!r} already: ask again later",
                retry=RETRY_SECONDS,
            )
        allowed = min(seconds or self.limits.seconds, self.limits.seconds)
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        request = Request(feeds, time.monotonic() + allowed, answer)
        self._queue.put(request, client, priority)
        self._tell_waiting()
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
            self._tell_waiting()

    async def _work(self) -> None:
        while True:
            batch = Batch([await self._queue.get()])
            try:
                await self.batching.fill(batch, self._queue)
                self._tell_waiting()
                await self._compute(batch)
            except BaseException as error:
                # Nobody is left without an answer, and nothing that goes wrong with some ends the work.
                told = error if isinstance(error, Exception) else self._unloaded()
                for request in batch.requests:
                    _fail(request, told)
                if not isinstance(error, Exception):
                    raise

    async def _compute(self, batch: Batch[Request]) -> None:
        batch.drop(lambda request: request.answer.done())
        if not batch.requests:
            return
        began = time.monotonic_ns()
        last = max(request.deadline for request in batch.requests)
        try:
            group = await self.until_ready(last)
        except RefusalError as refusal:
            for request in batch.requests:
                _fail(request, refusal)
            return

        try:
            answers = batch.split(await group.predict_async(batch.feeds()))
        except Exception as error:
            await self._failed(batch, group, error)
            return
        spent = time.monotonic_ns() - began
        self.numbers.runs += 1
        self.metrics.batches.labels(self.name).observe(batch.rows)
        for request, own in zip(batch.requests, answers, strict=True):
            self.numbers.succeeded += 1
            self.numbers.waiting_ns += began - request.came
            self.numbers.computing_ns += spent
            self.numbers.last = time.time()
            if not request.answer.done():
                request.answer.set_result(own)

    async def _failed(self, batch: Batch[Request], group: Group, error: Exception) -> None:
        if is_loss(error):
            self.lost(error, group)
            for request in batch.requests:
                request.tries += 1
                # Nothing was answered: the request is computed once more where ranks come back.
                if self.again and request.tries < 2:
                    await self._compute(Batch([request]))
                else:
                    self._count_failure(request, error)
        elif len(batch.requests) > 1:  # one of them is at fault: each gets its own answer
            for request in batch.requests:
                await self._compute(Batch([request]))
        else:
            self._count_failure(batch.requests[0], error)

    def _count_failure(self, request: Request, error: Exception) -> None:
        self.numbers.failed += 1
        _fail(request, error)


def _fail(request: Request, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
