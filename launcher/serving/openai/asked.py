"""What a body of the OpenAI protocol asks for, as options of generating.

Source: OpenAI's API reference, "Create completion" and "Create chat completion"; ``top_k``, ``min_p``,
``repetition_penalty``, ``min_tokens``, ``ignore_eos`` and ``stop_token_ids`` are vLLM's additions to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.generation.options import NEW_TOKENS, GenerateOptions
from launcher.job.option_table import changed
from launcher.serving.bodies import bad, field_of, needed, said

if TYPE_CHECKING:
    from launcher.generation.generate import Manner
    from launcher.serving.limits import ServeLimits

_PLAIN: Mapping[str, tuple[type, str]] = {
    "temperature": (float, "temperature"),
    "top_p": (float, "top_p"),
    "top_k": (int, "top_k"),
    "min_p": (float, "min_p"),
    "repetition_penalty": (float, "repetition_penalty"),
    "presence_penalty": (float, "presence_penalty"),
    "frequency_penalty": (float, "frequency_penalty"),
    "min_tokens": (int, "min_new_tokens"),
    "ignore_eos": (bool, "ignore_eos"),
}
"""Fields that say the same as an option."""
_ABSENT: Mapping[str, tuple[object, ...]] = {
    "suffix": (None, ""), "echo": (None, False), "tools": (None, []), "tool_choice": (None, "none", "auto"),
    "functions": (None, []), "modalities": (None, ["text"]), "audio": (None,), "prediction": (None,),
}  # fmt: skip
"""Fields that this server does not follow, and the values that ask for nothing."""
_MOST_STOPS, _SEEDS, _MOST_TOP = 16, 2**64, 20


@dataclass(frozen=True)
class Asked:
    """One request."""

    options: GenerateOptions
    stream: bool
    usage: bool
    """Whether a stream ends with the number of tokens."""


def asked_of(body: Mapping[str, object], limits: ServeLimits, manner: Manner, *, chat: bool) -> Asked:
    """What a body asks for. Raises `RefusalError`."""
    for name, nothing in _ABSENT.items():
        if body.get(name) not in nothing:
            raise bad(f"{name}: this server does not have it; leave it out")
    form = field_of(body, "response_format", dict) or {"type": "text"}
    if form.get("type") != "text":
        raise bad(f"response_format: expected the type text, found {said(form.get('type'))}")
    found: dict[str, object] = {}
    for name, (kind, option) in _PLAIN.items():
        if (value := field_of(body, name, kind)) is not None:
            found[option] = value
    if found.get("top_k") == -1:  # vLLM's word for all
        del found["top_k"]
    defaults = manner.defaults or {}
    if "temperature" not in found and not (defaults.get("do_sample") or defaults.get("temperature")):
        found["temperature"] = 1.0
    if (seed := field_of(body, "seed", int)) is not None:
        found["seed"] = seed % _SEEDS
    samples = field_of(body, "n", int)
    samples = 1 if samples is None else samples
    if samples > limits.samples:
        raise bad(f"n: expected at most {limits.samples}, found {samples}")
    found["samples"] = samples
    best = field_of(body, "best_of", int)
    if best is not None and best != samples:
        raise bad(f"best_of: expected as many as n, found {best}")
    found["max_new_tokens"] = _most(body, limits)
    found["stop"] = _stops(body.get("stop"))
    found["stop_ids"] = tuple(field_of(body, "stop_token_ids", list) or ())
    found["logit_bias"] = _bias(field_of(body, "logit_bias", dict) or {})
    found["logprobs"] = _logprobs(body, chat=chat)
    told = field_of(body, "stream_options", dict) or {}
    usage = bool(field_of(told, "include_usage", bool, "stream_options."))
    return Asked(changed(GenerateOptions(), found), bool(field_of(body, "stream", bool)), usage)


def _most(body: Mapping[str, object], limits: ServeLimits) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if (value := field_of(body, name, int)) is not None:
            if not 1 <= value <= limits.tokens:
                raise bad(f"{name}: expected 1 to {limits.tokens}, found {value}")
            return value
    return min(NEW_TOKENS, limits.tokens)


def _stops(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise bad(f"stop: expected a text or a list of texts, found {said(value)}")
    if len(texts) > _MOST_STOPS:
        raise bad(f"stop: expected at most {_MOST_STOPS} texts, found {len(texts)}")
    return tuple(texts)


def _bias(given: Mapping[str, object]) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in given.items()}  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise bad(f"logit_bias: expected numbers by token ids, found {said(given)}") from None


def _logprobs(body: Mapping[str, object], *, chat: bool) -> int | None:
    if not chat:
        found = field_of(body, "logprobs", int)
        name = "logprobs"
    else:
        asked = field_of(body, "logprobs", bool)
        name, found = "top_logprobs", field_of(body, "top_logprobs", int)
        if found is not None and not asked:
            raise bad("top_logprobs: give logprobs: true too")
        found = (found or 0) if asked else None
    if found is not None and not 0 <= found <= _MOST_TOP:
        raise bad(f"{name}: expected 0 to {_MOST_TOP}, found {found}")
    return found


def prompts_of(body: Mapping[str, object], most: int) -> Sequence[str | list[int]]:
    """The prompts of a completion: a text, several, token ids, or lists of these. Raises `RefusalError`."""
    value = body.get("prompt")
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_ids(value):
            return [value]
        if len(value) > most:
            raise bad(f"prompt: expected at most {most} prompts, found {len(value)}")
        if all(isinstance(one, str) or (isinstance(one, list) and _are_ids(one)) for one in value):
            return value
    raise bad(f"prompt: expected a text, token ids or a list of these, found {said(value)}")


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
        found.append({**message, "role": role, "content": _content(message.get("content"), where)})
    if not found:
        raise bad("messages: expected at least one, found none")
    return found


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
