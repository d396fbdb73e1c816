"""Inputs of language models that follow from how many tokens have been read: masks and positions.

A session fills them in where the caller does not give them. The names are those of transformers, optimum and
ONNX Runtime GenAI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
from sharding.common.arrays import Array
from sharding.slices.state_names import TOKENS

MASKS = frozenset({"attention_mask", "decoder_attention_mask"})
POSITIONS = frozenset({"position_ids", "decoder_position_ids"})
_Make = Callable[[TensorSpec, int, int, int], "Array"]


def _mask(spec: TensorSpec, batch: int, past: int, count: int) -> Array:
    return np.ones((batch, past + count), spec.dtype)


def spread(spec: TensorSpec, positions: Array) -> Array:
    """Positions (batch, count) as an input takes them: where they have several axes (time, height, width),
    each counts alike in text."""
    lead = tuple(dim if isinstance(dim, int) and dim > 0 else 1 for dim in spec.shape[:-2])
    return np.broadcast_to(positions, (*lead, *positions.shape))


def _positions(spec: TensorSpec, batch: int, past: int, count: int) -> Array:
    line = np.arange(past, past + count, dtype=spec.dtype)
    if len(spec.shape) <= 1 and not (spec.open_rank and spec.name in POSITIONS):
        return line
    return spread(spec, np.broadcast_to(line, (batch, count)))


def _types(spec: TensorSpec, batch: int, past: int, count: int) -> Array:
    return np.zeros((batch, count), spec.dtype)


def _number(of: Callable[[int, int], int]) -> _Make:
    """One number that follows from how many positions were read and are new, in any number of axes."""
    return lambda spec, batch, past, count: np.full([1] * len(spec.shape), of(past, count), spec.dtype)


FILLED: Mapping[str, _Make] = {
    **dict.fromkeys(sorted(MASKS), _mask),
    **dict.fromkeys(sorted(POSITIONS), _positions),
    "cache_position": _positions,
    "past_sequence_length": _number(lambda past, count: past),
    "past_seq_len": _number(lambda past, count: past),
    "total_sequence_length": _number(lambda past, count: past + count),
    "use_cache_branch": _number(lambda past, count: past > 0),
    "num_logits_to_keep": _number(lambda past, count: 0),
}
FOLLOWING: Mapping[str, _Make] = {
    **FILLED,
    "current_sequence_length": _number(lambda past, count: count),
    "token_type_ids": _types,
}
"""Inputs that follow from how much plain text has been read: more than a session fills in by itself, for what
it reads may be of several types."""
ONE_LENGTH = frozenset({"past_sequence_length", "past_seq_len"})
"""Inputs that say one number of positions for all rows of a batch."""


def filled(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The inputs that a session fills in by itself."""
    if not any(spec.name in TOKENS for spec in specs):
        return []
    return [spec for spec in specs if spec.name in FILLED and spec.dtype.kind in "iufb"]


def size(feeds: Mapping[str, Array]) -> tuple[int, int] | None:
    """The batch and the number of new positions of a step; None for inputs without tokens."""
    for name in TOKENS:
        array = feeds.get(name)
        if array is not None and array.ndim >= 2:
            return array.shape[0], array.shape[1]
    return None


def fill(specs: Sequence[TensorSpec], feeds: Mapping[str, Array], past: int) -> dict[str, Array]:
    """The feeds with those that are missing and follow from the ``past`` positions and the new ones."""
    found = size(feeds)
    if found is None:
        return dict(feeds)
    made = {
        spec.name: FILLED[spec.name](spec, *found[:1], past, found[1])
        for spec in specs
        if spec.name not in feeds
    }
    return {**feeds, **made}


def check_masks(feeds: Mapping[str, Array], past: int) -> None:
    """Raises `ShardrunError` for a mask of more positions than there are with this step's: attention over a
    buffer would read what nobody has written there."""
    found = size(feeds)
    for name in MASKS & feeds.keys() if found is not None else ():
        assert found is not None
        array, there = feeds[name], past + found[1]
        if array.ndim == 2 and array.shape[1] > there:
            raise ShardrunError(
                f"{name!r} has {array.shape[1]} positions, but with this step the sequence has {there}: give "
                "one for each, or leave the mask out."
            )
