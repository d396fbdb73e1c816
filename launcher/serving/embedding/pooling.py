"""One vector for each text, of the vectors that an encoder gives for its tokens.

Source: the documentation of the package sentence-transformers, "Pooling" and "Normalize".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""(texts, size)."""
Tokens = NDArray[np.float32]
"""(texts, tokens, size)."""
Mask = NDArray[np.float32]
"""(texts, tokens, 1): 1 for a token of the text, 0 for padding."""
_LEAST_COUNT, _LEAST_NORM = 1e-9, 1e-12


def _mean(tokens: Tokens, mask: Mask) -> Vectors:
    count = np.maximum(mask.sum(1), np.float32(_LEAST_COUNT))
    found: Vectors = (tokens * mask).sum(1) / count
    return found


def _mean_by_root(tokens: Tokens, mask: Mask) -> Vectors:
    count = np.maximum(mask.sum(1), np.float32(_LEAST_COUNT))
    found: Vectors = (tokens * mask).sum(1) / np.sqrt(count)
    return found


def _weighted(tokens: Tokens, mask: Mask) -> Vectors:
    places = np.arange(1, tokens.shape[1] + 1, dtype=np.float32)[None, :, None]
    return _mean(tokens, mask * places)


def _highest(tokens: Tokens, mask: Mask) -> Vectors:
    found: Vectors = np.where(mask > 0, tokens, np.float32(-1e9)).max(1)
    return found


def _last(tokens: Tokens, mask: Mask) -> Vectors:
    places = mask.shape[1] - 1 - mask[:, ::-1, 0].argmax(1)
    found: Vectors = tokens[np.arange(len(tokens)), places]
    return found


POOLINGS: Mapping[str, Callable[[Tokens, Mask], Vectors]] = {
    "cls": lambda tokens, mask: tokens[:, 0],
    "max": _highest,
    "mean": _mean,
    "mean_sqrt_len": _mean_by_root,
    "weightedmean": _weighted,
    "lasttoken": _last,
}
"""By their names, in the order in which several are put one after another."""


def pooled(tokens: Tokens, lengths: Sequence[int], modes: Sequence[str]) -> Vectors:
    """The vectors of texts of these ``lengths``, whose tokens come first."""
    mask = (np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]).astype(np.float32)[..., None]
    found: Vectors = np.concatenate([POOLINGS[mode](tokens, mask) for mode in modes], axis=1)
    return found


def normalised(vectors: Vectors) -> Vectors:
    """The same of length 1."""
    norms = np.sqrt((vectors * vectors).sum(1, keepdims=True, dtype=np.float32))
    found: Vectors = vectors / np.maximum(norms, np.float32(_LEAST_NORM))
    return found
