"""The pieces of OpenAI's streams, of several prompts with several texts each, and of calls of functions."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.generation.sample import Completion, Done, Token
from launcher.group.requests import PredictError
from launcher.serving.openai.answers import Answer, Spelling
from launcher.serving.openai.routes import _after, _echoed, _pieces
from launcher.serving.openai.tools import tools_of
from launcher.serving.refusals import RefusalError

UNUSED: Any = None
SPELLING = Spelling(None)


def done(sample: int, text: str = "", reason: Any = "length") -> Done:
    return Done(sample, text, Completion(sample, [1], text, reason))


class Model:
    """What gives the events of each prompt, which are its stream."""

    async def events(self, stream: Any, speaking: Any) -> Any:
        for event in stream:
            await asyncio.sleep(0)
            if isinstance(event, Exception):
                raise event
            yield event


def streamed(
    *prompts: Any, samples: int = 1, usage: bool = False, echoed: Any = None, **how: Any
) -> tuple[list[Any], Answer]:
    """The events of a stream, but for the last, which says that it is the last."""
    answer = Answer("m", how.pop("chat", False), SPELLING, how.pop("logprobs", False), usage, **how)
    asked: Any = SimpleNamespace(options=SimpleNamespace(samples=samples), usage=usage)
    model: Any = Model()

    async def read() -> list[bytes]:
        taken = [(prompt, UNUSED) for prompt in prompts]
        return [part async for part in _pieces(model, asked, answer, taken, echoed or [""] * len(prompts))]

    parts = asyncio.run(asyncio.wait_for(read(), 20))
    assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in parts)
    texts = [part[6:-2].decode() for part in parts]
    if texts[-1] == "[DONE]":
        return [*map(json.loads, texts[:-1]), "[DONE]"], answer
    return [*map(json.loads, texts)], answer


def shown(parts: list[Any]) -> list[tuple[int, str, str | None]]:
    choices = [one["choices"][0] for one in parts if one != "[DONE]" and one.get("choices")]
    return [(one["index"], one["text"], one["finish_reason"]) for one in choices]


def test_texts_of_several_prompts_have_indices_of_their_own() -> None:
    first = [Token(1, 7, "a"), Token(0, 8, ""), done(1, "b", "stop"), done(0, "", "end")]
    second = [Token(0, 9, "c"), done(0, "", "length"), done(1)]
    parts, answer = streamed(first, second, samples=2, echoed=["", "hi "])
    assert parts[-1] == "[DONE]" and answer.tokens == 3
    found = shown(parts)
    # What is echoed comes first; a token that adds nothing yet has no piece.
    assert found[:2] == [(2, "hi ", None), (3, "hi ", None)]
    assert sorted(found[2:]) == sorted(
        [
            (1, "a", None),
            (1, "b", "stop"),
            (0, "", "stop"),
            (2, "c", None),
            (2, "", "length"),
            (3, "", "length"),
        ]
    )


def test_tokens_that_add_nothing_are_told_with_their_log_probabilities() -> None:
    parts, _ = streamed([Token(0, 8, "", -0.5, ((8, -0.5),)), done(0)], logprobs=True)
    first, last = (one["choices"][0] for one in parts[:-1])
    assert first["text"] == "" and first["logprobs"]["token_logprobs"] == [-0.5]
    assert first["logprobs"]["tokens"] == ["token_id:8"] and last["logprobs"] is None


def test_the_number_of_tokens_comes_last_where_it_is_asked_for() -> None:
    events = [Token(0, 7, "a"), Token(0, 8, "b"), done(0)]
    parts, _ = streamed(events, usage=True, prompt_tokens=3)
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert parts[-2]["usage"] == usage and parts[-2]["choices"] == []
    assert all(one["usage"] is None for one in parts[:-2])
    assert all("usage" not in one for one in streamed(events)[0][:-1])


def test_an_error_ends_the_stream_and_is_its_last_event() -> None:
    parts, _ = streamed([Token(0, 7, "a"), PredictError("index 9 of /a/b")], usage=True)
    assert shown(parts) == [(0, "a", None)] and "[DONE]" not in parts
    assert parts[-1]["error"]["message"] == "index 9 of <path>"


def test_each_text_of_a_chat_begins_with_who_speaks() -> None:
    parts, _ = streamed([Token(0, 7, "a"), done(0, "", "stop"), done(1)], samples=2, chat=True)
    choices = [one["choices"][0] for one in parts[:-1]]
    assert [(one["index"], one["delta"]) for one in choices] == [
        (0, {"role": "assistant", "content": ""}), (1, {"role": "assistant", "content": ""}),
        (0, {"content": "a"}), (0, {}), (1, {}),
    ]  # fmt: skip
    assert [one["finish_reason"] for one in choices] == [None, None, None, "stop", "length"]


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_arguments_of_a_call_by_name_come_piece_by_piece() -> None:
    tools = tools_of({"tools": [tool("f")], "tool_choice": tool("f")})
    parts, _ = streamed(
        [Token(0, 7, '{"a'), Token(0, 8, '": 1}'), done(0, "", "stop")], chat=True, tools=tools
    )
    opening, *others = (one["choices"][0] for one in parts[:-1])
    [call] = opening["delta"]["tool_calls"]
    assert opening["delta"]["content"] is None and call["index"] == 0 and call["type"] == "function"
    assert call["function"] == {"name": "f", "arguments": ""}
    assert [one["delta"] for one in others] == [
        {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"a', '": 1}')
    ] + [{}]
    assert others[-1]["finish_reason"] == "stop"


def test_a_call_of_any_function_is_told_when_all_of_it_is_there() -> None:
    tools = tools_of({"tools": [tool("f"), tool("g")], "tool_choice": "required"})
    events = [Token(0, 7, '{"name": "g", "arg'), Token(0, 8, 'uments": {"a": 1}}'), done(0, "", "stop")]
    parts, answer = streamed(events, chat=True, tools=tools)
    opening, *waits, last = (one["choices"][0] for one in parts[:-1])
    assert opening["delta"] == {"role": "assistant", "content": None}
    assert [one["delta"] for one in waits] == [{}, {}]
    [call] = last["delta"]["tool_calls"]
    assert (
        call["function"] == {"name": "g", "arguments": '{"a": 1}'} and last["finish_reason"] == "tool_calls"
    )
    whole: Any = answer.whole([(0, Completion(0, [1], '{"name": "g", "arguments": {"a": 1}}', "stop"))])
    [choice] = whole["choices"]
    assert choice["message"]["tool_calls"][0]["id"] == call["id"] and choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    cut, _ = streamed([Token(0, 7, '{"name": "g'), done(0, "", "length")], chat=True, tools=tools)
    final = cut[-2]["choices"][0]
    assert final["delta"] == {"content": '{"name": "g'} and final["finish_reason"] == "length"


def test_prompts_that_are_echoed() -> None:
    tokenizer: Any = SimpleNamespace(text=lambda ids: f"text of {ids}")
    assert _echoed("hi", None) == "hi" and _echoed([1, 2], tokenizer) == "text of [1, 2]"
    with pytest.raises(RefusalError, match=r"^echo: the model has no tokenizer"):
        _echoed([1, 2], None)
    text = Completion(0, [1], "b", "stop")
    assert _after("a", text).text == "ab" and _after("", text) is text
    assert _after("a", Completion(0, [1], None, "stop")).text == "a"
