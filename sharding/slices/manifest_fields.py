"""Typed access to parsed JSON, where each failure is a sentence with file, JSON path and both values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sharding.errors import ShardError

SHA256 = re.compile(r"[0-9a-f]{64}")
_PLACEMENT = re.compile(r"replicated|partial|split:\d{1,4}(/\d{1,9})?(\*\d{1,4})?")
_HALF = re.compile(r"[\ud800-\udfff]")
_RESERVED = {"", ".", ".."}


class Field:
    """A value in a JSON document and the path that leads to it."""

    def __init__(self, where: str, path: str, value: object) -> None:
        self.where, self.path, self.value = where, path, value

    def error(self, expected: str, found: object) -> ShardError:
        """The error that says what should be here and what is."""
        shown = json.dumps(found, default=str)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ShardError(
            f"{self.where}: {self.path} must be {expected}, but is {shown}: slice the model again."
        )

    def mapping(self) -> dict[str, object]:
        """This value as an object."""
        if not isinstance(self.value, dict):
            raise self.error("an object", self.value)
        return self.value

    def __getitem__(self, key: str) -> Field:
        mapping = self.mapping()
        if key not in mapping:
            raise ShardError(f'{self.where}: {self.path} lacks the key "{key}": slice the model again.')
        return Field(self.where, f"{self.path}.{key}", mapping[key])

    def get(self, key: str, otherwise: object) -> Field:
        """The member under ``key``, or another value where the object may lack it."""
        return self[key] if key in self.mapping() else Field(self.where, self.path, otherwise)

    def string(self) -> str:
        """This value as text that can be printed and written: JSON can hold halves of characters."""
        if not isinstance(self.value, str) or _HALF.search(self.value):
            raise self.error("a string", self.value)
        return self.value

    def boolean(self) -> bool:
        """This value as a truth."""
        if not isinstance(self.value, bool):
            raise self.error("true or false", self.value)
        return self.value

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The members of this object."""
        for key, value in self.mapping().items():
            if _HALF.search(key):
                raise self.error("an object with names that are text", key)
            yield key, Field(self.where, f"{self.path}[{json.dumps(key)}]", value)

    def items(self) -> Iterator[Field]:
        """The elements of this list."""
        if not isinstance(self.value, list):
            raise self.error("a list", self.value)
        for index, value in enumerate(self.value):
            yield Field(self.where, f"{self.path}[{index}]", value)

    def integer(self, minimum: int) -> int:
        """This value as a whole number of at least ``minimum`` that fits 63 bits."""
        if type(self.value) is not int or not minimum <= self.value < 1 << 63:
            raise self.error(f"a whole number of at least {minimum}", self.value)
        return self.value

    def text(self, key: str) -> str:
        """The string under ``key``."""
        return self[key].string()

    def dimension(self) -> int | str | None:
        """This value as an axis length: a number, a symbol or null."""
        if self.value is None:
            return None
        return self.string() if isinstance(self.value, str) else self.integer(0)

    def file_name(self) -> str:
        """This value as the plain name of a file in the manifest's own folder."""
        value = self.value
        if (
            not isinstance(value, str)
            or value in _RESERVED
            or re.search(r"[/\\:\x00-\x1f\ud800-\udfff]", value)
        ):
            raise self.error("the plain name of a file in this folder", value)
        return value

    def sha256(self) -> str:
        """This value as a SHA-256."""
        return self._matching(SHA256, "a SHA-256: 64 hexadecimal digits in lower case")

    def placement(self) -> str:
        """This value as a printed placement."""
        return self._matching(_PLACEMENT, 'a placement such as "replicated" or "split:1"')

    def _matching(self, pattern: re.Pattern[str], expected: str) -> str:
        if not isinstance(self.value, str) or not pattern.fullmatch(self.value):
            raise self.error(expected, self.value)
        return self.value
