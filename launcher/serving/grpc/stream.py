"""ModelStreamInfer: many requests on one stream. Answers of tensors come in the order of their requests, of
which several are under way; those of language models come piece by piece, whenever there is one."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, cast

import grpc

from launcher.generation.sample import Done
from launcher.serving.context import CLOSED, Call
from launcher.serving.grpc.calls import Calls, Conversation, UntakenError
from launcher.serving.grpc.schema import classes, parsed
from launcher.serving.grpc.tensors import asked_question, write_answer, written_answer
from launcher.serving.kserve import routes, texts
from launcher.serving.refusals import RefusalError, refusal_of
from launcher.serving.text_model import TextModel

if TYPE_CHECKING:
    from launcher.serving.grpc.messages import (
        ModelInferRequest,
        ModelInferResponse,
        ModelStreamInferResponse,
    )

_MOST = 32
"""Requests of one stream under way; the next is read when one of them has its answer."""
_FINAL, _WHY = "triton_final_response", "finish_reason"


@dataclass(frozen=True)
class Streams:
    """Answers streams. ``ending``: is set when the server ends."""

    calls: Calls
    ending: asyncio.Event

    async def answer(self, conversation: Conversation) -> None:
        """Answers one stream, until its client ends it or the server does."""
        over = asyncio.ensure_future(self.ending.wait())
        stream = _Stream(self.calls, conversation, over)
        try:
            await stream.read()
        finally:
            over.cancel()
            await stream.end()


class _Stream:
    """One of them. ``over``: is done when the server ends, and cancelled when the client takes nothing."""

    def __init__(self, calls: Calls, conversation: Conversation, over: asyncio.Task[Literal[True]]) -> None:
        self._calls, self._conversation, self._over = calls, conversation, over
        self._under_way: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def read(self) -> None:
        """Reads and answers requests. Raises `RefusalError` for what is none, and where the server ends."""
        before: asyncio.Task[None] | None = None
        while (data := await self._next()) is not None:
            read = functools.partial(parsed, data, "ModelInferRequest")
            asked = cast("ModelInferRequest", await self._conversation.call.apart(len(data), read))
            models = self._conversation.context.repository.models
            in_turn = not isinstance(models.get(asked.model_name), TextModel)
            task = asyncio.create_task(self._one(asked, len(data), before if in_turn else None))
            before = task if in_turn else before
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        while self._under_way:
            await self._some(*self._under_way)
        if self._over.done():
            raise RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "the server ends: ask another one")

    async def end(self) -> None:
        """Whatever is under way ends."""
        for task in (tasks := list(self._under_way)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _some(self, *work: asyncio.Future[None] | asyncio.Future[bytes]) -> None:
        """Waits until some of it is done, or all is over. Raises `UntakenError`."""
        waits = {self._over} if not self._over.done() else set()
        await asyncio.wait({*work, *waits}, return_when=asyncio.FIRST_COMPLETED)
        if self._over.cancelled():
            raise UntakenError(HTTPStatus.REQUEST_TIMEOUT, "an answer was not taken in time")

    async def _next(self) -> bytes | None:
        """The next message; None where there is none any more."""
        while len(self._under_way) >= _MOST:
            await self._some(*self._under_way)
        if self._over.done():
            return None
        reading = asyncio.ensure_future(self._conversation.rpc.read())
        try:
            await self._some(reading)
            if not reading.done():
                return None
            data = reading.result()
        finally:
            reading.cancel()
        return None if data is grpc.aio.EOF else data

    async def _one(self, asked: ModelInferRequest, size: int, before: asyncio.Task[None] | None) -> None:
        call, status = self._calls.apart(self._conversation), CLOSED
        try:
            try:
                call.hold(size)
                await self._respond(call, asked, size, before)
                status = HTTPStatus.OK.value
            except UntakenError:
                raise
            except Exception as error:
                refusal = refusal_of(error)
                await self._refuse(asked, refusal, before)
                status = refusal.status.value
        except UntakenError:
            self._over.cancel()
            status = HTTPStatus.REQUEST_TIMEOUT.value
        finally:
            self._calls.frame.ended(call, status)

    async def _respond(
        self, call: Call, asked: ModelInferRequest, size: int, before: asyncio.Task[None] | None
    ) -> None:
        model = call.context.repository.get(asked.model_name, asked.model_version)
        call.use(model)
        routes.specs_of(model)
        question = await asked_question(call, asked, size)
        if isinstance(model, TextModel) and (wanted := texts.asked(model, question.feeds)).stream:
            stream, ready = await texts.begun(model, wanted, call.client, routes.priority_of(question))
            call.closing.append(stream.cancel)
            # The client's deadline ends the whole of its stream, by itself.
            async for text, event in texts.pieces(model, stream, ready, routes.seconds_of(question)):
                answer = write_answer(model, asked, question, texts.text_outputs([text]))
                if isinstance(event, Done):
                    answer.parameters[_WHY].string_param = event.completion.reason
                await self._send(answer, final=isinstance(event, Done))
            return
        left = self._conversation.left
        outputs = await routes.predicted(model, question, call.client, left)
        answer = await written_answer(call, model, asked, question, outputs)
        await _after(before)
        await self._send(answer, final=True)

    async def _refuse(
        self, asked: ModelInferRequest, refusal: RefusalError, before: asyncio.Task[None] | None
    ) -> None:
        await _after(before)
        told = _empty()
        told.error_message = str(refusal)
        told.infer_response.model_name, told.infer_response.id = asked.model_name[:80], asked.id
        await self._write(told)

    async def _send(self, answer: ModelInferResponse, *, final: bool) -> None:
        answer.parameters[_FINAL].bool_param = final
        told = _empty()
        told.infer_response.CopyFrom(answer)
        await self._write(told)

    async def _write(self, told: ModelStreamInferResponse) -> None:
        async with self._writing:
            await self._conversation.tell(told)


def _empty() -> ModelStreamInferResponse:
    return cast("ModelStreamInferResponse", classes()["ModelStreamInferResponse"]())


async def _after(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait({task})
