"""The text of token ids as they come: never half a character."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.generation.text.tokenizer import Tokenizer

_HALF = "�"
_CHARACTER = 4  # bytes of one character, and so tokens, at most
LOOKED_BACK = 16
"""Tokens among which the end of the text before is looked for."""


class Detokenizer:
    """The text of ids as they come: never half a character.

    ``before``: the ids that they go on from, which are not shown. Many tokenizers leave out the space before
    the first word of all: whether there is one before the first of these ids, only both together say.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = _end_of(before, tokenizer)
        self._begin = 0  # of the ids that are decoded again
        self._known = len(self._ids)  # ids whose text is shown
        self._shown = len(tokenizer.text(self._ids))  # characters shown of the text from `_begin`

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


def _end_of(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The last ids that are a text by themselves; none where it begins or ends within a character."""
    for count in range(1, min(LOOKED_BACK, len(ids)) + 1):
        end = list(ids[-count:])
        text = tokenizer.text(end)
        if text and _HALF not in text:
            return end
    return []
