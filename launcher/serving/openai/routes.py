"""The OpenAI protocol: its routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from launcher.generation.sample import Completion, Done, Token
from launcher.serving.bodies import bad, needed
from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.openai.answers import Answer, Json, Spelling, best_of
from launcher.serving.openai.asked import Asked, asked_of
from launcher.serving.openai.embeddings import embeddings
from launcher.serving.openai.fields import named
from launcher.serving.openai.texts import messages_of, prompts_of
from launcher.serving.openai.tools import shaped
from launcher.serving.refusals import RefusalError, refusal_of
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import Speaking, TextModel, finished

if TYPE_CHECKING:
    from launcher.generation.streams import Stream
    from launcher.generation.text.tokenizer import Tokenizer
    from launcher.serving.models import Model

PROTOCOL = "openai"
_MOST_PROMPTS = 64


def _error(refusal: RefusalError) -> Mapping[str, object]:
    message = str(refusal)
    told = {"message": message, "type": refusal.kind, "param": named(message), "code": refusal.status.value}
    return {"error": told}


def routes(context: Context) -> list[Route]:
    """All of them."""
    frame = Frame(context, PROTOCOL, _error)
    return [
        Route("/v1/models", frame(_models)),
        Route("/v1/models/{model:path}", frame(_one)),
        Route("/v1/completions", frame(_completions), methods=["POST"]),
        Route("/v1/chat/completions", frame(_chat), methods=["POST"]),
        Route("/v1/embeddings", frame(embeddings), methods=["POST"]),
    ]


def _speaks(model: Model) -> TypeGuard[TextModel | TensorModel]:
    """Whether this protocol has something to ask of a model."""
    return isinstance(model, TextModel) or (isinstance(model, TensorModel) and model.encoder is not None)


def _entry(model: TextModel | TensorModel) -> Json:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "shardrun"}


async def _models(call: Call) -> Response:
    models = call.context.repository.models.values()
    return json_response({"object": "list", "data": [_entry(model) for model in models if _speaks(model)]})


async def _one(call: Call) -> Response:
    name = call.request.path_params["model"]
    found = call.context.repository.get(name)
    call.use(found)
    if not _speaks(found):
        raise bad(f"the model {name!r} has neither texts nor embeddings: ask for it under /v2/models/")
    return json_response(_entry(found))


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
    prompts = await asyncio.to_thread(prompts_of, body, _MOST_PROMPTS)  # they may be millions of ids
    return await _answer(call, model, asked, prompts, chat=False)


async def _chat(call: Call) -> Response:
    body = await call.object()
    model = _text_model(call, needed(body, "model", str))
    speaking = await model.until_ready(call.began)
    asked = asked_of(body, call.context.limits, speaking.model.manner, chat=True)
    if asked.tools is not None and asked.tools.schema is None:
        asked = replace(asked, tools=shaped(asked.tools, await model.call_form(speaking)))
    # Templates may loop for a second: in another process, whose answer a thread waits for.
    tools = None if asked.tools is None else asked.tools.given
    prompt = await asyncio.to_thread(speaking.model.text_of, messages_of(body), tools)
    return await _answer(call, model, asked, [prompt], chat=True)


async def _answer(
    call: Call, model: TextModel, asked: Asked, prompts: Sequence[str | list[int]], *, chat: bool
) -> Response:
    taken: list[tuple[Stream, Speaking]] = []
    for prompt in prompts:
        stream = await model.submit(
            prompt, asked.options, special=not chat, client=call.client, priority=asked.priority
        )
        taken.append(stream)
        call.closing.append(taken[-1][0].cancel)
    tokenizer = taken[0][1].model.tokenizer
    answer = Answer(
        model.name, chat, Spelling(tokenizer), asked.logprobs, asked.usage,
        prompt_tokens=sum(len(stream.prompt) for stream, _ in taken), tools=asked.tools,
    )  # fmt: skip
    echoed = [_echoed(prompt, tokenizer) if asked.echo else "" for prompt in prompts]
    if asked.stream:
        pieces = _pieces(model, asked, answer, taken, echoed)
        return StreamingResponse(
            pieces,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
    found = await call.unless_gone(asyncio.gather(*(finished(model, *one) for one in taken)))
    texts: list[tuple[int, Completion]] = []
    for dones, before in zip(found, echoed, strict=True):
        answer.tokens += sum(len(done.completion.ids) for done in dones)
        best = best_of([done.completion for done in dones], asked.texts)
        texts += [(len(texts) + at, _after(before, text)) for at, text in enumerate(best)]
    return json_response(answer.whole(texts))


def _echoed(prompt: str | list[int], tokenizer: Tokenizer | None) -> str:
    """The text of a prompt."""
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        raise bad("echo: the model has no tokenizer, which could say what the prompt is; leave it out")
    return tokenizer.text(prompt)


def _after(prompt: str, text: Completion) -> Completion:
    return replace(text, text=prompt + (text.text or "")) if prompt else text


async def _pieces(
    model: TextModel,
    asked: Asked,
    answer: Answer,
    taken: Sequence[tuple[Stream, Speaking]],
    echoed: Sequence[str],
) -> AsyncIterator[bytes]:
    """The stream's events, as server-sent events; ``echoed``: what the texts of each prompt begin with."""
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
        for index in range(len(taken) * samples):
            if echoed[index // samples]:
                yield _event(answer.piece(index, echoed[index // samples]))
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
