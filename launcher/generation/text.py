"""Tokenizers: text to token ids, and ids back to text as they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.common.documents import read_text
from launcher.errors import ConfigError
from sharding.common.text import one_line, shortened

MAX_TOKENIZER_BYTES = 256 << 20
_HALF = "�"
_CHARACTER = 4  # bytes of one character, and so tokens, at most


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
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more special
        raise ConfigError(f"{path}: this is no tokenizer: {shortened(one_line(str(error)), 200)}") from None


class Detokenizer:
    """The text of ids as they come: never half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._begin = 0  # of the ids that are decoded again
        self._known = 0  # ids whose text is shown
        self._shown = 0  # characters shown of the text from `_begin`

    def add(self, token: int) -> str:
        """What may be shown now that this id has come."""
        self._ids.append(token)
        text = self._tokenizer.text(self._ids[self._begin :])
        if not text.endswith(_HALF):
            piece = text[self._shown :]
            # Decoded once more with what follows: whether a space stands between them, both together say.
            self._begin, self._known = self._known, len(self._ids)
            self._shown = len(self._tokenizer.text(self._ids[self._begin :]))
            return piece
        piece = text.rstrip(_HALF)[self._shown :]
        self._shown += len(piece)
        if piece or len(self._ids) - self._known <= _CHARACTER:
            return piece
        return self._give_up()

    def _give_up(self) -> str:
        """Shows bytes that are no character, whatever follows."""
        for rest in range(_CHARACTER - 1, 0, -1):
            cut = len(self._ids) - rest
            first, last = self._ids[self._known : cut], self._ids[cut:]
            text = self._tokenizer.text(first)
            if text + self._tokenizer.text(last) == self._tokenizer.text([*first, *last]):
                known = self._tokenizer.text(self._ids[self._begin : self._known])
                self._begin = self._known = cut
                shown, self._shown = self._shown - len(known), 0
                return text[max(0, shown) :]
        return ""

    def end(self) -> str:
        """What is left when nothing more comes, but for the bytes of half a character."""
        text = self._tokenizer.text(self._ids[self._begin :])
        return text.rstrip(_HALF)[self._shown :]
