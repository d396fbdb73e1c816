"""OpenAI's protocol, asked by its own client; texts are those that the model gives without a server."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import launcher
from launcher.generation.model import LanguageModel
from launcher.generation.sample import Token
from launcher.serving.context import Call, Context, Frame
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Repository
from launcher.serving.openai import fields
from launcher.serving.openai.answers import Answer, Spelling
from launcher.serving.parsing.pace import LARGE
from tests.growth import as_lines_do
from tests.launcher.serving.running import Running
from tests.ranks.threads import until

PROMPT = "hello world"
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(texts: Path) -> Iterator[LanguageModel]:
    with launcher.load_language_model(texts, ranks=1) as model:
        yield model


def test_completions(client: openai.OpenAI, model: LanguageModel) -> None:
    made = model.generate(PROMPT, max_new_tokens=12, temperature=0)
    expected = made.finish()[0]
    found = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0)
    assert found.choices[0].text == expected.text
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(made.prompt), len(expected.ids))
    by_ids = client.completions.create(model="tiny", prompt=made.prompt, max_tokens=12, temperature=0)
    assert by_ids.choices[0].text == expected.text


def test_streams_are_the_whole_text_in_pieces(client: openai.OpenAI, model: LanguageModel) -> None:
    how: dict[str, Any] = {"model": "tiny", "prompt": ["ab", PROMPT], "max_tokens": 10, "seed": 5, "n": 2}
    whole = client.completions.create(**how)
    pieces = list(client.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    texts = dict.fromkeys(range(4), "")
    for piece in pieces[:-1]:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert pieces[-1].usage == whole.usage and not pieces[-1].choices
    for number, prompt in enumerate(how["prompt"]):
        own = model.generate(prompt, max_new_tokens=10, seed=5, samples=2, temperature=1.0).finish()
        assert [text.text for text in own] == [texts[2 * number], texts[2 * number + 1]]


def test_chats(client: openai.OpenAI, model: LanguageModel) -> None:
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "who"}, {"type": "text", "text": "?"}]}
    ]
    expected = model.chat("who?", max_new_tokens=9, temperature=0).finish()[0]
    how: dict[str, Any] = {
        "model": "tiny",
        "messages": messages,
        "max_completion_tokens": 9,
        "temperature": 0,
    }
    found = client.chat.completions.create(**how, logprobs=True, top_logprobs=2)
    assert found.choices[0].message.content == expected.text
    probable = found.choices[0].logprobs
    assert probable is not None and probable.content is not None
    assert len(probable.content) == len(expected.ids) and len(probable.content[0].top_logprobs) == 2
    assert probable.content[0].logprob == pytest.approx(probable.content[0].top_logprobs[0].logprob)
    pieces = [piece.choices[0] for piece in client.chat.completions.create(**how, stream=True)]
    assert pieces[0].delta.role == "assistant" and pieces[-1].finish_reason == found.choices[0].finish_reason
    assert "".join(piece.delta.content or "" for piece in pieces) == expected.text


def test_log_probabilities_of_streams(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "seed": 5, "logprobs": 2}
    whole = client.completions.create(**how).choices[0].logprobs
    pieces = [piece.choices[0].logprobs for piece in client.completions.create(**how, stream=True)]
    shown = [piece for piece in pieces if piece is not None]
    assert whole is not None and whole.tokens
    assert [one.tokens[0] for one in shown] == whole.tokens  # type: ignore[index]
    assert [one.text_offset[0] for one in shown] == whole.text_offset  # type: ignore[index]


@pytest.mark.parametrize("chat", [True, False])
def test_impossible_tokens_have_a_number(chat: bool) -> None:
    answer = Answer("tiny", chat, Spelling(None), logprobs=True)
    token = Token(0, 12, "ab", -math.inf, ((3, -0.5), (12, -math.inf)))
    text = json.dumps(answer.piece(0, "ab", token), allow_nan=False)
    assert "-9999.0" in text and "-0.5" in text


def test_streams_that_cannot_begin_end_their_request() -> None:
    ended: list[str] = []
    context = Context(Repository({}), ServeLimits(), Metrics())

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    async def handler(call: Call) -> Response:
        call.closing.append(lambda: ended.append(call.id))
        return StreamingResponse(pieces())

    async def receive() -> Any:
        await asyncio.sleep(30)

    async def send(message: Any) -> None:
        raise OSError("the client is gone")

    async def work() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        app = await Frame(context, "test", lambda refusal: {})(handler)(Request(scope))
        with pytest.raises(OSError, match="gone"):
            await app(scope, receive, send)

    asyncio.run(work())
    assert len(ended) == 1 and context.latest[0]["status"] == 499
    assert "shardrun_requests_open 0.0" in context.metrics.text().decode()


def test_stop_texts_are_not_shown(client: openai.OpenAI, model: LanguageModel) -> None:
    whole = model.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True).finish()[0].text
    assert whole is not None
    stop = whole[3:5]
    how: Any = {"extra_body": {"ignore_eos": True}, "temperature": 0}
    found = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, stop=stop, **how)
    assert found.choices[0].text == whole[: whole.index(stop)] and found.choices[0].finish_reason == "stop"


def test_echo_and_the_best_of_several(client: openai.OpenAI, model: LanguageModel) -> None:
    how: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "seed": 3}
    plain = client.completions.create(**how, n=3)
    echoed = client.completions.create(**how, n=3, echo=True)
    assert [one.text for one in echoed.choices] == [PROMPT + one.text for one in plain.choices]
    pieces = list(client.completions.create(**how, echo=True, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == echoed.choices[0].text
    made = model.generate(PROMPT, max_new_tokens=8, seed=3, samples=3, temperature=1.0, logprobs=0)
    texts = made.finish()
    texts.sort(key=lambda text: -sum(text.logprobs or []) / len(text.ids))
    best = client.completions.create(**how, n=2, best_of=3)
    assert [one.text for one in best.choices] == [text.text for text in texts[:2]]
    assert [one.index for one in best.choices] == [0, 1] and best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == sum(len(text.ids) for text in texts)


def test_every_piece_has_a_place_for_usage_where_it_is_asked_for(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "stream": True}
    assert all("usage" not in piece.model_fields_set for piece in client.completions.create(**how))
    pieces = list(client.completions.create(**how, stream_options={"include_usage": True}))
    assert all("usage" in piece.model_fields_set for piece in pieces)
    assert [piece.usage is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_tokens_are_shown_by_their_bytes(client: openai.OpenAI, model: LanguageModel) -> None:
    how: Any = {"temperature": 2, "seed": 6, "extra_body": {"ignore_eos": True}}
    messages: Any = [{"role": "user", "content": "who?"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=40, logprobs=True, top_logprobs=3, **how
    )
    probable = chat.choices[0].logprobs
    assert probable is not None and probable.content is not None and model.tokenizer is not None
    more: Any = {"max_new_tokens": 40, "temperature": 2, "seed": 6, "ignore_eos": True, "logprobs": 3}
    [own] = model.chat("who?", **more).finish()
    assert [one.logprob for one in probable.content] == pytest.approx(own.logprobs, rel=1e-4, abs=1e-4)
    pieces = [model.tokenizer.pieces[token] for token in own.ids]
    assert [bytes(one.bytes or []) for one in probable.content] == pieces
    for one in (*probable.content, *(top for each in probable.content for top in each.top_logprobs)):
        assert one.token == bytes(one.bytes or []).decode("utf-8", "backslashreplace")
    [found] = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, logprobs=2, **how).choices
    shown = found.logprobs
    assert shown is not None and shown.tokens and shown.text_offset and shown.top_logprobs
    halves = [token for token in shown.tokens if token.startswith("bytes:")]
    assert halves and all(len(top) == 2 for top in shown.top_logprobs)
    for token, offset in zip(shown.tokens, shown.text_offset, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert found.text[offset : offset + len(token)] == token


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function: expected an object"),
        ({"tools": [{"type": "web"}]}, "tools[0].type: expected a function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name: expected"),
        ({"tools": [TOOL, TOOL]}, 'tools[1].function.name: "weather" is there twice'),
        ({"tools": [TOOL]}, "tool_choice: expected required, none or a function, found auto"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "there is no tool",
        ),
        ({"tools": [TOOL], "tool_choice": 3}, "tool_choice: expected auto, required"),
        ({"tools": [TOOL] * 200}, "tools: expected at most 128"),
        (
            {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format: a text is to be a call",
        ),
        ({"tool_choice": "required"}, "tool_choice: there are no tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice: there are no tools"),
        ({"functions": [{}]}, "functions: this server"),
        ({"function_call": {"name": "x"}}, "function_call: this server"),
        ({"modalities": ["text", "audio"]}, "modalities: this server"),
        ({"audio": {"voice": "x"}}, "audio: this server"),
        ({"prediction": {}}, "prediction: this server"),
        ({"reasoning_effort": "high"}, "reasoning_effort: this server"),
        ({"verbosity": "low"}, "verbosity: this server"),
        ({"web_search_options": {}}, "web_search_options: this server"),
        ({"service_tier": "flex"}, "service_tier: this server"),
        ({"store": True}, "store: this server"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention: this server"),
        ({"metadata": "x"}, "metadata: expected an object"),
        ({"safety_identifier": 3}, "safety_identifier: expected a text"),
        ({"echo": True}, "echo: there is no such field here"),
        ({"prompt": "x"}, "prompt: there is no such field here"),
        (
            {"max_tokens": 2, "max_completion_tokens": 3},
            "max_tokens: max_completion_tokens says something else",
        ),
        ({"top_logprobs": 2}, "top_logprobs: give logprobs: true too"),
        ({"logprobs": 2}, "logprobs: expected true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected 0 to 20"),
    ],
)
def test_fields_of_chats_are_not_passed_over(server: Running, asked: dict[str, Any], said: str) -> None:
    messages = [{"role": "user", "content": "who?"}]
    sent = {"model": "tiny", "messages": messages, **asked}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=sent, timeout=60)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 0}, "n"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"stream_options": {}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": []}, "messages"),
        ({"model": "no"}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, None),
    ],
)
def test_errors_name_their_field(server: Running, asked: dict[str, Any], param: str | None) -> None:
    sent = {"model": "tiny", "messages": [{"role": "user", "content": "who?"}], **asked}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=sent, timeout=60)
    assert answer.status_code in {400, 404} and answer.json()["error"]["param"] == param, answer.text


def test_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI, model: LanguageModel) -> None:
    messages: Any = [{"role": "developer", "content": "short"}, {"role": "user", "content": "who?"}]
    more: Any = {
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "modalities": ["text"],
        "store": False,
        "service_tier": "auto", "verbosity": "medium", "metadata": {"a": "b"}, "user": "me",
        "safety_identifier": "x", "prompt_cache_key": "y", "response_format": {"type": "text"},
        "audio": None, "stop": None, "seed": None, "top_p": 0,
    }  # fmt: skip
    found = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=5, extra_body={"top_k": -1, "priority": 3}, **more
    )
    as_system = [{"role": "system", "content": "short"}, messages[1]]
    expected = model.chat(as_system, max_new_tokens=5, temperature=0).finish()[0].text
    assert found.choices[0].message.content == expected  # of the narrowest choice: the likeliest tokens


def test_models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "shardrun"
    with pytest.raises(openai.NotFoundError, match="there is no model 'no'"):
        client.models.retrieve("no")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "rows"}, "generates no texts"),
        ({"max_tokens": 65}, "max_tokens: expected 1 to 64, found 65"),
        ({"max_tokens": True}, "max_tokens: expected a whole number"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 10**400}, "beyond all bounds"),
        ({"logit_bias": {"3": 10**30}}, "logit_bias"),
        ({"stop_token_ids": [[1]]}, "stop_token_ids: expected a list of token ids"),
        ({"prompt": "\ud800"}, "no JSON"),
        ({"top_p": 2}, "top_p"),
        ({"n": 5}, "n: expected 1 to 4, found 5"),
        ({"n": 0}, "n: expected 1 to 4, found 0"),
        ({"stop": [""]}, "stop: expected a text"),
        ({"stop": {"a": 1}}, "stop: expected a text"),
        ({"stop": ["a"] * 17}, "at most 16"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs: expected 0 to 20"),
        ({"prompt": []}, "prompt: expected"),
        ({"prompt": [1.5]}, "prompt: expected"),
        ({"prompt": [10**9]}, "vocabulary"),
        ({"prompt": ["a"] * 65}, "prompt: expected at most 64 of them"),
        ({"prompt": "a" * 3000}, "context"),
        ({"prompt": "a" * 30_000}, "the prompt has 30000 characters, far more than fit"),
        ({"suffix": "x"}, "suffix: this server does not have it"),
        ({"echo": True, "logprobs": 1}, "echo: log-probabilities of a prompt"),
        ({"echo": 1}, "echo: expected true or false"),
        ({"best_of": 1, "n": 2}, "best_of: expected at least n, which is 2"),
        ({"best_of": 5}, "best_of: expected 1 to 4"),
        ({"best_of": 2, "stream": True}, "best_of: stream is not possible"),
        ({"best_of": 2, "logprobs": 1}, "best_of: logprobs is not possible"),
        ({"min_tokens": -1}, "min_tokens: expected a whole number"),
        ({"priority": -1}, "priority: expected 0 to"),
        ({"temprature": 1}, "temprature: there is no such field here; did you mean"),
        ({"messages": []}, "messages: there is no such field"),
        ({"top_logprobs": 2}, "top_logprobs: there is no such field"),
        ({"user": 3}, "user: expected a text"),
        ({"stream_options": {"include_usage": True}}, "stream_options: it is for streams"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"response_format": "json"}, "response_format: expected an object"),
        ({"response_format": {}}, "response_format.type: expected a text"),
        ({"response_format": {"type": "xml"}}, "response_format.type: expected text, json_object or"),
        ({"response_format": {"type": "json_object", "a": 1}}, "response_format.a"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: expected an object"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "json_schema.schema: expected"),
    ],
)
def test_wrong_requests(server: Running, asked: dict[str, Any], said: str) -> None:
    url = f"{server.url}/v1/completions"
    sent = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 2, **asked})
    answer = httpx.post(url, content=sent, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert said in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages: expected at least one"),
        ("hi", "messages: expected a list"),
        ([3], "messages[0]: expected an object"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "parts of type text"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
    ],
)
def test_wrong_chats(server: Running, messages: object, said: str) -> None:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={"model": "tiny", "messages": messages}, timeout=60
    )
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


def test_a_client_that_goes_away_ends_its_text(server: Running, client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 64, "extra_body": {"ignore_eos": True}}
    with client.completions.create(**how, stream=True) as stream:
        next(iter(stream))
    engine = server.context.repository.get("tiny").ready.engine  # type: ignore[attr-defined]
    found = client.completions.create(**{**how, "max_tokens": 2}, temperature=0)
    assert found.choices[0].finish_reason == "length"
    assert not engine._requests


@pytest.mark.parametrize("chat", [True, False])
def test_a_client_that_goes_away_before_its_answer_ends_its_text(
    server: Running, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = server.context.repository.get("tiny").ready.engine  # type: ignore[attr-defined]
    step = engine._step

    def slowly() -> None:  # no machine writes these texts before their client goes away
        time.sleep(0.05)
        step()

    monkeypatch.setattr(engine, "_step", slowly)
    how: Any = {
        "model": "tiny",
        "max_tokens": 64,
        "ignore_eos": True,
        "n": 4,
        "logprobs": True if chat else 1,
    }
    how |= {"messages": [{"role": "user", "content": "who?"}]} if chat else {"prompt": ["a"] * 40}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    before = server.context.latest[0] if server.context.latest else None
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}{path}", json=how, timeout=0.2)
    until(lambda: server.context.latest[0] is not before)
    until(lambda: not engine._requests and not len(engine._waiting))
    assert server.context.latest[0]["status"] == 499 and server.context.latest[0]["path"] == path


def test_a_large_body_is_answered(server: Running) -> None:
    text, url = "x" * LARGE, f"{server.url}/v1/completions"
    answer = httpx.post(url, json={"model": "tiny", "prompt": text}, timeout=60)
    assert answer.status_code == 400 and "prompt" in answer.text
    broken = httpx.post(url, content=b'{"prompt": "' + text.encode() + b'", }', timeout=60)
    assert broken.status_code == 400 and "the body is no JSON" in broken.text


def test_who_asks_and_how_urgently_goes_to_the_queue(
    server: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = server.context.repository.get("tiny").ready.engine  # type: ignore[attr-defined]
    seen: list[Any] = []
    real = engine.submit

    def submit(*given: Any, **more: Any) -> Any:
        seen.append((more["client"], more["priority"]))
        return real(*given, **more)

    monkeypatch.setattr(engine, "submit", submit)
    how: Any = {"model": "tiny", "max_tokens": 1}
    client.completions.create(**how, prompt="x", extra_body={"priority": 7})
    client.chat.completions.create(**how, messages=[{"role": "user", "content": "x"}])
    other = client.with_options(api_key="another")
    other.completions.create(**how, prompt="x")
    assert [priority for _, priority in seen] == [7, 0, 0]
    # Without tokens a client is its address.
    assert seen[0][0] == seen[1][0] == seen[2][0] == "127.0.0.1"


@pytest.mark.parametrize("part", ["a", "a.", "[", "1a"])
def test_a_long_name_of_a_field_takes_no_more_than_its_length(part: str) -> None:
    """A client chooses it."""
    assert as_lines_do(fields.named, part)
    assert fields.named("messages[0].role: what") == "messages[0].role"
