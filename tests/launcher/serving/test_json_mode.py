"""JSON mode, asked by OpenAI's own client: every answer is JSON that fits its schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest

import launcher
from launcher.generation.model import LanguageModel
from tests.launcher.serving.running import Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "who?"}], "max_completion_tokens": 64}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_chats_fit_their_schema(client: openai.OpenAI, temperature: float) -> None:
    answer = client.chat.completions.create(
        **CHAT, response_format=FORM, n=4, temperature=temperature, seed=3
    )
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
        assert choice.finish_reason == "stop"


def test_it_is_the_text_without_a_server(client: openai.OpenAI, texts: Path) -> None:
    with launcher.load_language_model(texts, ranks=1) as model:
        assert isinstance(model, LanguageModel)
        own = {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 64, "seed": 8, "temperature": 1.0}
        expected = model.chat("who?", **own).finish()[0].text
    found = client.chat.completions.create(**CHAT, response_format=FORM, seed=8, temperature=1)
    assert found.choices[0].message.content == expected


def test_streams(client: openai.OpenAI) -> None:
    how: Any = {**CHAT, "response_format": FORM, "seed": 8, "logprobs": True, "top_logprobs": 1}
    whole = client.chat.completions.create(**how).choices[0]
    pieces = [piece.choices[0] for piece in client.chat.completions.create(**how, stream=True)]
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.message.content
    assert pieces[-1].finish_reason == "stop"
    assert whole.logprobs is not None and whole.logprobs.content is not None
    joined = b"".join(bytes(one.bytes or []) for one in whole.logprobs.content)
    assert joined.decode() == whole.message.content


def test_any_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, response_format={"type": "json_object"}, n=4, seed=5)
    whole = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    for choice in whole:
        assert isinstance(json.loads(choice.message.content or ""), dict)
    for choice in answer.choices:
        assert (choice.message.content or "{")[0] == "{"


def test_completions_too(client: openai.OpenAI) -> None:
    more: Any = {"extra_body": {"response_format": FORM}}
    found = client.completions.create(model="tiny", prompt="x", max_tokens=64, temperature=0, **more)
    jsonschema.validate(json.loads(found.choices[0].text), SCHEMA)


class Part(pydantic.BaseModel):
    size: int | None = pydantic.Field(ge=0, le=9)
    legs: Literal["two", "four"]


class Animal(pydantic.BaseModel):
    parts: list[Part] = pydantic.Field(min_length=1, max_length=2)
    tame: bool


def test_classes_of_the_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        **{**CHAT, "messages": CHAT["messages"]}, response_format=Animal, seed=4
    )
    found = answer.choices[0].message.parsed
    assert isinstance(found, Animal) and 1 <= len(found.parts) <= 2


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"enum": ["x" * 70_000]}, "expected at most 65536"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "nothing fits it"),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "cannot be followed"),
        ({"type": "string", "pattern": "(("}, "cannot be followed"),
        ({"type": "nonsense"}, "cannot be followed"),
    ],
)
def test_hostile_schemas_are_refused(server: Running, schema: Any, said: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**CHAT, "response_format": form}, timeout=60
    )
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


def test_without_the_package(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.context.repository.get("tiny").ready.model.tokenizer  # type: ignore[attr-defined]
    monkeypatch.delitem(tokenizer.__dict__, "packed", raising=False)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**CHAT, "response_format": FORM}, timeout=60
    )
    assert answer.status_code == 400 and "need the package llguidance" in answer.text
