"""Embeddings of the OpenAI protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np
from starlette.responses import Response

from launcher.errors import ConfigError
from launcher.serving.bodies import bad, field_of, needed, said
from launcher.serving.context import Call
from launcher.serving.openai.fields import OF_EMBEDDINGS, check_fields, priority_of
from launcher.serving.openai.texts import prompts_of
from launcher.serving.refusals import RefusalError
from launcher.serving.tensor_model import TensorModel

if TYPE_CHECKING:
    from launcher.serving.embedding.encoder import Encoder
    from launcher.serving.embedding.pooling import Vectors

_MOST_INPUTS, _MOST_TOKENS = 2048, 1 << 20
_FORMS = ("float", "base64")


def encoder_model(call: Call, name: str) -> tuple[TensorModel, Encoder]:
    """A model that has vectors for texts. Raises `RefusalError` for others."""
    found = call.context.repository.get(name)
    call.use(found)
    if not isinstance(found, TensorModel) or found.encoder is None:
        raise bad(f"the model {name!r} is no encoder of texts, or has no tokenizer: it has no embeddings")
    _ = found.ready  # how texts are joined is known from then on
    return found, found.encoder


async def embeddings(call: Call) -> Response:
    """Answers one request."""
    body = await call.object()
    model, encoder = encoder_model(call, needed(body, "model", str))
    deadline = time.monotonic() + call.context.limits.seconds
    check_fields(body, OF_EMBEDDINGS, texts=False)
    form, size = field_of(body, "encoding_format", str) or _FORMS[0], field_of(body, "dimensions", int)
    if form not in _FORMS:
        raise bad(f"encoding_format: expected {' or '.join(_FORMS)}, found {said(form)}")
    if size is not None and size < 1:
        raise bad(f"dimensions: expected a whole number from 1 up, found {size}")
    priority, most = priority_of(body), _cut(body, encoder)
    # Tokenizers and large answers take a while: other clients are not to wait for them.
    ids = await asyncio.to_thread(_ids, encoder, body, most)

    async def compute() -> Vectors:
        found: list[Vectors | None] = [None] * len(ids)
        for batch in encoder.batches(ids):
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise RefusalError(
                    HTTPStatus.GATEWAY_TIMEOUT,
                    f"the model {model.name!r} did not answer within {call.context.limits.seconds:g} s",
                )
            outputs = await model.predict(batch.feeds, client=call.client, priority=priority, seconds=seconds)
            vectors = await asyncio.to_thread(encoder.vectors, batch, outputs)
            for place, vector in zip(batch.places, vectors, strict=True):
                found[place] = vector
        return np.stack([vector for vector in found if vector is not None])

    vectors = await call.unless_gone(compute())
    call.grow(vectors.nbytes)
    if size is not None:
        try:
            vectors = encoder.cut(vectors, size)
        except ConfigError as error:
            raise bad(f"dimensions: {error}") from None
    count = sum(map(len, ids))
    model.metrics.prompt_tokens.labels(model.name).inc(count)
    call.usage.prompt_tokens += count
    data = await asyncio.to_thread(_answer, model.name, vectors, form, count)
    return Response(data, media_type="application/json")


def _cut(body: Mapping[str, object], encoder: Encoder) -> int | None:
    """To how many tokens each text is cut."""
    found = field_of(body, "truncate_prompt_tokens", int)
    if found == -1:  # vLLM's word for as many as the model takes
        return encoder.longest
    most = encoder.longest or _MOST_TOKENS
    if found is not None and not 1 <= found <= most:
        raise bad(f"truncate_prompt_tokens: expected -1, or 1 to {most}, found {found}")
    return found


def _ids(encoder: Encoder, body: Mapping[str, object], most: int | None) -> list[list[int]]:
    found, texts = [], prompts_of(body, _MOST_INPUTS, "input")
    for number, text in enumerate(texts):
        where = "input" if len(texts) == 1 else f"input[{number}]"
        if not text:
            raise bad(f"{where}: expected a text that is not empty")
        try:
            found.append(encoder.ids(text, most))
            encoder.check(found[-1])
        except ConfigError as error:
            raise bad(f"{where}: {error}") from None
    return found


def _answer(model: str, vectors: Vectors, form: str, count: int) -> bytes:
    """The body; text by text, so that no other thread waits for all of it."""
    parts = []
    for index, vector in enumerate(vectors):
        if form == "base64":
            value = json.dumps(base64.b64encode(vector.astype("<f4").tobytes()).decode())
        else:
            value = json.dumps(_finite(vector).tolist(), allow_nan=False)
        parts.append(f'{{"object": "embedding", "index": {index}, "embedding": {value}}}')
    usage = {"prompt_tokens": count, "total_tokens": count}
    head = f'"model": {json.dumps(model)}, "usage": {json.dumps(usage)}'
    return f'{{"object": "list", "data": [{", ".join(parts)}], {head}}}'.encode()


def _finite(vector: Vectors) -> Vectors:
    if not np.isfinite(vector).all():
        raise RefusalError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "the model gave numbers that are none: ask for encoding_format base64 to see them",
        )
    return vector
