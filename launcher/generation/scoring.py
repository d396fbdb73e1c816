"""Steps of which only some logits are wanted: where the state is on ranks, no more of them travel."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from launcher.errors import ShardrunError
from launcher.generation.decoder import Decoder, Ids, Logits, Sequence
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Ask, Want

if TYPE_CHECKING:
    from sharding.common.arrays import Array

Wants = Several[Want | None]
"""What is wanted of each row of logits; None: all of it."""
NOTHING = Want(0)
"""For a step whose logits nobody reads."""
_ALIKE = 0.02
"""By how much of the largest logit a row of a batch may differ from the sequence alone: half precision and
rounded activations come to less, a wrong position to more."""
_PROBES = 32
"""Of how many tokens, all over the vocabulary, logits are compared: a wrong position changes nearly all."""


@runtime_checkable
class Scored(Protocol):
    """A sequence that may be asked for a part of its logits."""

    def scores(self, ids: Ids, wants: Wants, *, every: bool = False) -> list[Scores]:
        """As `launcher.generation.decoder.Sequence.step`, by row; of each row at least what is wanted."""


@runtime_checkable
class ScoresMany(Protocol):
    """A decoder that may be asked for a part of the logits of many sequences."""

    def scores_many(self, sequences: Several[Sequence], ids: Ids, wants: Wants) -> list[Scores]:
        """As `Decoder.step_many`; of each sequence at least what is wanted."""


def scores_of(sequence: Sequence, ids: Ids, wants: Wants, *, every: bool = False) -> list[Scores]:
    """Has a sequence read tokens (n,): the logits of the last one, or with ``every`` those of all, at least
    as far as they are wanted."""
    if isinstance(sequence, Scored):
        return sequence.scores(ids, wants, every=every)
    return [Scores(row) for row in sequence.step(ids, every=every)]


def scores_of_each(decoder: Decoder, sequences: Several[Sequence], ids: Ids, wants: Wants) -> list[Scores]:
    """Has each sequence read one token of ``ids`` (sequences,): the logits of each, at least as far as they
    are wanted."""
    if isinstance(decoder, ScoresMany):
        return decoder.scores_many(sequences, ids, wants)
    return [Scores(rows[0]) for rows in decoder.step_many(sequences, ids)]


def one_by_one(sequences: Several[Sequence], ids: Ids, wants: Wants) -> list[Scores]:
    """As `scores_of_each`, where sequences are no quicker together."""
    return [scores_of(sequence, ids[k : k + 1], wants[k : k + 1])[0] for k, sequence in enumerate(sequences)]


def read_prompt(sequence: Sequence, ids: Ids, want: Want | None, chunk: int | None = None) -> Scores:
    """Has a sequence read a prompt, ``chunk`` tokens at a time; what is wanted of the logits of its last."""
    size = chunk or len(ids)
    found: list[Scores] = []
    for begin in range(0, len(ids), size):
        last = begin + size >= len(ids)
        found = scores_of(sequence, ids[begin : begin + size], [want if last else NOTHING])
    return found[0]


def asked(output: str, vocabulary: int, wants: Wants, *, every: bool = False) -> Ask | None:
    """What ranks are asked for of an output of logits; None: all of it."""
    some = [want for want in wants if want is not None]
    return Ask(output, vocabulary, some, every) if len(some) == len(wants) else None


def whole(rows: Several[Scores]) -> Logits:
    """Rows of whole logits, as one array (rows, vocabulary)."""
    return rows[0].values[None] if len(rows) == 1 else np.stack([row.values for row in rows])


def checked(logits: Array, vocabulary: int) -> Logits:
    """Logits (positions, vocabulary) of a step's. Raises `ShardrunError` for another vocabulary's."""
    if logits.shape[-1] != vocabulary:
        raise ShardrunError(
            f"the model gave logits of {logits.shape[-1]} tokens, but its vocabulary has {vocabulary}"
        )
    return np.asarray(logits, np.float32).reshape(-1, vocabulary)


def probing(wants: Wants, vocabulary: int) -> Wants:
    """The same, and logits to compare besides."""
    probes = np.unique(np.linspace(0, vocabulary - 1, _PROBES, dtype=np.int64))
    return [None if want is None else want.plus(probes) for want in wants]


def alike(found: Several[Scores], alone: Several[Scores]) -> bool:
    """Whether rows of a batch are what each sequence is alone, as far as rounding lets them. Compared are the
    tokens of which both tell the logits."""
    apart, largest = [0.0], [0.0]
    for one, other in zip(found, alone, strict=True):
        mine, theirs = (np.arange(len(row.values)) if row.ids is None else row.ids for row in (one, other))
        _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        left, right = one.values[here], other.values[there]
        differ = left != right  # not those that are both -inf
        apart.append(np.abs(left[differ] - right[differ]).max(initial=0))
        largest.append(np.abs(other.values[np.isfinite(other.values)]).max(initial=0))
    return bool(np.max(apart) <= _ALIKE * np.max(largest))
