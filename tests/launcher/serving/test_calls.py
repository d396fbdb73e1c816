"""`tool_choice: auto`: calls that a model makes by itself, in the form that its chat template shows."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from launcher.generation.text.chat import ChatTemplate
from launcher.serving import text_model
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.openai import asked
from launcher.serving.openai.answers import Answer, Spelling
from launcher.serving.openai.calls import CallForm, form_of
from launcher.serving.openai.tools import tools_of
from tests.launcher.serving.running import Running

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "CALL{% endfor %}END{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def template(call: str, end: str = "") -> ChatTemplate:
    return ChatTemplate(TURNS.replace("CALL", call).replace("END", end), Path("template"), {})


@functools.cache
def form_shown_by(source: str) -> CallForm | None:
    """It is asked of processes."""
    return form_of(ChatTemplate(source, Path("template"), {}).text)


TAGGED = template("\n<call>\n{{ c.function | tojson }}\n</call>")
BARE = template('{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}')
LISTED = template("{% if loop.first %}[CALLS] [{% else %}, {% endif %}{{ c.function | tojson }}", "]")
AS_TEXT = template(
    "{{ '<f>{\"arguments\": ' + c.function.arguments + ', \"name\": \"' + c.function.name + '\"}</f>' }}"
)
CALL, OTHER = '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": "time", "arguments": {}}'
OSLO, TIME = ("weather", '{"city": "Oslo"}'), ("time", "{}")


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        (TAGGED, CallForm("<call>", "</call><|end|>", "name", "arguments")),
        (BARE, CallForm("", "<|end|>", "name", "parameters")),
        (LISTED, CallForm("[CALLS]", "<|end|>", "name", "arguments")),
        (AS_TEXT, CallForm("<f>", "</f><|end|>", "name", "arguments")),
        (template("<call={{ c.function.name }}>{{ c.function.arguments.word }}"), None),
        (template("{{ c.function }}"), None),
        (template("{{ raise_exception('no calls here') }}"), None),
        (template(""), None),
    ],
)
def test_forms_of_templates(shown: ChatTemplate, form: CallForm | None) -> None:
    assert form_shown_by(shown.source) == form


@pytest.mark.parametrize(
    ("shown", "text", "found"),
    [
        (TAGGED, f"<call>\n{CALL}\n</call>", ("", [OSLO])),
        (
            TAGGED,
            f"Let me see.\n<call>{CALL}</call>\n<call>\n{OTHER}\n</call>",
            ("Let me see.", [OSLO, TIME]),
        ),
        (TAGGED, CALL, ("", [OSLO])),  # where the mark is a special token, which is not shown
        (TAGGED, f"<call>{CALL}</call> There.", ("There.", [OSLO])),
        (LISTED, f"[CALLS] [{CALL}, {OTHER}]", ("", [OSLO, TIME])),
        (LISTED, f" [{CALL}, {OTHER}]", ("", [OSLO, TIME])),
        (BARE, CALL.replace("arguments", "parameters"), ("", [OSLO])),
        (AS_TEXT, json.dumps({"name": "weather", "arguments": '{"city": "Oslo"}'}), ("", [OSLO])),
    ],
)
def test_calls_in_texts(shown: ChatTemplate, text: str, found: object) -> None:
    form = form_shown_by(shown.source)
    assert form is not None and form.calls(text, ["weather", "time"]) == found


@pytest.mark.parametrize(
    "text",
    [
        "", "Hello.", "{", f"<call>{CALL[:-1]}", "<call>nothing</call>", "<call>", f"I may say {CALL}",
        '<call>{"name": "other", "arguments": {}}</call>', '<call>{"name": "weather"}</call>', "[1, 2]",
        '<call>{"name": "weather", "arguments": 3}</call>', '{"name": ["weather"], "arguments": {}}',
        '{"name": "weather", "arguments": "{"}', '{"a": ' * 20_000, "[" * 20_000,
    ],
)  # fmt: skip
def test_texts_without_calls(text: str) -> None:
    form = CallForm("<call>", "</call>", "name", "arguments")
    assert form.calls(text, ["weather"]) == (text, [])


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_as_deep_as_can_be_read(choice: str) -> None:
    """What can be read may be too deep to be written again."""
    tools = tools_of({"tools": [WEATHER], "tool_choice": choice})
    assert tools is not None
    if choice == "auto":
        tools = replace(tools, form=CallForm("<call>", "</call>", "name", "arguments"))
    counts = set()
    for depth in range(1, sys.getrecursionlimit() + 9):
        lists = "[" * depth + "]" * depth
        counts.add(len(tools.calls(0, f'{{"name": "weather", "arguments": {{"city": {lists}}}}}')[1]))
    assert counts == {0, 1}


@pytest.mark.parametrize(
    ("text", "early"),
    [
        (f"Let me see.\n<call>{CALL}</call>", "Let me see.\n"), (f"<call>{CALL}</call>", ""),
        (f"\n <call>{CALL}</call>", ""), (CALL, ""), ("a < b <c", "a < b "), ("Hello.", "Hello."),
        (" \n", ""),
    ],
)  # fmt: skip
def test_what_is_no_call_is_shown_as_it_comes(text: str, early: str) -> None:
    form, told, held = CallForm("<call>", "</call>", "name", "arguments"), "", ""
    for character in text:
        held += character
        certain = form.certain(held, begun=bool(told))
        told, held = told + held[:certain], held[certain:]
    assert (told, told + held) == (early, text)


@pytest.mark.parametrize("marker", ["<call>", ""])
def test_the_rest_of_a_text_is_no_call_where_the_whole_is_none(marker: str) -> None:
    tools = tools_of({"tools": [WEATHER]})
    assert tools is not None
    tools = replace(tools, form=CallForm(marker, "", "name", "arguments"))
    assert tools.calls(0, f"Such as {CALL}") == (f"Such as {CALL}", [])
    answer = Answer("tiny", chat=True, spelling=Spelling(None), logprobs=False, tools=tools)
    pieces: list[Any] = [answer.piece(0, "Such as "), answer.piece(0, CALL, reason="end")]
    said = [piece["choices"][0] for piece in pieces]
    assert [one["delta"] for one in said] == [{"content": "Such as "}, {"content": CALL}]
    assert said[-1]["finish_reason"] == "stop"


def test_at_most_one_call_where_none_may_be_beside_another() -> None:
    form = CallForm("", "", "name", "arguments")
    for parallel, count in ((False, 1), (True, 2)):
        tools = tools_of({"tools": [WEATHER], "parallel_tool_calls": parallel})
        assert tools is not None
        _, calls = replace(tools, form=form).calls(0, f"{CALL} {CALL}")
        assert len(calls) == count == len({call["id"] for call in calls})


def test_many_who_ask_first_wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def slow(render: Any) -> CallForm:
        made.append(render)
        time.sleep(0.05)
        return CallForm("<call>", "", "name", "arguments")

    monkeypatch.setattr(text_model, "form_of", slow)
    model = text_model.TextModel("tiny", ServeLimits(), Metrics(), open_model=pytest.fail)
    ready: Any = SimpleNamespace(model=SimpleNamespace(template=TAGGED))

    async def work() -> list[Any]:
        return await asyncio.gather(*(model.call_form(ready) for _ in range(5)))

    assert {form.marker for form in asyncio.run(work())} == {"<call>"} and len(made) == 1


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "who?"}], "max_completion_tokens": 64}


@pytest.mark.parametrize(("shown", "choice"), [(TAGGED, "auto"), (LISTED, openai.omit)])
def test_a_client_is_told_of_calls(
    server: Running, client: openai.OpenAI, shown: ChatTemplate, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of the model, whose weights are random, follow a grammar here, as those of others would by
    themselves."""
    model: Any = server.context.repository.get("tiny").ready.model  # type: ignore[attr-defined]
    monkeypatch.setattr(model, "template", shown)
    schema = json.dumps({"const": json.loads(CALL)})

    how: Any = {**CHAT, "tools": [WEATHER], "tool_choice": choice}
    answer = client.chat.completions.create(**how, seed=2).choices[0]
    assert answer.message.content and not answer.message.tool_calls
    pieces = [one.choices[0] for one in client.chat.completions.create(**how, seed=2, stream=True)]
    assert "".join(one.delta.content or "" for one in pieces) == answer.message.content

    real = asked.asked_of
    monkeypatch.setattr("launcher.serving.openai.routes.asked_of", _following(real, schema))
    answer = client.chat.completions.create(**how, seed=1).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    [call] = answer.message.tool_calls or ()
    assert (call.type, call.function.name, call.function.arguments) == ("function", *OSLO)  # type: ignore[union-attr]
    *pieces, last = (one.choices[0] for one in client.chat.completions.create(**how, seed=1, stream=True))
    assert last.finish_reason == "tool_calls" and not any(one.delta.content for one in [*pieces, last])
    [part] = last.delta.tool_calls or ()
    assert part.id and part.function is not None
    assert (part.function.name, part.function.arguments) == OSLO


def _following(real: Any, schema: str) -> Any:
    def asked_of(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        return replace(found, options=replace(found.options, json_schema=schema))

    return asked_of


def test_where_the_template_shows_no_calls(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match="found auto: the model's chat template does not show"
    ) as told:
        client.chat.completions.create(**CHAT, tools=[WEATHER])
    assert told.value.param == "tool_choice"
