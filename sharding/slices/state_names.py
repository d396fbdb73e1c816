"""Names that exporters give to what a model carries from one step to the next, their output's names, and the
names of the tokens that a step reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

CACHE, STATE, ONCE = "cache", "state", "once"
"""Keys and values of attention, that grow; a state of any other sort; keys and values of an encoder's output,
which the first step computes for all that follow."""
TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
"""Inputs whose axis 1 has the new positions of a step."""
LAYER = "%d"
"""What a configuration writes for a layer's number, once in a name."""

_OF_ENCODER = re.compile(r"(?:^|[._/-])(?:encoder(?=[._/-]|$)|cross)")
_PAST = re.compile(r"(?:^|(?<=[._/-]))past(?:_key_values?|_kv|_cache)?(?=[._/-]|\d|$)")
_PRESENT = (
    "present",
    "presents",
    "present_key_values",
    "present_key_value",
    "present_kv",
    "present_cache",
    "new",
    "next",
)
_RECURRENT = re.compile(
    r"(?:^|[._/-])(?:conv|ssm|rnn|recurrent|lstm|gru|shift|wkv)(?=[._/-]|\d|$)|state|accum"
)
_KEY = re.compile(r"(?:^|[._/-])(?:k|v|key|value|keys|values|k_?cache|v_?cache)(?=[._/-]|\d|$)")

_WORDS = re.compile(
    r"cache|state|memory|recurrent|(?:^|_)lens?(?=_|\d|$)"
    r"|(?:^|[._/-])(?:hidden|buffer|cell|kv|hxs?|mems?|history|carry|fifo|ssm|wkv)(?=[._/-]|\d|$)"
    r"|(?:^|[._/-])(?:att|ffn)_(?:xx|aa|bb|pp|kv|x_prev|shift)(?=[._/-]|\d|$)"  # RWKV
)
"""What a name holds that stands for a state by itself."""
_HIDDEN = re.compile(r"hidden_states?(?=[._/-]|\d|$)|last_hidden")
"""What every layer gives to the next, in one step."""
_CELLS = re.compile(r"(?:.*(?:lstm|gru|rnn)_?\d*[._/-])?[hc]_?\d*(?:_?in)?")
_NOW = ("cur", "curr", "current")
"""Marks of an input, whose output is the next one, or of an output, whose input is the previous one."""
_OPEN = ("in", "input", "old", "prev", "previous", "past", "last", "init", "initial", *_NOW)
"""Marks of an input, before or behind."""
_CLOSED = (
    "out", "output", "new", "next", "updated", "present", "final", "n", "r", "outputs", "inputs", *_NOW,
)  # fmt: skip
"""Marks of an output, before or behind."""
_SPECIAL = (
    (re.compile(r"r(\d+)i"), r"r\1o"),
    (re.compile(r"([hc])_?(\d*)"), r"\1n\2"),
    (re.compile(r"([hc])_?0"), r"\1n"),
    (re.compile(r"([hc])_?(\d*)"), r"\1_n\2"),
    (re.compile(r"([hc])_?0"), r"\1_n"),
    (re.compile(r"([hc])x(_?\d*)"), r"\1y\2"),
    (re.compile(r"((?:.*[._/-])?(?:lstm|gru|rnn)_?\d*[._/-][hc])"), r"\1n"),
    (re.compile(r"([hc])_tm1"), r"\1_t"),
    (re.compile(r"(?=.*cache)(.*)_len"), r"\1_next_len"),  # a name of megabytes may say "cache" all the way
    (re.compile(r"in(_?(?:state|cache).*)"), r"out\1"),
    (re.compile(r"(state|states)"), r"\1N"),
)  # fmt: skip


def outputs_for(name: str) -> Iterator[tuple[str, str]]:
    """The names that the output of an input may have, likely ones first, each with what it is."""
    yield from _outputs_for(name)
    body = name.rstrip("0123456789")  # c_state.0: c_state_out.0
    if body != name:
        body = body[:-1] if body.endswith(tuple("._/-")) else body
        yield from ((output + name[len(body) :], kind) for output, kind in _outputs_for(body))


def _outputs_for(name: str) -> Iterator[tuple[str, str]]:
    found = _PAST.search(name)
    if found:
        kind = ONCE if is_of_encoder(name) else CACHE
        if kind == CACHE and _RECURRENT.search(name) and not _KEY.search(name):
            kind = STATE
        for word in _PRESENT:
            yield name[: found.start()] + word + name[found.end() :], kind
        if found.group() != "past" or _KEY.search(name):
            for stem in filter(_PAST.search, _stems(name)):  # past_key_0_in: past_key_0_out
                yield from ((output, kind) for output in _marked(stem))
                if stem != name:
                    yield stem, kind
    for pattern, output in _SPECIAL:
        matched = pattern.fullmatch(name)
        if matched:
            yield matched.expand(output), STATE
    named = _WORDS.search(name) or any(_CELLS.fullmatch(stem) for stem in _stems(name))
    if not named or _HIDDEN.search(name):
        return
    kind = CACHE if _KEY.search(name) and "cache" in name and not _RECURRENT.search(name) else STATE
    for stem in _stems(name):
        yield from ((output, kind) for output in _marked(stem))
        if stem != name:
            yield stem, kind
    for start in ("in", "input", "old", "prev", "previous"):  # in_cache0: out_cache0
        for end in ("out", "output", "new", "next", *_NOW):
            renamed = re.sub(rf"(^|[._/-]){start}(?=[._/-])", rf"\g<1>{end}", name)
            if renamed != name:
                yield renamed, kind


def _marked(stem: str) -> Iterator[str]:
    """What an output is called for what it is the next value of."""
    for mark in _CLOSED:
        yield from (f"{stem}_{mark}", f"{mark}_{stem}", f"{stem}.{mark}", f"{mark}.{stem}")


def _stems(name: str) -> Iterator[str]:
    """The name, and what it is without a mark of an input."""
    yield name
    for mark in _OPEN:
        for sign in "_.":
            if name.startswith(mark + sign):
                yield name[len(mark) + 1 :]
            if name.endswith(sign + mark):
                yield name[: -len(mark) - 1]


def kind_of(name: str) -> str | None:
    """What an input is by its name; None where the name says nothing of a state."""
    return next((kind for _, kind in outputs_for(name)), None)


def is_of_encoder(name: str) -> bool:
    """Whether a name says that a value comes from an encoder's output."""
    return _OF_ENCODER.search(name) is not None


def is_next(output: str, name: str) -> bool:
    """Whether an output, maybe another graph's, is the next value of an input by their names."""
    return any(output == other for other, _ in outputs_for(name))


def partners(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Names, or patterns with `LAYER`, of inputs and of the outputs that are their next values, as the tables
    ``inputs`` and ``outputs`` of a configuration of ONNX Runtime GenAI have them."""
    for key, pattern in inputs.items():
        others = [key.replace("past", "present", 1)] if "past" in key else []
        others += [key.replace(text, "") for text in ("prev_", "_prev") if text in key]
        made = next((outputs[other] for other in others if other in outputs), None)
        if isinstance(pattern, str) and isinstance(made, str):
            yield pattern, made


def of_layers(patterns: Iterable[tuple[str, str]], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """The pairs of names that patterns stand for; ``names``: a model's inputs."""
    for pattern, made in patterns:
        before, layer, behind = pattern.partition(LAYER)
        if not layer:
            yield pattern, made
            continue
        for name in names if LAYER in made else ():
            found = re.fullmatch(f"{re.escape(before)}([0-9]+){re.escape(behind)}", name)
            if found:
                yield name, made.replace(LAYER, found[1])
