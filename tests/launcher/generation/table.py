"""A language model that is a table: a row of logits for the last two tokens. What generates must not care."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import numpy as np

from launcher.generation.decoder import Arrays, Ids, Logits, Sequence, step_each
from ranks.common.tensors import TensorSpec

VOCABULARY = 40


def tables(seed: int = 0, vocabulary: int = VOCABULARY) -> tuple[Any, Any]:
    """Logits by the last token, and what the one before it adds; float32, of few digits."""
    random = np.random.default_rng(seed)
    last, before = (random.integers(-300, 300, (vocabulary, vocabulary)) / 100 for _ in range(2))
    return last.astype(np.float32), before.astype(np.float32)


class TableSequence:
    """The ids read are all the state."""

    def __init__(self, decoder: TableDecoder, ids: Several[int] = ()) -> None:
        self.decoder, self.ids = decoder, list(ids)
        decoder.open += 1
        self._open = True

    @property
    def length(self) -> int:
        return len(self.ids)

    def step(self, ids: Ids, *, every: bool = False) -> Logits:
        assert self._open and len(ids) and ids.dtype == np.int64
        self.decoder.steps += 1
        self.decoder.longest = max(self.decoder.longest, len(ids))
        rows = []
        for token in ids.tolist():
            self.ids.append(token)
            rows.append(self.decoder.last[token] + self.decoder.before[self.ids[-2:-1] or [0]][0])
        if self.decoder.context is not None:
            assert self.length <= self.decoder.context
        return np.array(rows if every else rows[-1:], np.float32)

    def rewind(self, length: int) -> None:
        assert self.decoder.rewinds or length in {0, self.length}
        del self.ids[length:]

    def fork(self) -> TableSequence:
        return TableSequence(self.decoder, self.ids)

    def close(self) -> None:
        self.decoder.open -= self._open
        self._open = False


class TableDecoder:
    """Counts its steps and its open sequences."""

    def __init__(
        self, seed: int = 0, *, context: int | None = None, noise: float = 0.0, vocabulary: int = VOCABULARY
    ) -> None:
        self.last, self.before = tables(seed, vocabulary)
        if noise:
            shape = self.last.shape
            self.last = self.last + noise * np.random.default_rng(9).standard_normal(shape).astype(np.float32)
        self.vocabulary, self.context, self.rewinds = vocabulary, context, True
        self.encoder_inputs: Several[TensorSpec] = ()
        self.open = self.steps = self.longest = 0

    def sequence(self, inputs: Arrays | None = None) -> TableSequence:
        assert inputs is None
        return TableSequence(self)

    def step_many(self, sequences: Several[Sequence], ids: Ids) -> list[Logits]:
        return step_each(sequences, ids)
