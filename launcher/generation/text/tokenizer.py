"""Tokenizers: text to token ids, and ids to text."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.common.documents import read_text
from launcher.errors import ConfigError
from launcher.generation.text.grammar import packed
from launcher.generation.text.pieces import pieces_of
from sharding.common.text import one_line, shortened

MAX_TOKENIZER_BYTES = 256 << 20
TOKEN_CHARACTERS = 256
"""Of a text for each token that a model can read: a longer text does not fit, and is not made tokens of."""
_LONG = 1 << 13
"""Characters of a text that takes so long that other threads should go on meanwhile."""


def available() -> bool:
    """Whether the package ``tokenizers`` is installed."""
    return importlib.util.find_spec("tokenizers") is not None


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]:
        """The ids of a text."""


class _Decoder(Protocol):
    def __getstate__(self) -> bytes:
        """It as JSON."""


class _Added(Protocol):
    @property
    def special(self) -> bool:
        """Whether it is no text."""


class _Library(Protocol):
    """What is used of the package's own tokenizer."""

    def get_vocab(self, with_added_tokens: bool = ...) -> dict[str, int]:
        """The ids of tokens."""

    @property
    def decoder(self) -> _Decoder | None:
        """What makes one text of tokens."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> _Encoding:
        """A text as ids."""

    def encode_batch(self, input: list[str], *, add_special_tokens: bool) -> Sequence[_Encoding]:
        """Texts as ids, while other threads go on."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids as text."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token."""

    def get_added_tokens_decoder(self) -> Mapping[int, _Added]:
        """The tokens that are not of the model, by id."""


class Tokenizer:
    """A ``tokenizer.json``, read by the package ``tokenizers``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inner = _load(path)

    @property
    def size(self) -> int:
        """How many ids it knows, the added ones included; the highest of them and one, if they have gaps."""
        known = self._inner.get_vocab(with_added_tokens=True)
        return max(known.values(), default=-1) + 1

    def check(self, vocabulary: int, model: Path | str) -> None:
        """Raises `ConfigError` where it has more ids than a model's vocabulary."""
        if self.size > vocabulary:
            raise ConfigError(
                f"{self.path} does not fit {model}: this tokenizer has ids up to {self.size - 1}, but the "
                f"model's vocabulary ends at {vocabulary - 1}; give the tokenizer that belongs to the model"
            )

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; ``special``: with those that the tokenizer adds, such as the first. Raises
        `ConfigError` for a text that has none."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError("the prompt is no text: it holds half of a surrogate pair") from None
        try:
            if len(text) > _LONG:
                return self._inner.encode_batch([text], add_special_tokens=special)[0].ids
            return self._inner.encode(text, add_special_tokens=special).ids
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # such as a word for which the file has no token; as in `_load`
            why = shortened(one_line(str(error)), 200)
            raise ConfigError(f"{self.path}: this tokenizer makes no tokens of the text: {why}") from None

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens. Raises `ConfigError` where the tokenizer makes none."""
        try:
            return self._inner.decode(list(ids), skip_special_tokens=True)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # as in `ids`
            why = shortened(one_line(str(error)), 200)
            raise ConfigError(f"{self.path}: this tokenizer makes no text of the tokens: {why}") from None

    def id_of(self, token: str) -> int | None:
        """The id of a token, if there is one."""
        return self._inner.token_to_id(token)

    @functools.cached_property
    def pieces(self) -> Sequence[bytes]:
        """The bytes that each id stands for, special tokens by their names."""
        decoder = self._inner.decoder
        return pieces_of(
            "null" if decoder is None else decoder.__getstate__().decode(),
            self._inner.get_vocab(with_added_tokens=True),
            self._inner.get_added_tokens_decoder().keys(),
        )

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The ids of special tokens, which `text` leaves out."""
        added = self._inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @functools.cached_property
    def packed(self) -> object:
        """As texts that follow a grammar need it. Raises `ConfigError` without the package for it."""
        return packed(self)

    def warm(self) -> None:
        """Makes ready what takes a second for a large one, and lets no other thread go on meanwhile."""
        _ = self.pieces
        with contextlib.suppress(ConfigError):  # without the package, whoever needs it is told
            _ = self.packed

    def unwritten(self, texts: Iterable[str]) -> Iterator[int]:
        """The ids of those texts that are special tokens, which `text` leaves out."""
        for text in texts:
            token = self.id_of(text)
            if token is not None and not self.text([token]):
                yield token


def _load(path: Path) -> _Library:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            f"{path} is read by the package tokenizers, which is not installed: `pip install "
            "'shardrun[text]'`, or give token ids"
        ) from None
    text = read_text(path, "tokenizer", ConfigError, MAX_TOKENIZER_BYTES)
    try:
        found = tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the package raises nothing more special, and panics are no `Exception`
        raise ConfigError(f"{path}: this is no tokenizer: {shortened(one_line(str(error)), 200)}") from None
    # What a file says of these is for batches: a prompt is neither cut nor filled up.
    found.no_truncation()
    found.no_padding()
    made: _Library = found
    return made
