"""What a body of the OpenAI protocol asks for, as options of generating: `launcher.serving.openai.fields`
says which fields there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.generation.options import GENERATE, NEW_TOKENS, GenerateOptions
from launcher.generation.text.grammar import ANY_OBJECT
from launcher.job.option_table import changed
from launcher.serving.bodies import bad, field_of, needed, said
from launcher.serving.openai.fields import OF_CHATS, OF_COMPLETIONS, check_fields, priority_of
from launcher.serving.openai.tools import Tools, tools_of

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
    "stop_token_ids": (list, "stop_ids"),
}
"""Fields that say the same as an option."""
_MOST_STOPS, _SEEDS, _MOST_TOP = 16, 2**64, 20
_NARROWEST = 1e-9
"""As ``top_p``: the likeliest token alone, which 0 asks for."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    options: GenerateOptions
    stream: bool
    usage: bool
    """Whether a stream ends with the number of tokens."""
    texts: int
    """How many of the options' samples are answered: those whose tokens are likeliest on the whole."""
    echo: bool = False
    """Whether texts begin with their prompt."""
    priority: int = 0
    tools: Tools | None = None
    """Of a chat whose text is to be a call of a function."""

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are answered."""
        return self.options.logprobs is not None and self.options.samples == self.texts


def asked_of(body: Mapping[str, object], limits: ServeLimits, manner: Manner, *, chat: bool) -> Asked:
    """What a body asks for. Raises `RefusalError`."""
    check_fields(body, OF_CHATS if chat else OF_COMPLETIONS, chat=chat)
    found: dict[str, object] = {}
    for name, (kind, option) in _PLAIN.items():
        value: object = field_of(body, name, kind)
        if value is None or (name, value) == ("top_k", -1):  # vLLM's word for all
            continue
        if name == "top_p" and value == 0:
            value = _NARROWEST
        if not GENERATE[option].kind.fits(value):
            raise bad(f"{name}: expected {GENERATE[option].kind.expected}, found {said(value)}")
        found[option] = tuple(value) if isinstance(value, list) else value
    defaults = manner.defaults or {}
    if "temperature" not in found and not (defaults.get("do_sample") or defaults.get("temperature")):
        found["temperature"] = 1.0
    if (seed := field_of(body, "seed", int)) is not None:
        found["seed"] = seed % _SEEDS
    stream = bool(field_of(body, "stream", bool))
    found["logprobs"] = _logprobs(body, chat=chat)
    texts, found["samples"] = _counts(body, limits, stream=stream, logprobs=found["logprobs"] is not None)
    if found["samples"] != texts:
        found["logprobs"] = 0  # by which the best are found
    found["max_new_tokens"] = _most(body, limits)
    found["stop"] = _stops(body.get("stop"))
    found["logit_bias"] = _bias(field_of(body, "logit_bias", dict) or {})
    found["json_schema"], tools = _form(body), tools_of(body) if chat else None
    if tools is not None and tools.schema is not None:
        if found["json_schema"] is not None:
            raise bad("response_format: a text is to be a call of a function already; leave out one of them")
        found["json_schema"] = tools.schema
    echo = bool(field_of(body, "echo", bool))
    if echo and found["logprobs"] is not None and texts == found["samples"]:
        raise bad("echo: log-probabilities of a prompt are not there; leave out echo or logprobs")
    return Asked(
        changed(GenerateOptions(), found), stream, _usage(body, stream=stream), texts, echo,
        priority_of(body), tools,
    )  # fmt: skip


def _counts(
    body: Mapping[str, object], limits: ServeLimits, *, stream: bool, logprobs: bool
) -> tuple[int, int]:
    """How many texts are answered, and of how many they are the best."""
    texts, best = field_of(body, "n", int), field_of(body, "best_of", int)
    texts = 1 if texts is None else texts
    for name, value in {"n": texts, "best_of": best}.items():
        if value is not None and not 1 <= value <= limits.samples:
            raise bad(f"{name}: expected 1 to {limits.samples}, found {value}")
    if best is None or best == texts:
        return texts, texts
    if best < texts:
        raise bad(f"best_of: expected at least n, which is {texts}, found {best}")
    if stream or logprobs:
        other = "stream" if stream else "logprobs"
        raise bad(f"best_of: {other} is not possible with more texts than n; leave out one of them")
    return texts, best


def _usage(body: Mapping[str, object], *, stream: bool) -> bool:
    told = field_of(body, "stream_options", dict)
    if told is None:
        return False
    if not stream:
        raise bad("stream_options: it is for streams; give stream: true, or leave it out")
    for name in told:
        if name not in {"include_usage", "include_obfuscation"}:
            raise bad(f"stream_options.{str(name)[:60]}: there is no such field here; leave it out")
    if field_of(told, "include_obfuscation", bool, "stream_options."):
        raise bad("stream_options.include_obfuscation: this server does not have it; leave it out")
    return bool(field_of(told, "include_usage", bool, "stream_options."))


def _form(body: Mapping[str, object]) -> str | None:
    """The JSON schema that texts are to follow."""
    form = field_of(body, "response_format", dict)
    kind = "text" if form is None else needed(form, "type", str, "response_format.")
    own = {"json_schema"} if kind == "json_schema" else set()
    for name in form or ():
        if name not in {"type", *own}:
            raise bad(
                f"response_format.{str(name)[:60]}: there is no such field of the type {kind!r}; leave it out"
            )
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise bad(f"response_format.type: expected text, json_object or json_schema, found {said(kind)}")
    told, where = needed(form, "json_schema", dict, "response_format."), "response_format.json_schema."
    for name, its in {"name": str, "description": str, "strict": bool}.items():
        field_of(told, name, its, where)
    for name in told:
        if name not in {"name", "description", "strict", "schema"}:
            raise bad(f"{where}{str(name)[:60]}: there is no such field here; leave it out")
    schema = needed(told, "schema", dict, where)
    try:
        return json.dumps(schema)
    except RecursionError:
        raise bad(f"{where}schema: it is too deep; simplify it") from None


def _most(body: Mapping[str, object], limits: ServeLimits) -> int:
    found = [
        (name, value)
        for name in ("max_completion_tokens", "max_tokens")
        if (value := field_of(body, name, int)) is not None
    ]
    for name, value in found:
        if not 1 <= value <= limits.tokens:
            raise bad(f"{name}: expected 1 to {limits.tokens}, found {value}")
    if len({value for _, value in found}) > 1:
        raise bad("max_tokens: max_completion_tokens says something else; give one of them")
    return found[0][1] if found else min(NEW_TOKENS, limits.tokens)


def _stops(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise bad(f"stop: expected a text or a list of texts, found {said(value)}")
    if len(texts) > _MOST_STOPS:
        raise bad(f"stop: expected at most {_MOST_STOPS} texts, found {len(texts)}")
    if long := [text for text in texts if not GENERATE["stop"].kind.fits([text])]:
        raise bad(f"stop: a text of {len(long[0])} characters is too long")
    return tuple(texts)


def _bias(given: Mapping[str, object]) -> dict[int, float]:
    kind = GENERATE["logit_bias"].kind
    try:
        found = {int(token): float(value) for token, value in given.items()}  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise bad(f"logit_bias: expected numbers by token ids, found {said(given)}") from None
    if not kind.fits(found):
        raise bad(f"logit_bias: expected {kind.expected}, found {said(given)}")
    return found


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
