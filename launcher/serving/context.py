"""What every route of a server uses, and the frame around each: access, limits, errors, metrics, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Content, Response, StreamingResponse

from launcher.serving.access import ACCESS, Tokens, client_of
from launcher.serving.bodies import object_of, read_body
from launcher.serving.refusals import RefusalError, refusal_of

if TYPE_CHECKING:
    from launcher.serving.limits import ServeLimits
    from launcher.serving.metrics import Metrics
    from launcher.serving.models import Repository

T = TypeVar("T")
log = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)
_LATEST = 20
CLOSED = 499
"""The status in logs of a request whose client went away (as nginx has it)."""


@dataclass
class Context:
    """One server."""

    repository: Repository
    limits: ServeLimits
    metrics: Metrics
    tokens: Tokens = field(default_factory=Tokens)
    starting: bool = True
    draining: bool = False
    since: float = field(default_factory=time.monotonic)
    latest: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """The latest requests, newest first."""


@dataclass
class Call:
    """One request under way."""

    context: Context
    request: Request
    id: str
    client: str
    model: str = ""
    began: float = field(default_factory=time.perf_counter)

    async def body(self) -> bytes:
        """The request's body, within the limit."""
        request, limits = self.request, self.context.limits
        reading = read_body(request.stream(), limits.body, request.headers.get("content-length"))
        try:
            return await asyncio.wait_for(reading, limits.seconds)
        except asyncio.TimeoutError:
            raise RefusalError(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {limits.seconds:g} s"
            ) from None

    async def object(self) -> dict[str, object]:
        """The JSON object in the body."""
        return object_of(await self.body())

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """The result of ``work``, which is cancelled where the client goes away. The body must have been
        read. Raises `ClientDisconnect`."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientDisconnect
        finally:
            task.cancel()
            gone.cancel()

    async def _gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


Handler = Callable[[Call], Awaitable[Response]]
ErrorBody = Callable[[RefusalError], Mapping[str, object]]


@dataclass(frozen=True)
class Frame:
    """Makes endpoints of a protocol's handlers. ``error``: the body of its errors; ``free``: whether no
    token is needed."""

    context: Context
    protocol: str
    error: ErrorBody

    def __call__(self, handler: Handler, *, free: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await self._answer(handler, request, free)

        return endpoint

    async def _answer(self, handler: Handler, request: Request, free: bool) -> Response:
        context, authorization = self.context, request.headers.get("authorization")
        client = client_of(authorization, request.client.host if request.client else "")
        given = request.headers.get("x-request-id", "")
        call = Call(
            context,
            request,
            given[:64] if given.isascii() and given.isprintable() and given else uuid.uuid4().hex,
            client,
        )
        context.metrics.open.inc()
        try:
            if not free:
                context.tokens.check(authorization)
            response = await handler(call)
        except ClientDisconnect:
            response = Response(status_code=CLOSED)
        except Exception as error:
            refusal = refusal_of(error)
            response = json_response(self.error(refusal), refusal.status, refusal.headers)
        response.headers["x-request-id"] = call.id
        if isinstance(response, StreamingResponse):  # its end is when the last of it is sent
            response.body_iterator = self._followed(call, response.status_code, response.body_iterator)
        else:
            self.ended(call, response.status_code)
        return response

    async def _followed(
        self, call: Call, status: int, stream: AsyncIterable[Content]
    ) -> AsyncIterator[Content]:
        try:
            async for piece in stream:
                yield piece
        except BaseException:
            status = CLOSED
            raise
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
            self.ended(call, status)

    def ended(self, call: Call, status: int) -> None:
        """The last byte of an answer is on its way."""
        seconds = time.perf_counter() - call.began
        metrics = self.context.metrics
        metrics.open.dec()
        metrics.requests.labels(call.model, self.protocol, str(status)).inc()
        metrics.seconds.labels(call.model, self.protocol).observe(seconds)
        if self.protocol not in {"page", "metrics"}:
            self.context.latest.appendleft(
                {
                    "time": time.time(), "model": call.model, "path": call.request.url.path[:80],
                    "status": status, "seconds": seconds,
                }
            )  # fmt: skip
        if access.isEnabledFor(logging.INFO):
            request = call.request
            access.info(
                json.dumps(
                    {
                        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "id": call.id, "client": call.client,
                        "method": request.method, "path": request.url.path[:200], "model": call.model,
                        "status": status, "seconds": round(seconds, 6),
                    }
                )
            )  # fmt: skip


def json_response(
    content: Mapping[str, object] | list[object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(data, status, dict(headers or {}), "application/json")
