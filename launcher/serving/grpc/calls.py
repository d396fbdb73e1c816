"""The frame around each call: access, limits, errors, metrics and logs are those of HTTP, of which gRPC is a
use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import grpc
from starlette.requests import Request

from launcher.serving.access import Role
from launcher.serving.context import CLOSED, Call, Context, Frame
from launcher.serving.grpc.schema import parsed
from launcher.serving.refusals import RefusalError, refusal_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

PROTOCOL = "grpc"
_PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata by which clients that ask again of themselves know when."""
_CODES: Mapping[HTTPStatus, grpc.StatusCode] = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.CONFLICT: grpc.StatusCode.ABORTED,
    HTTPStatus.REQUEST_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Rpc(Protocol):
    """What is used of gRPC's context of a call."""

    async def read(self) -> bytes: ...

    async def write(self, message: bytes) -> None: ...

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...

    def peer(self) -> str: ...

    def time_remaining(self) -> float | None: ...

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None: ...

    async def abort(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...]
    ) -> None: ...


class UntakenError(RefusalError):
    """A client has not taken an answer."""


@dataclass
class Conversation:
    """A call whose messages can be read and answered. ``patience``: seconds in which a client must take an
    answer; ``untaken``: the writing of one that it has not taken, and how many bytes that has."""

    call: Call
    rpc: Rpc
    patience: float
    untaken: tuple[asyncio.Future[None], int] | None = None
    size: int = 0
    """Bytes of the message that `ask` gave last."""

    @property
    def context(self) -> Context:
        """The server."""
        return self.call.context

    @property
    def left(self) -> float | None:
        """Seconds until the client's deadline, if it has one."""
        found = self.rpc.time_remaining()
        return None if found is None else max(found, 1e-3)

    async def ask(self, name: str) -> Message:
        """The one message of a call, of this name. Raises `RefusalError`."""
        seconds = self.context.limits.seconds
        try:
            data = await asyncio.wait_for(self.rpc.read(), seconds)
        except asyncio.TimeoutError:
            raise RefusalError(
                HTTPStatus.REQUEST_TIMEOUT, f"the message did not come within {seconds:g} s"
            ) from None
        if data is grpc.aio.EOF:
            raise RefusalError(  # gRPC has already refused one that was too long, in words of its own
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"expected one message of at most {self.context.limits.body} bytes, found none",
            )
        self.size = len(data)
        self.call.hold(self.size)
        return await self.call.apart(len(data), lambda: parsed(data, name))

    async def tell(self, message: Message) -> None:
        """Sends an answer. Raises `UntakenError`, and `asyncio.CancelledError` where the client is gone."""
        untaken = UntakenError(
            HTTPStatus.REQUEST_TIMEOUT, f"the answer was not taken within {self.patience:g} s"
        )
        if self.untaken is not None:  # another one of the same stream: gRPC writes one at a time
            raise untaken
        data = message.SerializeToString()
        writing = asyncio.ensure_future(self.rpc.write(data))
        try:
            await asyncio.wait({writing}, timeout=self.patience)
            if not writing.done():
                self.untaken = writing, len(data)
                raise untaken
            writing.result()
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None
        finally:
            if self.untaken is None:
                writing.cancel()


Work = Callable[[Conversation], Awaitable[None]]


@dataclass(frozen=True)
class Calls:
    """Makes gRPC's handlers of what answers calls."""

    frame: Frame
    patience: float

    def handler(self, path: str, work: Work, role: Role = Role.USER) -> grpc.RpcMethodHandler:
        """The handler of a method. ``role``: who may ask.

        It is one of streams for every method, which on the wire is the same. So a token is looked at before a
        message is read, and what is read and sent has limits.
        """

        async def answer(_: object, rpc: Rpc) -> None:
            await self._answer(path, work, rpc, role)

        return grpc.stream_stream_rpc_method_handler(answer)

    async def _answer(self, path: str, work: Work, rpc: Rpc, role: Role) -> None:
        call = self.frame.begun(_request_of(path, rpc))
        conversation = Conversation(call, rpc, self.patience)
        status, refusal = CLOSED, None
        try:
            self.frame.check(call, role)
            await work(conversation)
            status = HTTPStatus.OK.value
        except Exception as error:
            refusal = refusal_of(error)
            status = refusal.status.value
        finally:
            self.frame.ended(call, status)
        trailing = [("x-request-id", call.id)]
        if refusal is None:
            rpc.set_trailing_metadata(tuple(trailing))
            return
        trailing += [(name.lower(), value) for name, value in refusal.headers.items()]
        if refusal.retry is not None:
            trailing.append((_PUSHBACK, str(round(refusal.retry * 1000))))
        await self._taken(conversation)
        try:
            await rpc.abort(code_of(refusal), str(refusal), tuple(trailing))
        except grpc.aio.InternalError:  # it has ended already
            raise asyncio.CancelledError from None

    async def _taken(self, conversation: Conversation) -> None:
        """Waits until an answer is taken, or its client is gone: gRPC keeps its bytes until then, and gives
        up no stream whose client does not read."""
        if conversation.untaken is None:
            return
        writing, size = conversation.untaken
        self.frame.context.held += size
        try:
            await asyncio.wait({writing})
        finally:
            self.frame.context.held -= size
            writing.cancel()

    def apart(self, conversation: Conversation) -> Call:
        """A call of its own for one of the messages of a stream."""
        return self.frame.begun(conversation.call.request)


def code_of(refusal: RefusalError) -> grpc.StatusCode:
    """gRPC's word for a refusal."""
    default = grpc.StatusCode.INVALID_ARGUMENT
    if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        default = grpc.StatusCode.INTERNAL
    return _CODES.get(refusal.status, default)


def _request_of(path: str, rpc: Rpc) -> Request:
    """The HTTP request that a call is."""
    metadata = [
        (name.encode("latin-1"), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in rpc.invocation_metadata() or ()
    ]
    _, _, peer = unquote(rpc.peer()).partition(":")
    host, _, port = peer.rpartition(":")
    client = (host.strip("[]"), int(port) if port.isdecimal() else 0)
    return Request(
        {"type": "http", "method": "POST", "path": path, "headers": metadata, "query_string": b"",
         "client": client}
    )  # fmt: skip
