"""The prompts and messages in bodies of the OpenAI protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from launcher.serving.bodies import bad, field_of, needed, said


def prompts_of(body: Mapping[str, object], most: int, name: str = "prompt") -> Sequence[str | list[int]]:
    """The prompts of a completion, or of another field: a text, several, token ids, or lists of these. Raises
    `RefusalError`."""
    value = body.get(name)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_ids(value):
            return [value]
        if len(value) > most:
            raise bad(f"{name}: expected at most {most} of them, found {len(value)}")
        if all(isinstance(one, str) or (isinstance(one, list) and _are_ids(one)) for one in value):
            return value
    raise bad(f"{name}: expected a text, token ids or a list of these, found {said(value)}")


def _are_ids(value: list[object]) -> bool:
    return bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def messages_of(body: Mapping[str, object]) -> list[dict[str, object]]:
    """The messages of a chat, whose contents are texts. Raises `RefusalError`."""
    found = []
    for number, message in enumerate(needed(body, "messages", list)):
        where = f"messages[{number}]."
        if not isinstance(message, dict):
            raise bad(f"messages[{number}]: expected an object, found {said(message)}")
        role = needed(message, "role", str, where)
        role = "system" if role == "developer" else role  # the newer word, which few templates know
        content = _content(message.get("content"), where)
        calls = [_with_values(call) for call in field_of(message, "tool_calls", list, where) or ()]
        found.append(
            {**message, "role": role, "content": content, **({"tool_calls": calls} if calls else {})}
        )
    if not found:
        raise bad("messages: expected at least one, found none")
    return found


def _with_values(call: object) -> object:
    """A call of a function whose arguments are values: templates write them as JSON themselves."""
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    if not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments)}}
    except (ValueError, RecursionError):
        return call


def _content(value: object, where: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        parts = []
        for part in value:
            if (
                not isinstance(part, dict)
                or part.get("type") != "text"
                or not isinstance(part.get("text"), str)
            ):
                raise bad(f"{where}content: expected parts of type text, found {said(part)}")
            parts.append(part["text"])
        return "".join(parts)
    raise bad(f"{where}content: expected a text or a list of parts, found {said(value)}")
