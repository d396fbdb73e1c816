"""Series of requests: answers in order, and a few requests ahead of the one that is waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from ranks.talk import area

if TYPE_CHECKING:
    import asyncio

    from sharding.common.arrays import Array

    Feeds = Mapping[str, Array]
    Outputs = dict[str, Array]

AHEAD = 2 * area.SLOTS
MOST_AHEAD = 4096
Source = TypeVar("Source")


def check_ahead(ahead: int | None) -> int:
    """How many requests may be asked before the first of them is taken. Raises `ConfigError`."""
    if ahead is None:
        return AHEAD
    if isinstance(ahead, bool) or not isinstance(ahead, int) or not 1 <= ahead <= MOST_AHEAD:
        raise ConfigError(f"ahead: expected a whole number from 1 to {MOST_AHEAD}, found {ahead!r}")
    return ahead


def in_order(
    source: Iterable[Feeds],
    submit: Callable[[Feeds], Future[Outputs]],
    *,
    ahead: int,
    timeout: float | None,
    errors: bool,
) -> Generator[Outputs | ShardrunError, None, None]:
    """The outputs for each inputs of the source, which is read as they are taken. ``errors``: those of single
    requests are given in their places, and not raised."""
    asked: deque[Future[Outputs]] = deque()
    left = iter(source)
    ended: BaseException | None = None
    try:
        while True:
            while ended is None and len(asked) < ahead:
                try:
                    asked.append(_submitted(submit, next(left)))
                except (
                    BaseException
                ) as error:  # the end of the source, or its own error: first what came before
                    if not isinstance(error, Exception):
                        raise
                    ended = error
            if not asked:
                break
            future = asked.popleft()
            try:
                answer: Outputs | ShardrunError = future.result(timeout)
            except ShardrunError as error:
                if not errors:
                    raise
                answer = error
            yield answer
    finally:
        for future in asked:
            future.cancel()
    if ended is not None and not isinstance(ended, StopIteration):
        raise ended


def _submitted(submit: Callable[[Feeds], Future[Outputs]], feeds: Feeds) -> Future[Outputs]:
    """A future, also of inputs that do not fit."""
    try:
        return submit(feeds)
    except (LaunchError, RankFailedError):
        raise  # nothing can be asked any more
    except ShardrunError as error:
        failed: Future[Outputs] = Future()
        failed.set_exception(error)
        return failed


async def in_order_async(
    source: Iterable[Feeds] | AsyncIterable[Feeds],
    submit: Callable[[Feeds], Future[Outputs]],
    *,
    ahead: int,
    errors: bool,
) -> AsyncGenerator[Outputs | ShardrunError, None]:
    """The same in an event loop, of a source that may be asynchronous."""
    import asyncio

    asked: deque[asyncio.Future[Outputs]] = deque()
    ended: Exception | None = None
    left = source.__aiter__() if isinstance(source, AsyncIterable) else iter(source)
    try:
        while True:
            while ended is None and len(asked) < ahead:
                try:
                    feeds = next(left) if isinstance(left, Iterable) else await left.__anext__()
                    asked.append(asyncio.wrap_future(_submitted(submit, feeds)))
                except Exception as error:
                    ended = error
            if not asked:
                break
            future = asked.popleft()
            try:
                answer: Outputs | ShardrunError = await future
            except ShardrunError as error:
                if not errors:
                    raise
                answer = error
            yield answer
    finally:
        for future in asked:
            if not future.cancel() and not future.cancelled():
                future.exception()  # which asyncio would say nobody has asked for
    if ended is not None and not isinstance(ended, StopIteration | StopAsyncIteration):
        raise ended
