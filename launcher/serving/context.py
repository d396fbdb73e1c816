"""What every route of a server uses, and the frame around each: access, limits, errors, metrics, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launcher.common.within import Within, taken_back, this_task
from launcher.serving.access import ACCESS, Role, Tokens, check_site, client_of
from launcher.serving.bodies import object_of, read_body
from launcher.serving.parsing.pace import LARGE
from launcher.serving.refusals import RETRY_SECONDS, RefusalError, refusal_of
from launcher.serving.seeing.traces import CURRENT, Trace, Traces
from launcher.serving.seeing.usage import USAGE, Usage

if TYPE_CHECKING:
    from launcher.serving.limits import ServeLimits
    from launcher.serving.metrics import Counted, Late, Metrics
    from launcher.serving.models import Model, Repository

T = TypeVar("T")
log = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)
_LATEST = 20
_WATCH_SECONDS = 0.05
"""So long a request takes before anybody looks whether its client is still there."""
CLOSED = 499
"""The status in logs of a request whose client went away (as nginx has it)."""


@dataclass
class Context:
    """One server."""

    repository: Repository
    limits: ServeLimits
    metrics: Metrics
    tokens: Tokens = field(default_factory=Tokens)
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Where new weights may be taken from, by model."""
    traces: Traces = field(default_factory=Traces)
    starting: bool = True
    draining: bool = False
    since: float = field(default_factory=time.monotonic)
    latest: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """The latest requests, newest first."""
    held: int = 0
    """Bytes of bodies and answers under way."""
    working: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "shardrun bodies"))
    """Where large bodies are read and written."""


@dataclass
class Call:
    """One request under way."""

    context: Context
    request: Request
    id: str
    client: str
    model: str = ""
    began: float = field(default_factory=time.perf_counter)
    closing: list[Callable[[], object]] = field(default_factory=list)
    """What is called when it has ended, however."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those of the request, by their names in small letters."""
    usage: Usage = field(default_factory=Usage)
    trace: Trace | None = None
    _held: int = 0

    def use(self, model: Model) -> None:
        """This is the model that it needs, until it has ended."""
        self.model = model.name
        self.closing.append(model.used())

    async def body(self) -> bytes:
        """The request's body, within the limit."""
        limits, headers = self.context.limits, self.headers
        length, encoding = headers.get("content-length"), headers.get("content-encoding")
        try:
            async with Within(limits.seconds):
                return await read_body(self._chunks(), limits.body, length, encoding, self.hold)
        except asyncio.TimeoutError:
            raise RefusalError(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {limits.seconds:g} s"
            ) from None

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes: `Request.stream` gives one more, which is empty."""
        more = True
        while more:
            message = await self.request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def hold(self, size: int) -> None:
        """Counts so many bytes more of it as under way. Raises `RefusalError` where there are too many."""
        context, most = self.context, self.context.limits.held
        if context.held + size > most and context.held > self._held:  # the only one may be larger
            context.metrics.refused.labels(self.model).inc()
            raise RefusalError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"bodies of {most} bytes are under way already: ask again later",
                retry=RETRY_SECONDS,
            )
        self._held += size
        context.held += size

    def grow(self, size: int) -> None:
        """What came of the body takes so many bytes instead; what is not large is not counted. Raises as
        `hold` does."""
        if size > max(self._held, LARGE):
            self.hold(size - self._held)

    def release(self) -> None:
        """It has ended, however."""
        self.context.held -= self._held
        self._held = 0
        try:
            while self.closing:
                self.closing.pop()()
        finally:
            if self.closing:  # one of them went wrong
                self.release()

    async def object_in(self, data: bytes) -> dict[str, object]:
        """The JSON object that a body is."""
        return await self.apart(len(data), lambda: object_of(data))

    async def fields(self) -> dict[str, object]:
        """The same of a body that may be left out."""
        data = await self.body()
        return await self.object_in(data) if data.strip() else {}

    async def object(self) -> dict[str, object]:
        """The JSON object in the body."""
        return await self.object_in(await self.body())

    async def apart(self, size: int, work: Callable[[], T]) -> T:
        """What ``work`` gives on so many bytes. Many hold nobody else up: that is done in a thread, one at a
        time, so that what it takes beside them is taken once."""
        if size < LARGE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.context.working, work)

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """The result of ``work``, which is cancelled where the client goes away. The body must have been
        read. Raises `ClientDisconnect`."""
        task, gone = this_task(), False
        watching: list[asyncio.Task[None]] = []

        async def watch() -> None:
            nonlocal gone
            while (await self.request.receive())["type"] != "http.disconnect":
                pass
            gone = True
            task.cancel()

        # Most are answered before it pays to look.
        timer = asyncio.get_running_loop().call_later(
            _WATCH_SECONDS, lambda: watching.append(asyncio.ensure_future(watch()))
        )
        try:
            return await work
        except asyncio.CancelledError:
            if gone and taken_back(task):
                raise ClientDisconnect from None
            raise
        finally:
            timer.cancel()
            for one in watching:
                one.cancel()


Handler = Callable[[Call], Awaitable[Response]]
ErrorBody = Callable[[RefusalError], Mapping[str, object]]


@dataclass(frozen=True)
class Frame:
    """Makes endpoints of a protocol's handlers. ``error``: the body of its errors; ``role``: who may ask."""

    context: Context
    protocol: str
    error: ErrorBody
    _counters: dict[tuple[str, int], tuple[Counted, Late]] = field(default_factory=dict)

    def __call__(self, handler: Handler, role: Role = Role.USER) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def endpoint(request: Request) -> ASGIApp:
            return await self._answer(handler, request, role)

        return endpoint

    def begun(self, request: Request) -> Call:
        """A request that has come, in a task of its own."""
        context, headers = self.context, _headers(request)
        given = headers.get("x-request-id", "")
        # Where nobody looks at tokens, whoever sends another one each time would have as many turns.
        token = headers.get("authorization") if context.tokens.known else None
        call = Call(
            context,
            request,
            given[:64]
            if given.isascii() and given.isprintable() and given
            else f"{random.getrandbits(128):032x}",
            client_of(token, request.client.host if request.client else ""),
            headers=headers,
            trace=context.traces.request(request.method, lambda: _route(request), headers),
        )
        # Whatever works for it, in its task, finds these.
        USAGE.set(call.usage)
        CURRENT.set(call.trace)
        context.metrics.under_way += 1
        return call

    def check(self, call: Call, role: Role) -> None:
        """Raises `RefusalError` for a request of somebody who may not ask."""
        check_site(call.request.method, call.headers.get("sec-fetch-site"))
        self.context.tokens.check(call.headers.get("authorization"), role)

    async def _answer(self, handler: Handler, request: Request, role: Role) -> ASGIApp:
        context, call = self.context, self.begun(request)
        try:
            self.check(call, role)
            response = await handler(call)
            if not isinstance(response, StreamingResponse):
                call.grow(len(response.body))  # until it is taken
        except ClientDisconnect:
            response = Response(status_code=CLOSED)
        except Exception as error:
            refusal = refusal_of(error)
            response = json_response(self.error(refusal), refusal.status, refusal.headers)
        except BaseException as error:
            if not (context.draining and isinstance(error, asyncio.CancelledError)):
                self.ended(call, CLOSED)
                raise
            refusal = RefusalError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the server is ending", retry=RETRY_SECONDS
            )
            response = json_response(self.error(refusal), refusal.status, refusal.headers)
        response.raw_headers.append((b"x-request-id", call.id.encode("ascii")))
        if isinstance(response, StreamingResponse) or len(response.body) >= LARGE:
            # Its end is when the last of it is sent.
            return self._followed(call, response)
        self.ended(call, response.status_code)
        return response

    def _followed(self, call: Call, response: Response) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            whole = False

            async def noted(message: Message) -> None:
                nonlocal whole
                for piece in _pieces(message):
                    await send(piece)
                whole = message["type"] == "http.response.body" and not message.get("more_body", False)

            try:
                await response(scope, receive, noted)
            finally:
                self.ended(call, response.status_code if whole else CLOSED)
                if isinstance(body := getattr(response, "body_iterator", None), AsyncGenerator):
                    await body.aclose()

        return answer

    def ended(self, call: Call, status: int) -> None:
        """The last byte of an answer is on its way, or nobody waits for it."""
        call.release()
        seconds = time.perf_counter() - call.began
        tokens, path = call.usage.fields(), str(call.request.scope["path"])
        self.context.metrics.under_way -= 1
        self._count(call.model, status, seconds)
        self.context.traces.ended(call.trace, status, call.model, **tokens)
        if self.protocol not in {"page", "metrics"}:
            self.context.latest.appendleft(
                {
                    "time": time.time(), "model": call.model, "path": path[:80],
                    "status": status, "seconds": seconds, **tokens,
                }
            )  # fmt: skip
        if access.isEnabledFor(logging.INFO):
            request = call.request
            access.info(
                json.dumps(
                    {
                        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "id": call.id, "client": call.client,
                        "method": request.method, "path": path[:200], "model": call.model,
                        "status": status, "seconds": round(seconds, 6), **tokens,
                    }
                )
            )  # fmt: skip

    def _count(self, model: str, status: int, seconds: float) -> None:
        key = model, status
        if key not in self._counters:  # models that there are, and statuses: a few
            metrics = self.context.metrics
            self._counters[key] = (
                metrics.counted(metrics.requests, model, self.protocol, str(status)),
                metrics.late(metrics.seconds, model, self.protocol),
            )
        count, histogram = self._counters[key]
        count.inc()
        histogram.observe(seconds)


def _pieces(message: Message) -> Iterator[Message]:
    """A message in pieces, of which the next one goes when the client has taken the one before."""
    data = memoryview(message.get("body", b""))
    last = max(0, len(data) - 1) // LARGE * LARGE
    for at in range(0, last, LARGE):
        yield {**message, "body": data[at : at + LARGE], "more_body": True}
    yield {**message, "body": data[last:]} if last else message


def _headers(request: Request) -> dict[str, str]:
    """The first header of each name: starlette looks through all of them each time."""
    pairs = request.scope["headers"]
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(pairs)}


def _route(request: Request) -> str:
    """A request's path with the names of its parts in place of what clients wrote."""
    path = str(request.scope["path"])
    for name, value in request.path_params.items():
        # Behind what is called like it: a name may be the beginning of anything else, as "m" is of "models".
        path = path.replace(f"/{name}s/{value}", f"/{name}s/{{{name}}}", 1)
    return path


def json_response(
    content: Mapping[str, object] | list[object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(data, status, dict(headers or {}), "application/json")
