"""Names that exporters give to what a model carries from one step to the next, and their output's names."""

from __future__ import annotations

import re
from collections.abc import Iterator

CACHE, STATE, ONCE = "cache", "state", "once"
"""Keys and values of attention, that grow; a state of any other sort; keys and values of an encoder's output,
which the first step computes for all that follow."""

_OF_ENCODER = re.compile(r"(?:^|[._/-])(?:encoder|cross)(?=[._/-]|$)")
_PAST = re.compile(r"(?:^|(?<=[._/-]))past(?:_key_values|_kv|_cache)?(?=[._/-]|\d|$)")
_PRESENT = ("present", "present_key_values", "present_kv", "present_cache")
_RECURRENT = re.compile(
    r"(?:^|[._/-])(?:conv|ssm|rnn|recurrent|lstm|gru|shift|wkv)(?=[._/-]|\d|$)|state|accum"
)
_KEY = re.compile(r"(?:^|[._/-])(?:k|v|key|value|keys|values|k_?cache|v_?cache)(?=[._/-]|\d|$)")

_WORDS = re.compile(
    r"cache|state|memory|(?:^|[._/-])(?:hidden|buffer|cell|kv)(?=[._/-]|\d|$)|(?:^|_)lens?(?=_|\d|$)"
)
"""What a name holds that stands for a state by itself."""
_HIDDEN = re.compile(r"hidden_states?(?=[._/-]|\d|$)|last_hidden")
"""What every layer gives to the next, in one step."""
_CELLS = re.compile(r"[hc]_?\d*(?:_?in)?")
_OPEN = ("in", "input", "old", "prev", "previous", "past", "init", "initial", "cur", "current")
"""Marks of an input, before or behind."""
_CLOSED = (
    "out", "output", "new", "next", "updated", "present", "final", "n", "r", "outputs", "inputs",
)  # fmt: skip
"""Marks of an output, before or behind."""
_SPECIAL = (
    (re.compile(r"r(\d+)i"), r"r\1o"),
    (re.compile(r"([hc])_?(\d*)"), r"\1n\2"),
    (re.compile(r"([hc])_?0"), r"\1n"),
    (re.compile(r"([hc])_?(\d*)"), r"\1_n\2"),
    (re.compile(r"([hc])_?0"), r"\1_n"),
    (re.compile(r"(.*cache.*)_len"), r"\1_next_len"),
    (re.compile(r"in(_?(?:state|cache).*)"), r"out\1"),
    (re.compile(r"(state|states)"), r"\1N"),
)  # fmt: skip


def outputs_for(name: str) -> Iterator[tuple[str, str]]:
    """The names that the output of an input may have, likely ones first, each with what it is."""
    found = _PAST.search(name)
    if found:
        kind = ONCE if _OF_ENCODER.search(name) else CACHE
        if kind == CACHE and _RECURRENT.search(name) and not _KEY.search(name):
            kind = STATE
        for word in _PRESENT:
            yield name[: found.start()] + word + name[found.end() :], kind
    for pattern, output in _SPECIAL:
        matched = pattern.fullmatch(name)
        if matched:
            yield matched.expand(output), STATE
    if not (_WORDS.search(name) or _CELLS.fullmatch(name)) or _HIDDEN.search(name):
        return
    kind = CACHE if _KEY.search(name) and "cache" in name and not _RECURRENT.search(name) else STATE
    for stem in _stems(name):
        for mark in _CLOSED:
            for output in (f"{stem}_{mark}", f"{mark}_{stem}", f"{stem}.{mark}", f"{mark}.{stem}"):
                yield output, kind
        if stem != name:
            yield stem, kind
    for start in ("in", "input", "old", "prev", "previous"):  # in_cache0: out_cache0
        for end in ("out", "output", "new", "next"):
            renamed = re.sub(rf"(^|[._/-]){start}(?=[._/-])", rf"\g<1>{end}", name)
            if renamed != name:
                yield renamed, kind


def _stems(name: str) -> Iterator[str]:
    """The name, and what it is without a mark of an input."""
    yield name
    for mark in _OPEN:
        for sign in "_.":
            if name.startswith(mark + sign):
                yield name[len(mark) + 1 :]
            if name.endswith(sign + mark):
                yield name[: -len(mark) - 1]
