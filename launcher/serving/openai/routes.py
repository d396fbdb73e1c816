"""The OpenAI protocol: its routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from launcher.generation.sample import Completion, Done, Token
from launcher.serving.bodies import bad, needed
from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.openai.answers import Answer, Decode, Json
from launcher.serving.openai.asked import Asked, asked_of, messages_of, prompts_of
from launcher.serving.refusals import RefusalError, refusal_of
from launcher.serving.text_model import Speaking, TextModel, finished

if TYPE_CHECKING:
    from launcher.generation.streams import Stream

PROTOCOL = "openai"
_MOST_PROMPTS = 64


def _error(refusal: RefusalError) -> Mapping[str, object]:
    return {
        "error": {"message": str(refusal), "type": refusal.kind, "param": None, "code": refusal.status.value}
    }


def routes(context: Context) -> list[Route]:
    """All of them."""
    frame = Frame(context, PROTOCOL, _error)
    return [
        Route("/v1/models", frame(_models)),
        Route("/v1/models/{model:path}", frame(_one)),
        Route("/v1/completions", frame(_completions), methods=["POST"]),
        Route("/v1/chat/completions", frame(_chat), methods=["POST"]),
    ]


def _entry(model: TextModel) -> Json:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "shardrun"}


async def _models(call: Call) -> Response:
    models = call.context.repository.models.values()
    return json_response(
        {"object": "list", "data": [_entry(model) for model in models if isinstance(model, TextModel)]}
    )


async def _one(call: Call) -> Response:
    return json_response(_entry(_text_model(call, call.request.path_params["model"])))


def _text_model(call: Call, name: str) -> TextModel:
    found = call.context.repository.get(name)
    call.use(found)
    if not isinstance(found, TextModel):
        raise bad(f"the model {name!r} generates no texts: ask for it under /v2/models/")
    return found


async def _completions(call: Call) -> Response:
    body = await call.object()
    model = _text_model(call, needed(body, "model", str))
    speaking = await model.until_ready(call.began)
    asked = asked_of(body, call.context.limits, speaking.model.manner, chat=False)
    return await _answer(call, model, asked, prompts_of(body, _MOST_PROMPTS), chat=False)


async def _chat(call: Call) -> Response:
    body = await call.object()
    model = _text_model(call, needed(body, "model", str))
    speaking = await model.until_ready(call.began)
    asked = asked_of(body, call.context.limits, speaking.model.manner, chat=True)
    # Templates may loop for a second: in another process, whose answer a thread waits for.
    prompt = await asyncio.to_thread(speaking.model.text_of, messages_of(body))
    return await _answer(call, model, asked, [prompt], chat=True)


async def _answer(
    call: Call, model: TextModel, asked: Asked, prompts: Sequence[str | list[int]], *, chat: bool
) -> Response:
    taken: list[tuple[Stream, Speaking]] = []
    for prompt in prompts:
        taken.append(await model.submit(prompt, asked.options, special=not chat))
        call.closing.callback(taken[-1][0].cancel)
    answer = Answer(
        model.name, chat, _decoder(taken[0][1]), asked.options.logprobs is not None,
        prompt_tokens=sum(len(stream.prompt) for stream, _ in taken),
    )  # fmt: skip
    if asked.stream:
        pieces = _pieces(model, asked, answer, taken)
        return StreamingResponse(
            pieces,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
    found = await call.unless_gone(asyncio.gather(*(finished(model, *one) for one in taken)))
    texts: list[tuple[int, Completion]] = []
    for dones in found:
        texts += [(len(texts) + at, done.completion) for at, done in enumerate(dones)]
    answer.tokens = sum(len(text.ids) for _, text in texts)
    return json_response(answer.whole(texts))


def _decoder(speaking: Speaking) -> Decode:
    tokenizer = speaking.model.tokenizer
    if tokenizer is None:
        return "token_id:{}".format
    return lambda token: tokenizer.text([token])


async def _pieces(
    model: TextModel, asked: Asked, answer: Answer, taken: Sequence[tuple[Stream, Speaking]]
) -> AsyncIterator[bytes]:
    """The stream's events, as server-sent events."""
    samples = asked.options.samples
    ready: asyncio.Queue[Json | BaseException | None] = asyncio.Queue()

    async def read(number: int, stream: Stream, speaking: Speaking) -> None:
        base = number * samples
        try:
            async with contextlib.aclosing(model.events(stream, speaking)) as events:
                async for event in events:
                    index = base + event.sample
                    if isinstance(event, Token):
                        answer.tokens += 1
                        if event.text or answer.logprobs:
                            await ready.put(answer.piece(index, event.text, event))
                    elif isinstance(event, Done):
                        await ready.put(answer.piece(index, event.text, None, event.completion.reason))
            await ready.put(None)
        except Exception as error:
            await ready.put(error)

    tasks = [asyncio.create_task(read(number, *one)) for number, one in enumerate(taken)]
    try:
        if answer.chat:
            for index in range(len(taken) * samples):
                yield _event(answer.opening(index))
        left = len(tasks)
        while left:
            piece = await ready.get()
            if piece is None:
                left -= 1
            elif isinstance(piece, BaseException):
                yield _event(dict(_error(refusal_of(piece))))
                return
            else:
                yield _event(piece)
        if asked.usage:
            yield _event(answer.closing())
        yield b"data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()


def _event(content: Json) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"
