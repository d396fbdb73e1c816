"""Texts as batches of tokens for an encoder, and what it gives as their vectors.

Whatever stands beside a text in a batch, its vector is the one that it has alone: rows are joined, and
shorter ones filled up, only where the ranks have shown that this changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.text.tokenizer import TOKEN_CHARACTERS, Tokenizer
from launcher.serving.embedding.folder import AFTER, EncoderFolder
from launcher.serving.embedding.pooling import Vectors, normalised, pooled
from sharding.common.text import counted

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array

    Arrays = Mapping[str, Array]
    Compute = Callable[[Arrays], Arrays]

IDS, MASK, KINDS, PLACES = "input_ids", "attention_mask", "token_type_ids", "position_ids"
_OF_TEXTS = ("sentence_embedding", "sentence_embeddings", "text_embeds", "text_embeddings")
_OF_TOKENS = ("token_embeddings", "last_hidden_state")
_MOST_ROWS, _MOST_TOKENS = 32, 1 << 13
"""Of one run, padding counted: more would keep other clients waiting for long."""
_ALIKE = 1e-5
"""By how much of the largest number a vector may differ in a batch from what it is alone: rounding."""
_SHORT, _LONG = "a", "the quick brown fox jumps over the lazy dog"
"""Texts by which it is shown."""


@dataclass(frozen=True)
class Ends:
    """What is used of an encoder's graph: its inputs, and the output with a vector for each text, or, unless
    ``of_texts``, for each token."""

    inputs: Sequence[TensorSpec]
    output: str
    of_texts: bool

    @property
    def masked(self) -> bool:
        """Whether an input says which tokens are padding."""
        return any(spec.name == MASK for spec in self.inputs)

    @property
    def rows(self) -> int | None:
        """How many texts a run has, where that is fixed."""
        return next((spec.shape[0] for spec in self.inputs if isinstance(spec.shape[0], int)), None)

    @property
    def length(self) -> int | None:
        """How many tokens each text has, where that is fixed."""
        return next((spec.shape[1] for spec in self.inputs if isinstance(spec.shape[1], int)), None)


def ends_of(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, told: bool = False
) -> Ends | None:
    """What of a graph is used; None where it is no encoder of texts. ``told``: it is known to be one,
    whatever its outputs are called."""
    names = [spec.name for spec in inputs]
    known = {IDS, MASK, KINDS, PLACES}
    fits = all(spec.name in known and spec.dtype.kind in "iuf" and len(spec.shape) == 2 for spec in inputs)
    found = None
    if IDS in names and fits:
        found = _output(outputs, told=told)
    if found is None:
        return None
    ends = Ends(tuple(inputs), found.name, len(found.shape) == 2)
    return None if ends.rows not in {None, 1} else ends


def _output(outputs: Sequence[TensorSpec], *, told: bool) -> TensorSpec | None:
    for names, axes in ((_OF_TEXTS, 2), (_OF_TOKENS, 3)):
        for name in names:
            for spec in outputs:
                if spec.name == name and len(spec.shape) == axes:
                    return spec
    floats = [spec for spec in outputs if spec.dtype.kind not in "iubOSU" and len(spec.shape) in {2, 3}]
    # Tokens' vectors can be pooled as the folder says; what else a text has may be something else.
    return max(floats, key=lambda spec: len(spec.shape)) if told and floats else None


@dataclass(frozen=True)
class Batch:
    """Texts of one run: which they are, their lengths, and what the ranks are given."""

    places: Sequence[int]
    lengths: Sequence[int]
    feeds: Arrays


@dataclass(frozen=True)
class Encoder:
    """An encoder, but for the ranks that compute it. ``joins``: texts of one length may be rows of one batch;
    ``pads``: shorter ones may be filled up."""

    folder: EncoderFolder
    tokenizer: Tokenizer
    ends: Ends
    steps: Sequence[Callable[[Vectors], Vectors]] = ()
    """What is computed of pooled vectors, in this order."""
    joins: bool = False
    pads: bool = False

    @property
    def longest(self) -> int | None:
        """Tokens of a text at most; None if nothing says it."""
        known = [length for length in (self.folder.longest, self.ends.length) if length is not None]
        return min(known, default=None)

    def ids(self, text: str | Sequence[int], most: int | None = None) -> list[int]:
        """The token ids of a text; with ``most`` cut to so many, the special ones at its ends kept. Raises
        `ConfigError` for what is no text, or one without tokens."""
        if not isinstance(text, str):
            found = list(text[:most])
            self.check(found)  # before it is looked through: it may be millions of ids
            low, high = min(found), max(found)
            if low < 0 or high >= self.tokenizer.size:
                raise ConfigError(
                    f"there is no token {low if low < 0 else high}: expected ids from 0 to "
                    f"{self.tokenizer.size - 1}"
                )
            return found
        text = self.folder.prompt + text.strip()
        if self.longest is not None and len(text) > self.longest * TOKEN_CHARACTERS:
            if most is None:
                raise ConfigError(
                    f"the text has {len(text)} characters, far more than {counted(self.longest, 'token')} "
                    "are: shorten it"
                )
            text = text[: self.longest * TOKEN_CHARACTERS]
        found = self.tokenizer.ids(text.lower() if self.folder.lower else text)
        if not found:
            raise ConfigError("expected a text with at least one token, found none")
        if most is None or len(found) <= most:
            return found
        first, last = self._special(found)
        kept = max(0, most - first - last)
        return [*found[: first + kept], *found[len(found) - last :]][:most]

    def _special(self, ids: Sequence[int]) -> tuple[int, int]:
        """How many special tokens a text begins and ends with."""
        special = self.tokenizer.special
        own = [at for at, token in enumerate(ids) if token not in special]
        return (own[0], len(ids) - 1 - own[-1]) if own else (len(ids), 0)

    def check(self, ids: Sequence[int]) -> None:
        """Raises `ConfigError` for a text that is too long."""
        if self.longest is not None and len(ids) > self.longest:
            raise ConfigError(
                f"expected at most {counted(self.longest, 'token')}, found {len(ids)}: shorten it or "
                "have it cut by truncate_prompt_tokens"
            )
        if self.ends.length is not None and not self.ends.masked and len(ids) != self.ends.length:
            raise ConfigError(f"the model takes texts of {self.ends.length} tokens alone, found {len(ids)}")

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Texts as runs, those of like lengths together."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        begin = 0
        for end in range(1, len(order) + 1):
            if end == len(order) or not self._fits(
                len(texts[order[begin]]), len(texts[order[end]]), end - begin
            ):
                yield self._batch(order[begin:end], [texts[at] for at in order[begin:end]])
                begin = end

    def _fits(self, shortest: int, length: int, rows: int) -> bool:
        """Whether a text may stand beside so many others, which are no longer than it."""
        alike = self.joins and (shortest == length or self.pads)
        return alike and rows < _MOST_ROWS and (rows + 1) * length <= _MOST_TOKENS

    def _batch(self, places: Sequence[int], texts: Sequence[Sequence[int]]) -> Batch:
        lengths = [len(text) for text in texts]
        width = self.ends.length or max(lengths)
        ids = np.full((len(texts), width), self.folder.pad, np.int64)
        mask = np.zeros((len(texts), width), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        known = {
            IDS: ids, MASK: mask, KINDS: np.zeros_like(ids),
            PLACES: np.broadcast_to(np.arange(width, dtype=np.int64), ids.shape),
        }  # fmt: skip
        feeds = {spec.name: np.ascontiguousarray(known[spec.name], spec.dtype) for spec in self.ends.inputs}
        return Batch(places, lengths, feeds)

    def vectors(self, batch: Batch, outputs: Arrays) -> Vectors:
        """The vectors of a run's texts, by their order in it. Raises `ConfigError` where the output has not
        one for each."""
        found = np.asarray(outputs[self.ends.output]).astype(np.float32)
        each = (len(batch.lengths),) if self.ends.of_texts else batch.feeds[IDS].shape
        if found.ndim != len(each) + 1 or found.shape[:-1] != each:
            raise ConfigError(
                f"the model's output {self.ends.output!r} has the shape {list(found.shape)}: expected a "
                f"vector for each of {counted(each[0], 'text')}"
                + (f" of {each[1]} tokens" if each[1:] else "")
            )
        if not self.ends.of_texts:
            found = pooled(found, batch.lengths, self.folder.modes)
        for step in self.steps:
            found = step(found)
        return found

    def cut(self, vectors: Vectors, size: int) -> Vectors:
        """The first numbers of each vector; of length 1 where the vectors themselves are."""
        if size > vectors.shape[1]:
            raise ConfigError(f"expected at most {vectors.shape[1]}, which the model gives, found {size}")
        found = vectors[:, :size]
        own = np.sqrt((vectors * vectors).sum(1))
        return normalised(found) if size < vectors.shape[1] and np.allclose(own, 1, atol=1e-3) else found

    def proved(self, compute: Compute) -> Encoder:
        """The same that knows whether texts may be joined. Raises what ranks raise that are lost."""
        if self.ends.rows is not None:
            return self
        most = min(self.longest or len(_LONG), len(_LONG))
        try:
            long, short = self.ids(_LONG, most), self.ids(_SHORT, most)
        except ConfigError:  # a tokenizer that does not know these words may know those of clients
            return self
        # Rows of one token each differ in all that a scale of the whole batch could follow.
        joins = self._alike(compute, [long, *([token] * len(long) for token in sorted(set(long))[:3])])
        return replace(
            self, joins=joins, pads=joins and self.ends.masked and self._alike(compute, [short, long])
        )

    def _alike(self, compute: Compute, texts: Sequence[Sequence[int]]) -> bool:
        """Whether these texts are in one batch what each is alone."""
        try:
            batch = self._batch(range(len(texts)), texts)
            found = self.vectors(batch, compute(batch.feeds))
            for row, text in enumerate(texts):
                one = self._batch([0], [text])
                alone = self.vectors(one, compute(one.feeds))
                if found.shape[1] != alone.shape[1]:
                    return False
                if not np.abs(found[row] - alone[0]).max() <= _ALIKE * np.abs(alone).max():
                    return False
        except (RankFailedError, LaunchError):
            raise
        except ShardrunError:
            return False
        return True


def encoder_of(folder: EncoderFolder, ends: Ends) -> Encoder:
    """The encoder of a folder, before its ranks are there. Raises `ConfigError` for a folder that does not
    fit, and without the package of tokenizers."""
    if folder.unknown and not ends.of_texts:
        raise ConfigError(
            f"{folder.path} has a module {folder.unknown!r}, unknown here: expected Transformer, "
            "Pooling, Dense and Normalize, or a model whose output 'sentence_embedding' computes all"
        )
    after = folder.after
    if ends.of_texts:  # its graph has computed all modules; this one may come twice
        after = [module for module in after if module[0] == "Normalize"]
    return Encoder(folder, Tokenizer(folder.tokenizer), ends, [AFTER[kind](place) for kind, place in after])
