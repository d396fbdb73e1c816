"""Tokenizers: text to token ids, and ids to text."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.common.documents import read_text
from launcher.errors import ConfigError
from sharding.common.text import one_line, shortened

MAX_TOKENIZER_BYTES = 256 << 20


def available() -> bool:
    """Whether the package ``tokenizers`` is installed."""
    return importlib.util.find_spec("tokenizers") is not None


class Tokenizer:
    """A ``tokenizer.json``, read by the package ``tokenizers``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inner = _load(path)

    @property
    def size(self) -> int:
        """How many ids it knows, the added ones included; the highest of them and one, if they have gaps."""
        known: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return max(known.values(), default=-1) + 1

    def check(self, vocabulary: int, model: Path | str) -> None:
        """Raises `ConfigError` where it has more ids than a model's vocabulary."""
        if self.size > vocabulary:
            raise ConfigError(
                f"{self.path} does not fit {model}: this tokenizer has ids up to {self.size - 1}, but the "
                f"model's vocabulary ends at {vocabulary - 1}; give the tokenizer that belongs to the model"
            )

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; ``special``: with those that the tokenizer adds, such as the first."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError("the prompt is no text: it holds half of a surrogate pair") from None
        found: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return found

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        found: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return found

    def id_of(self, token: str) -> int | None:
        """The id of a token, if there is one."""
        found: int | None = self._inner.token_to_id(token)
        return found


def _load(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            f"{path} is read by the package tokenizers, which is not installed: `pip install "
            "'shardrun[text]'`, or give token ids"
        ) from None
    text = read_text(path, "tokenizer", ConfigError, MAX_TOKENIZER_BYTES)
    try:
        made = tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # the package raises nothing more special, and panics are no `Exception`
        raise ConfigError(f"{path}: this is no tokenizer: {shortened(one_line(str(error)), 200)}") from None
    # What a file says of these is for batches: a prompt is neither cut nor filled up.
    made.no_truncation()
    made.no_padding()
    return made
