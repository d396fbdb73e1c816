"""What bodies of the OpenAI protocol ask for: the defaults, and numbers that are just allowed or just not."""

from __future__ import annotations

import json
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.generation.options import NEW_TOKENS
from launcher.generation.sample import Completion
from launcher.serving.limits import ServeLimits
from launcher.serving.openai.answers import Answer, Spelling, _Offsets, best_of
from launcher.serving.openai.asked import Asked, asked_of
from launcher.serving.openai.fields import MOST_PRIORITY, named
from launcher.serving.openai.texts import messages_of, prompts_of
from launcher.serving.openai.tools import tools_of
from launcher.serving.refusals import RefusalError

LIMITS = ServeLimits(tokens=1000, samples=4)
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}


def asked(body: dict[str, Any], *, chat: bool = False, defaults: Any = None) -> Asked:
    manner: Any = SimpleNamespace(defaults=defaults)
    return asked_of(body, LIMITS, manner, chat=chat)


def test_what_is_asked_for_where_nothing_is_said() -> None:
    found = asked({})
    assert (found.stream, found.usage, found.texts, found.echo, found.priority) == (False, False, 1, False, 0)
    options = found.options
    assert (options.max_new_tokens, options.temperature, options.samples) == (NEW_TOKENS, 1.0, 1)
    assert options.seed is None and options.logprobs is None and not found.logprobs
    assert options.stop == () and options.json_schema is None and found.tools is None


@pytest.mark.parametrize(
    ("defaults", "body", "temperature"),
    [
        ({"do_sample": True}, {}, None),  # as the model's folder has it
        ({"temperature": 0.5}, {}, None),
        ({"do_sample": False}, {}, 1.0),
        ({"do_sample": True}, {"temperature": 0}, 0),
        (None, {"temperature": 0}, 0),
    ],
)
def test_temperatures(defaults: Any, body: dict[str, Any], temperature: float | None) -> None:
    assert asked(body, defaults=defaults).options.temperature == temperature


@pytest.mark.parametrize(
    ("body", "option", "value"),
    [
        ({"max_tokens": 1}, "max_new_tokens", 1),
        ({"max_tokens": 1000}, "max_new_tokens", 1000),
        ({"n": 4}, "samples", 4),
        ({"best_of": 4}, "samples", 4),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": 20}, "logprobs", 20),
        ({"best_of": 2}, "logprobs", 0),  # by which the best are found
        ({"top_p": 0}, "top_p", 1e-9),
        ({"top_k": -1}, "top_k", None),
        ({"seed": -1}, "seed", 2**64 - 1),
        ({"seed": 2**64 + 5}, "seed", 5),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x"] * 16}, "stop", ("x",) * 16),
        ({"stop": []}, "stop", ()),
        ({"logit_bias": {"3": -100}}, "logit_bias", {3: -100.0}),
        ({"stop_token_ids": [1, 2]}, "stop_ids", (1, 2)),
        ({"min_tokens": 3}, "min_new_tokens", 3),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.25}, "frequency_penalty", 0.25),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.25}, "presence_penalty", 0.5),
        ({"response_format": {"type": "text"}}, "json_schema", None),
        ({"response_format": SCHEMA}, "json_schema", '{"a": 1}'),
    ],
)  # fmt: skip
def test_fields_and_what_they_set(body: dict[str, Any], option: str, value: object) -> None:
    assert getattr(asked(body).options, option) == value


def test_the_default_is_no_more_than_the_server_allows() -> None:
    few: Any = SimpleNamespace(defaults=None)
    assert asked_of({}, ServeLimits(tokens=NEW_TOKENS - 1), few, chat=False).options.max_new_tokens == (
        NEW_TOKENS - 1
    )


@pytest.mark.parametrize(
    ("body", "shown", "texts"),
    [
        ({"logprobs": 1}, True, 1),
        ({"logprobs": 0, "n": 2}, True, 2),
        ({"best_of": 2}, False, 1),  # nobody asked for them
        ({"best_of": 3, "n": 3}, False, 3),
    ],
)
def test_log_probabilities_are_shown_to_who_asked(body: dict[str, Any], shown: bool, texts: int) -> None:
    found = asked(body)
    assert found.logprobs is shown and found.texts == texts


def test_fields_of_chats_and_streams() -> None:
    assert asked({"max_completion_tokens": 7, "max_tokens": 7}, chat=True).options.max_new_tokens == 7
    assert asked({"logprobs": True}, chat=True).options.logprobs == 0
    assert asked({"logprobs": True, "top_logprobs": 20}, chat=True).options.logprobs == 20
    assert asked({"logprobs": False}, chat=True).options.logprobs is None
    stream = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    assert asked(stream).usage and not asked({"stream": True, "stream_options": {}}).usage
    assert asked({"echo": True, "best_of": 2}).echo  # their log-probabilities are for finding the best
    assert asked({"priority": MOST_PRIORITY}).priority == MOST_PRIORITY
    for wrong in ({"priority": MOST_PRIORITY + 1}, {"max_tokens": 0}, {"logprobs": -1}, {"best_of": 0}):
        with pytest.raises(RefusalError, match=f"^{next(iter(wrong))}: expected"):
            asked(wrong)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("", [""]),
        ("x", ["x"]),
        ([1, 2], [[1, 2]]),
        (["x", "y", [3]], ["x", "y", [3]]),
        (["x"] * 3, ["x"] * 3),
        ([1] * 9, [[1] * 9]),  # ids of one
        ([], None),
        ([[]], None),
        ([True], None),
        (["x", 1], None),
        (["x"] * 4, None),
        (None, None),
        (3, None),
    ],
)
def test_prompts(value: object, found: Any) -> None:
    if found is not None:
        assert prompts_of({"prompt": value}, 3) == found
        return
    with pytest.raises(RefusalError, match=r"^prompt: expected") as caught:
        prompts_of({"prompt": value}, 3)
    assert caught.value.status == HTTPStatus.BAD_REQUEST


def test_messages() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    odd = [3, {"function": {"arguments": "{"}}, {"function": {"arguments": {"a": 1}}}, {"function": 3}]
    found = messages_of(
        {
            "messages": [
                {"role": "developer", "content": "short"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [call, *odd]},
                {"role": "tool", "name": "f", "tool_calls": []},
            ]
        }
    )
    values = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert found == [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [values, *odd]},
        {"role": "tool", "name": "f", "content": "", "tool_calls": []},
    ]
    assert call["function"]["arguments"] == '{"a": 1}'  # type: ignore[index]  # what came stays as it is


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def test_which_functions_may_be_called() -> None:
    whole = {
        "properties": {"a": {"$ref": "#/$defs/b"}, "c": {"$ref": "#"}},
        "$defs": {"b": {"$ref": "other#/x"}},
    }
    given = [tool("f", parameters=whole), tool("a" * 64)]
    assert tools_of({}) is None and tools_of({"tools": given, "tool_choice": "none"}) is None
    assert tools_of({"tools": [tool(f"f{number}") for number in range(128)]}) is not None
    free = tools_of({"tools": given})
    assert free is not None and (free.schema, free.name, free.most) == (None, None, 128)
    one = tools_of({"tools": given, "tool_choice": "auto", "parallel_tool_calls": False})
    assert one is not None and one.most == 1
    named_one = tools_of({"tools": given, "tool_choice": tool("f")})
    assert named_one is not None and named_one.name == "f" and json.loads(named_one.schema or "") == whole
    some = tools_of({"tools": given, "tool_choice": "required"})
    assert some is not None and some.name is None
    schema = json.loads(some.schema or "")
    assert [call["properties"]["name"]["const"] for call in schema["anyOf"]] == ["f", "a" * 64]
    assert all(call["required"] == ["name", "arguments"] for call in schema["anyOf"])
    assert not any(call["additionalProperties"] for call in schema["anyOf"])
    moved = schema["$defs"]["f"]  # what refers to the schema itself does so in its new place
    assert moved["properties"] == {"a": {"$ref": "#/$defs/f/$defs/b"}, "c": {"$ref": "#/$defs/f"}}
    assert moved["$defs"] == {"b": {"$ref": "other#/x"}}
    with pytest.raises(RefusalError, match="name: expected 1 to 64 letters"):
        tools_of({"tools": [tool("a" * 65)]})


def test_calls_of_a_text_that_follows_a_schema() -> None:
    some = tools_of({"tools": [tool("f")], "tool_choice": "required"})
    assert some is not None
    said, [call] = some.calls(0, '{"name": "f", "arguments": {"a": "ä"}}')
    assert said is None and call["function"] == {"name": "f", "arguments": '{"a": "ä"}'}
    assert some.calls(0, '{"name": "f", "arguments": {}}')[1][0]["id"] == call["id"]  # of the same text
    assert some.calls(1, '{"name": "f", "arguments": {}}')[1][0]["id"] != call["id"]
    assert some.calls(0, '{"name": "f", "argu') == ('{"name": "f", "argu', [])
    own = tools_of({"tools": [tool("f")], "tool_choice": tool("f")})
    assert own is not None and own.calls(0, "{}")[1][0]["function"] == {"name": "f", "arguments": "{}"}
    reasons = [(tools.reason(ended, called=called)) for tools in (some, own) for ended, called in
               (("stop", True), ("stop", False), ("length", True))]  # fmt: skip
    assert reasons == ["tool_calls", "stop", "length", "stop", "stop", "length"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("n: expected 1", "n"),
        ("tools[0].function.name: x", "tools[0].function.name"),
        ("suffix: x", "suffix"),
        ("reasoning_effort: x", "reasoning_effort"),
        ("user: x", "user"),
        ("model: x", "model"),
        ("nobody: x", None),
        ("the n: x", None),
        ("n is wrong", None),
    ],
)
def test_the_field_that_a_message_is_about(message: str, field: str | None) -> None:
    assert named(message) == field


def completion(*logprobs: float) -> Completion:
    made: Any = SimpleNamespace(logprobs=list(logprobs))
    return made  # type: ignore[no-any-return]


def test_the_best_are_the_likeliest_by_the_mean_of_their_tokens() -> None:
    long, short, worst = completion(-1, -1, -1), completion(-2), completion(-9)
    assert best_of([worst, short, long], 2) == [long, short]
    assert best_of([worst, long], 2) == [worst, long]  # all, in their order


def test_characters_of_several_tokens_are_counted_once() -> None:
    """Also of characters that are cut short."""
    offsets = _Offsets()
    pieces = [b"a", "ä".encode()[:1], "ä".encode()[1:], b"b", b"\xe2\x82", b"c", b"", b"\x80", b"d"]
    assert [offsets.next(piece) for piece in pieces] == [0, 1, 1, 2, 3, 4, 5, 5, 6]


def test_tokens_are_spelled_by_their_bytes_or_ids() -> None:
    tokenizer: Any = SimpleNamespace(pieces=[b"a", b"\xc3", b"<end>"], special={2})
    own, bare = Spelling(tokenizer), Spelling(None)
    assert [own.name(token) for token in range(4)] == ["a", "bytes:\\xc3", "<end>", ""]
    assert [own.shown(token) for token in range(4)] == [b"a", b"\xc3", b"", b""]
    assert bare.name(7) == "token_id:7" and bare.shown(7) == b"token_id:7"


@pytest.mark.parametrize(
    ("chat", "head", "kinds"),
    [
        (False, "cmpl-", ["text_completion", "text_completion"]),
        (True, "chatcmpl-", ["chat.completion", "chat.completion.chunk"]),
    ],
)
def test_heads_of_answers(chat: bool, head: str, kinds: list[str]) -> None:
    answer = Answer("m", chat, Spelling(None), logprobs=False, prompt_tokens=3, tokens=4)
    assert answer.id.startswith(head)
    whole, last = answer.whole([]), answer.closing()
    assert [whole["object"], last["object"]] == kinds and last["choices"] == []
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert whole["usage"] == last["usage"] == usage
    assert "usage" not in answer.piece(0, "x")
    answer.counted = True
    assert answer.piece(0, "x")["usage"] is None
