"""The fields of bodies of the OpenAI protocol: none is passed over in silence.

Source: OpenAI's API reference, "Create completion", "Create chat completion" and "Create embeddings";
``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``, ``ignore_eos``, ``stop_token_ids``, ``priority``
and ``truncate_prompt_tokens`` are vLLM's additions to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from launcher.serving.bodies import bad, field_of, said
from sharding.common.text import did_you_mean

if TYPE_CHECKING:
    Values = Mapping[str, tuple[object, ...]]

MODEL, USER = "model", "user"
_BOTH = {
    *(
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "n",
        "presence_penalty",
        "response_format",
    ),
    *("seed", "stop", "stream", "stream_options", "temperature", "top_p"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "priority"),
}
OF_COMPLETIONS = {*_BOTH, "prompt", "best_of", "echo"}
OF_CHATS = {*_BOTH, "messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice"}
OF_EMBEDDINGS = {"input", "encoding_format", "dimensions", "priority", "truncate_prompt_tokens"}
_LABELS: Mapping[str, type] = {
    USER: str, "safety_identifier": str, "prompt_cache_key": str, "metadata": dict,
}  # fmt: skip
"""What clients note for themselves: it changes nothing of an answer."""
_ABSENT_OF_CHATS: Values = {
    "parallel_tool_calls": (True, False),
    "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (),
    "prediction": (), "reasoning_effort": ("none",), "verbosity": ("medium",), "web_search_options": (),
    "service_tier": ("auto", "default"), "store": (False,),
    "prompt_cache_retention": ("in_memory", "in-memory"),
}  # fmt: skip
_ABSENT_OF_COMPLETIONS: Values = {"suffix": ("",)}
"""Fields that this server does not follow, and the values besides null that ask for nothing."""
MOST_PRIORITY = 2**53


_NAMED = re.compile(r"(\w+)(?:[.\[\]][\w.\[\]]*)?(?=: )")


def named(message: str) -> str | None:
    """The field that a message about a body begins with; None where it is about something else."""
    found = _NAMED.match(message)
    known = {MODEL, *OF_COMPLETIONS, *OF_CHATS, *OF_EMBEDDINGS, *_LABELS, *_ABSENT_OF_CHATS}
    return found[0] if found is not None and found[1] in {*known, *_ABSENT_OF_COMPLETIONS} else None


def check_fields(
    body: Mapping[str, object], known: Collection[str], *, chat: bool = False, texts: bool = True
) -> None:
    """Raises `RefusalError` for a field that there is not, or that asks for what this server does not
    have."""
    absent = _ABSENT_OF_CHATS if chat else _ABSENT_OF_COMPLETIONS if texts else {}
    labels = _LABELS if chat else {USER: str}
    for name, value in body.items():
        if name in known or name == MODEL:
            continue
        if name in labels:
            field_of(body, name, labels[name])
        elif name in absent:
            if value is not None and not any(_same(value, one) for one in absent[name]):
                raise bad(f"{name}: this server does not have it; leave it out")
        else:
            every = [*known, *labels, *absent, MODEL]
            raise bad(
                f"{name[:60]}: there is no such field here{did_you_mean(name[:60], every)}; leave it out"
            )


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def priority_of(body: Mapping[str, object]) -> int:
    """Which requests go first: 0 before 1. Raises `RefusalError`."""
    found = field_of(body, "priority", int) or 0
    if not 0 <= found <= MOST_PRIORITY:  # a negative one would go before everybody's
        raise bad(f"priority: expected 0 to {MOST_PRIORITY}, found {said(found)}")
    return found
