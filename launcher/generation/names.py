"""Which inputs and outputs of a decoder's graph are what: ids, masks, positions, and state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError
from ranks.common.tensors import TensorSpec
from ranks.state.feeds import FOLLOWING
from sharding.slices.state import StatePair, Tensor
from sharding.slices.state_names import ONCE, is_of_encoder, kind_of, of_layers
from sharding.slices.state_search import find

if TYPE_CHECKING:
    from sharding.common.arrays import Array, DType


STANDARD = ("input_ids", "encoder_hidden_states", "encoder_attention_mask", "logits", *FOLLOWING)
"""The usual names of tensors; a folder may have others."""


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
        return self.tensors.get(what, what)


def find_states(
    names: Names,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    known: Iterable[StatePair] = (),
) -> list[State]:
    """The state that a graph carries: ``known`` to the ranks that compute it, then what names say. Raises
    `ConfigError` for state whose shape does not say where tokens lie."""
    ids = next((spec for spec in inputs if spec.name == names.of("input_ids")), None)
    batch = ids.shape[0] if ids is not None and ids.shape else None
    named = [(pair.input, pair.output) for pair in known]
    named += of_layers(names.pairs.items(), [spec.name for spec in inputs])
    pairs = find(map(_described, inputs), map(_described, outputs), (), named=named)
    presents = {pair.input: pair.output for pair in pairs}
    taken = {names.of(what) for what in STANDARD} | presents.keys() | set(presents.values())
    presents |= _in_order(
        [spec for spec in inputs if spec.name not in taken],
        [spec for spec in outputs if spec.name not in taken],
        ids.shape[-1] if ids is not None and ids.shape else None,
    )
    found = []
    for spec in inputs:
        present = presents.get(spec.name)
        if present is None and kind_of(spec.name) != ONCE:
            continue
        shape, axis = _empty(spec, batch, names)
        found.append(State(spec.name, present or "", is_of_encoder(spec.name), spec.dtype, shape, axis))
    return found


def _described(spec: TensorSpec) -> Tensor:
    return spec.name, str(spec.dtype), None if spec.open_rank else spec.shape


def _in_order(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], tokens: int | str | None
) -> dict[str, str]:
    """The outputs that follow inputs whose names say nothing: as many as these, each like its input, and no
    input with an axis of the ``tokens`` that a step reads."""

    def alike(given: TensorSpec, result: TensorSpec) -> bool:
        fixed = all(
            ours == theirs or not (isinstance(ours, int) and isinstance(theirs, int))
            for ours, theirs in zip(given.shape, result.shape, strict=False)
        )
        read = isinstance(tokens, str) and tokens in given.shape
        return given.dtype == result.dtype and len(given.shape) == len(result.shape) and fixed and not read

    if len(inputs) != len(outputs) or any(is_of_encoder(spec.name) for spec in inputs):
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
