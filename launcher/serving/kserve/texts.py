"""Language models as models of tensors: a prompt goes in, texts come out.

The tensors are those of Triton's vLLM backend: ``text_input``, ``stream``, ``sampling_parameters`` (an object
in JSON, with the fields of OpenAI's completions) and ``exclude_input_in_output``; ``text_output``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from launcher.generation.sample import Done, Event, Token
from launcher.serving.bodies import bad, object_of
from launcher.serving.openai.asked import asked_of
from launcher.serving.openai.fields import MODEL, USER
from launcher.serving.refusals import RefusalError
from launcher.serving.text_model import finished
from ranks.common.tensors import OBJECT, TensorSpec, checked_feeds

if TYPE_CHECKING:
    from launcher.generation.options import GenerateOptions
    from launcher.generation.streams import Stream
    from launcher.serving.text_model import Speaking, TextModel
    from sharding.common.arrays import Array

PROMPT, STREAM, SAMPLING, WITHOUT = "text_input", "stream", "sampling_parameters", "exclude_input_in_output"
TEXT = "text_output"
_FLAG = np.dtype(np.bool_)
_NEEDED = (TensorSpec(PROMPT, OBJECT, (1,)),)
_OPTIONAL = (
    TensorSpec(STREAM, _FLAG, (1,)), TensorSpec(SAMPLING, OBJECT, (1,)), TensorSpec(WITHOUT, _FLAG, (1,)),
)  # fmt: skip
_OUTPUTS = (TensorSpec(TEXT, OBJECT, (None,)),)
_ELSEWHERE = {
    MODEL, "prompt", "stream", "stream_options", "logprobs", "best_of", "echo", "suffix", "priority"
}  # fmt: skip
"""Fields of completions that something else says here, or that no output would answer."""
_TEXTS = {"stop", USER}
"""Those whose texts stay what they are."""


def specs_of(model: TextModel) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs. Raises `RefusalError` for a model that is not ready."""
    assert model.ready
    return [*_NEEDED, *_OPTIONAL], list(_OUTPUTS)


@dataclass(frozen=True)
class TextQuestion:
    """One request. ``before``: what its texts begin with."""

    prompt: str
    options: GenerateOptions
    stream: bool
    before: str


def asked(model: TextModel, feeds: Mapping[str, Array]) -> TextQuestion:
    """What tensors ask for. Raises `RefusalError`, and `ShardrunError` for tensors that do not fit."""
    given = [*_NEEDED, *(spec for spec in _OPTIONAL if spec.name in feeds)]
    values = checked_feeds(given, feeds)
    prompt, stream = str(values[PROMPT][0]), STREAM in values and bool(values[STREAM][0])
    sampling = object_of(str(values[SAMPLING][0]).encode()) if SAMPLING in values else {}
    if wrong := sorted(_ELSEWHERE & sampling.keys()):
        raise bad(
            f"{SAMPLING}.{wrong[0]}: this is not for models of tensors; leave it out, or ask under /v1/"
        )
    found = {name: value if name in _TEXTS else _number(value) for name, value in sampling.items()}
    options = asked_of(found, model.limits, model.ready.model.manner, chat=False).options
    without = bool(values[WITHOUT][0]) if WITHOUT in values else stream
    if stream and not without:
        raise bad(f"{WITHOUT}: a stream holds what is new alone: leave it out, or give true")
    if stream and options.samples > 1:
        raise bad(f"{SAMPLING}.n: expected 1 for a stream, found {options.samples}")
    return TextQuestion(prompt, options, stream, "" if without else prompt)


def _number(value: object) -> object:
    """A number that came as a text, as clients of that backend send them."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


async def begun(
    model: TextModel, question: TextQuestion, client: str, priority: int
) -> tuple[Stream, Speaking]:
    """Has the model begin. Raises as `TextModel.submit` does."""
    return await model.submit(question.prompt, question.options, client=client, priority=priority)


async def answered(
    model: TextModel, feeds: Mapping[str, Array], client: str, priority: int, seconds: float | None = None
) -> Mapping[str, Array]:
    """All texts of a request that asks for no stream. ``seconds``: how long it may take. Raises
    `RefusalError`."""
    question = asked(model, feeds)
    if question.stream:
        raise bad(f"{STREAM}: texts come as they grow by gRPC's ModelStreamInfer and under /v1/ alone")
    stream, ready = await begun(model, question, client, priority)
    try:
        dones = await asyncio.wait_for(finished(model, stream, ready), seconds)
    except asyncio.TimeoutError:
        raise too_late(model, seconds) from None
    finally:
        stream.cancel()
    return text_outputs([question.before + (done.completion.text or "") for done in dones])


def text_outputs(texts: list[str]) -> Mapping[str, Array]:
    """The outputs of these texts."""
    return {TEXT: np.array(texts, OBJECT)}


def too_late(model: TextModel, seconds: float | None) -> RefusalError:
    """A text has not come to its end in time."""
    return RefusalError(
        HTTPStatus.GATEWAY_TIMEOUT, f"the model {model.name!r} did not answer within {seconds or 0:g} s"
    )


async def pieces(
    model: TextModel, stream: Stream, ready: Speaking, seconds: float | None = None
) -> AsyncIterator[tuple[str, Event]]:
    """What is new of a text as it comes, and last what was held back with its end. ``seconds``: how long all
    of it may take. Raises `RefusalError`."""
    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, stream.cancel)
    whole = False
    try:
        async with contextlib.aclosing(model.events(stream, ready)) as events:
            async for event in events:
                if isinstance(event, Done) or (isinstance(event, Token) and event.text):
                    yield event.text, event
                whole = whole or isinstance(event, Done)
        if not whole:
            raise too_late(model, seconds)
    finally:
        if timer is not None:
            timer.cancel()
