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
from launcher.serving.openai.tools import Tools
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


CITY = {"$ref": "#/$defs/city"}
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": PLACE}},
    {"type": "function", "function": {"name": "animal", "parameters": SCHEMA}},
]
PARAMETERS = {"weather": PLACE, "animal": SCHEMA}


@pytest.mark.parametrize("name", ["weather", "animal", None])
def test_calls_of_functions_fit_their_parameters(
    server: Running, client: openai.OpenAI, name: str | None
) -> None:
    tokenizer = server.context.repository.get("tiny").ready.model.tokenizer  # type: ignore[attr-defined]
    spaces = {str(tokenizer.id_of(token)): -100 for token in "ĠĊĉ"}  # of which random weights write many
    choice: Any = "required" if name is None else {"type": "function", "function": {"name": name}}
    how: Any = {**CHAT, "tools": TOOLS, "tool_choice": choice, "n": 3, "seed": 2, "logit_bias": spaces}
    how["temperature"] = 1
    answer = client.chat.completions.create(**how)
    calls: dict[int, Any] = {}
    for one in answer.choices:
        assert one.message.content is None and one.message.tool_calls
        [call] = one.message.tool_calls
        assert call.type == "function" and call.id.startswith("call_")
        assert name in {None, call.function.name}
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
        assert one.finish_reason == ("tool_calls" if name is None else "stop")
        calls[one.index] = call.function
    names, arguments = dict[int, str](), dict[int, str]()
    for piece in client.chat.completions.create(**how, stream=True):
        [shown] = piece.choices
        assert not shown.delta.content
        for part in shown.delta.tool_calls or ():
            assert part.index == 0 and part.function is not None
            if part.function.name:
                assert part.id
                names[shown.index] = part.function.name
            arguments[shown.index] = arguments.get(shown.index, "") + (part.function.arguments or "")
    assert names == {index: call.name for index, call in calls.items()}
    assert arguments == {index: call.arguments for index, call in calls.items()}


def test_tools_are_shown_to_the_model(server: Running, client: openai.OpenAI) -> None:
    seen: list[Any] = []
    model: Any = server.context.repository.get("tiny").ready.model  # type: ignore[attr-defined]
    real = model.template
    messages: Any = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]  # fmt: skip

    class Noting:
        def text(self, messages: Any, **more: Any) -> str:
            seen.append((messages, more))
            return str(real.text(messages, **more))

    model.template = Noting()
    try:
        client.chat.completions.create(
            **{**CHAT, "messages": messages}, tools=TOOLS, tool_choice="required", seed=1
        )
        client.chat.completions.create(
            **{**CHAT, "max_completion_tokens": 2}, tools=TOOLS, tool_choice="none"
        )
    finally:
        model.template = real
    assert [more for _, more in seen] == [{"tools": TOOLS}, {}]
    assert seen[0][0][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert seen[0][0][2]["tool_call_id"] == "a"


def test_a_call_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    how: Any = {**CHAT, "max_completion_tokens": 4, "tools": TOOLS, "seed": 2}
    found = client.chat.completions.create(**how, tool_choice="required").choices[0]
    assert found.finish_reason == "length" and not found.message.tool_calls and found.message.content
    stopped: Any = {**how, "max_completion_tokens": 64, "stop": ['"arguments"'], "tool_choice": "required"}
    found = client.chat.completions.create(**stopped).choices[0]
    assert found.finish_reason == "stop" and not found.message.tool_calls and found.message.content
    *_, last = client.chat.completions.create(**stopped, stream=True)
    assert last.choices[0].finish_reason == "stop" and last.choices[0].delta.content == found.message.content
    named: Any = {"type": "function", "function": {"name": "animal"}}
    found = client.chat.completions.create(**how, tool_choice=named).choices[0]
    assert found.finish_reason == "length" and found.message.tool_calls


def test_arguments_that_are_too_deep_are_no_call() -> None:
    tools, deep = Tools([], "{}", None), 20_000
    for text in ("[" * deep, "[" * deep + "]" * deep + "}}"):
        assert tools.calls(0, '{"name": "f", "arguments": {"a": ' + text)[1] == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_parameters_that_are_too_deep_are_refused(server: Running, choice: object) -> None:
    schema: Any = True
    for _ in range(450):
        schema = {"anyOf": [schema]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**CHAT, "tools": tools, "tool_choice": choice}, timeout=60
    )
    assert answer.status_code == 400 and "deep" in answer.json()["error"]["message"], answer.text
