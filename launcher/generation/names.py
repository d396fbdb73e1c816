"""Which inputs and outputs of a decoder's graph are what: ids, masks, positions, and state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError
from ranks.common.tensors import TensorSpec

if TYPE_CHECKING:
    from sharding.common.arrays import Array, DType


_PAST = re.compile(r"past_key_values?|past")
_PRESENT = re.compile(r"present_key_values?")
_CROSS = re.compile(r"cross|(^|[._/])encoder([._/]|$)")
FILLED = {
    "use_cache_branch", "cache_position", "num_logits_to_keep", "past_sequence_length",
    "current_sequence_length", "total_sequence_length", "token_type_ids",
}  # fmt: skip
"""Inputs that follow from the tokens read, besides ids, mask and positions."""
STANDARD = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "encoder_hidden_states": "encoder_hidden_states",
    "encoder_attention_mask": "encoder_attention_mask",
    "logits": "logits",
    **{name: name for name in sorted(FILLED)},
}
"""What a tensor is -> its usual name."""


@dataclass(frozen=True)
class State:
    """One piece of state: an input, and the output that is its next value."""

    past: str
    present: str
    cross: bool
    """Computed once, from what the encoder gave."""
    dtype: DType
    shape: tuple[int, ...]
    """Of the empty state."""
    axis: int | None
    """Along which tokens lie; None where it does not grow with them."""

    def empty(self) -> Array:
        """The state before the first token."""
        return np.zeros(self.shape, self.dtype)

    def cut(self, array: Array, length: int) -> Array:
        """The state of the first tokens only."""
        assert self.axis is not None
        return array[(slice(None),) * self.axis + (slice(length),)]


@dataclass(frozen=True)
class Names:
    """What a folder says of names, beside the usual ones. ``pairs`` are patterns with ``%d`` for the layer:
    of inputs, and of the outputs that are their next values. ``heads`` and ``head_size`` are those of keys
    and values, for graphs that leave them open."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, str] = field(default_factory=dict)
    heads: int | None = None
    head_size: int | None = None

    def of(self, what: str) -> str:
        """The name of a tensor."""
        return self.tensors.get(what, STANDARD[what])

    def next_of(self, past: str, outputs: Mapping[str, TensorSpec]) -> str | None:
        """The output that is the next value of an input, if there is one."""
        for pattern, target in self.pairs.items():
            found = re.fullmatch(re.escape(pattern).replace("%d", "([0-9]+)"), past)
            if found:
                name = target.replace("%d", found[1]) if found.groups() else target
                if name in outputs:
                    return name
        if not _PAST.search(past):
            return None
        wanted = _PAST.sub("present", past)
        return next((name for name in outputs if _PRESENT.sub("present", name) == wanted), None)


def alike(past: str, present: str) -> bool:
    """Whether an output of an encoder is the first value of a decoder's input."""
    return _PAST.sub("present", past) == _PRESENT.sub("present", present)


def find_states(names: Names, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[State]:
    """The state that a graph carries. Raises `ConfigError` for state whose shape does not say where tokens
    lie."""
    by_name = {spec.name: spec for spec in outputs}
    ids = next((spec for spec in inputs if spec.name == names.of("input_ids")), None)
    batch = ids.shape[0] if ids is not None and ids.shape else None
    found = []
    presents = {spec.name: names.next_of(spec.name, by_name) for spec in inputs}
    taken = {names.of(what) for what in STANDARD} | set(presents.values())
    presents |= _in_order(
        [spec for spec in inputs if presents[spec.name] is None and spec.name not in taken],
        [spec for spec in outputs if spec.name not in taken],
        ids.shape[-1] if ids is not None and ids.shape else None,
    )
    for spec in inputs:
        present = presents[spec.name]
        cross = bool(_CROSS.search(spec.name))
        if present is None and not (cross and _PAST.search(spec.name)):
            continue
        shape, axis = _empty(spec, batch, names)
        found.append(State(spec.name, present or "", cross, spec.dtype, shape, axis))
    return found


def _in_order(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], tokens: int | str | None
) -> dict[str, str | None]:
    """The outputs that follow inputs whose names say nothing: as many as these, each like its input, and no
    input with an axis of the ``tokens`` that a step reads."""

    def alike(given: TensorSpec, result: TensorSpec) -> bool:
        fixed = all(
            ours == theirs or not (isinstance(ours, int) and isinstance(theirs, int))
            for ours, theirs in zip(given.shape, result.shape, strict=False)
        )
        read = isinstance(tokens, str) and tokens in given.shape
        return given.dtype == result.dtype and len(given.shape) == len(result.shape) and fixed and not read

    if len(inputs) != len(outputs) or any(_CROSS.search(spec.name) for spec in inputs):
        return {}
    pairs = list(zip(inputs, outputs, strict=True))
    return {given.name: result.name for given, result in pairs} if all(alike(*pair) for pair in pairs) else {}


def _empty(spec: TensorSpec, batch: int | str | None, names: Names) -> tuple[tuple[int, ...], int | None]:
    """The shape of a state before the first token, and the axis of tokens."""
    shape: list[int | str | None] = list(spec.shape)
    opened = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    if opened:
        rows = next((axis for axis in opened if batch is not None and shape[axis] == batch), opened[0])
        shape[rows] = 1
        opened.remove(rows)
    known = {len(shape) - 1: names.head_size, len(shape) - 3: names.heads} if len(shape) > 3 else {}
    axis = None
    if len(opened) > 1:
        # Keys and values are (batch, heads, tokens, head size), maybe with more axes in front.
        named = [place for place in opened if re.search("past|seq|len", str(shape[place]))]
        axis = named[0] if len(named) == 1 else len(shape) - 2 if len(shape) - 2 in opened else None
    elif opened and not known.get(opened[0]):
        axis = opened[0]
    for place in opened:
        shape[place] = 0 if place == axis else known.get(place)
    if None in shape:
        raise ConfigError(
            f"the input {spec.name} has the shape {list(spec.shape)}, of which nothing says how large it is "
            "before the first token; expected one open axis beside that of the batch, or a genai_config.json "
            "or config.json that says the number of heads and their size"
        )
    return tuple(dim for dim in shape if isinstance(dim, int)), axis
