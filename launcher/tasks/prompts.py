"""The prompts of ``shardrun generate``: from flags, a file or standard input, one a line, as they come."""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.common.documents import quote
from launcher.errors import ConfigError
from sharding.common.documents import parse
from sharding.common.nearby import hint
from sharding.common.text import parse_whole

if TYPE_CHECKING:
    from typing import BinaryIO


MAX_LINE = 16 << 20
"""Bytes of one prompt."""
_SHOWN = 200
KEYS = ("prompt", "ids", "messages")
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Prompt:
    """One of text, token ids and messages; ``where`` it comes from, for errors."""

    where: str
    text: str | None = None
    ids: list[int] | None = None
    messages: Sequence[Mapping[str, object]] | None = None
    fault: ConfigError | None = None
    """What is wrong with its line, of which ``text`` is the beginning then."""

    def wrong(self, error: ConfigError) -> ConfigError:
        """What is wrong with the prompt, and where it stands if that is a line."""
        named = error is self.fault or "line" not in self.where
        return error if named else ConfigError(f"{self.where}: {error}")

    def shown(self) -> str | Sequence[object]:
        """The prompt as it was given."""
        return next(item for item in (self.text, self.ids, self.messages) if item is not None)


@dataclass(frozen=True)
class Prompts:
    """Where prompts come from."""

    texts: Sequence[str] = ()
    ids: Sequence[str] = ()
    file: str | None = None
    chat: bool = False
    none: bool = False
    """An encoder's arrays are given, and no prompt is needed."""
    keep_going: bool = False
    """Whether lines that are wrong are given, too, with their fault."""

    @property
    def single(self) -> bool:
        """Whether there is one prompt, and no other can come."""
        return self.file is None and len(self.texts) + len(self.ids) == 1

    def check(self) -> None:
        """Raises `ConfigError` for prompts that cannot be read; lines are read as they are needed."""
        for text in self.ids:
            read_ids(text, "--ids")
        if self.file not in {None, STANDARD_INPUT} and not Path(str(self.file)).is_file():
            raise ConfigError(
                f"--prompts {self.file}: expected a file of prompts, one a line{hint(self.file or '')}"
            )

    def count(self) -> int | None:
        """How many prompts there are; None if that is not known before they are read, or one is too long."""
        given = len(self.texts) + len(self.ids)
        if self.file in {None, STANDARD_INPUT}:
            return given or None if self.file is None else None
        path = Path(str(self.file))
        if not path.is_file():
            return None
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE and not self.keep_going:
                    return None  # it is refused when it is read, and may have no end
                given += bool(line.strip())
                _skip(file, line)
        return given

    def said(self) -> Iterator[Prompt]:
        """Those of flags, which are known before anything is read."""
        for text in self.texts:
            yield self._of("--prompt", text)
        for text in self.ids:
            yield Prompt("--ids", ids=read_ids(text, "--ids"))

    def __iter__(self) -> Iterator[Prompt]:
        yield from self.said()
        if self.file is not None or not (self.texts or self.ids or self.none):
            yield from self._lines()

    def _of(self, where: str, text: str) -> Prompt:
        if self.chat:
            return Prompt(where, messages=[{"role": "user", "content": text}])
        return Prompt(where, text=text)

    def _lines(self) -> Iterator[Prompt]:
        standard = self.file in {None, STANDARD_INPUT}
        name = "standard input" if standard else str(self.file)
        with contextlib.ExitStack() as stack:
            file: BinaryIO
            if standard:
                file = cast("BinaryIO", sys.stdin.buffer)
            else:
                file = stack.enter_context(Path(name).open("rb"))
            number = 0
            while data := file.readline(MAX_LINE + 1):
                number += 1
                where = f"{name}, line {number}"
                long = len(data) > MAX_LINE
                line = data.removeprefix(codecs.BOM_UTF8) if number == 1 else data
                if not line.strip():
                    _skip(file, data)
                    continue
                try:
                    if long:
                        raise ConfigError(f"{where}: a prompt has at most {MAX_LINE} bytes")
                    yield self._line(line, where)
                except ConfigError as error:
                    if not self.keep_going:
                        raise
                    yield Prompt(where, text=line[:_SHOWN].decode(errors="replace"), fault=error)
                _skip(file, data)

    def _line(self, data: bytes, where: str) -> Prompt:
        try:
            line = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: prompts are UTF-8 text: {error.reason}") from None
        if not self._is_json(line):
            return self._of(where, line)
        try:
            document = parse(line, "json")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: this line is no JSON: {error or 'nested too deep'}") from None
        return self._object(document, where)

    def _is_json(self, line: str) -> bool:
        if self.file is not None and Path(self.file).suffix.lower() in {".jsonl", ".ndjson"}:
            return True
        if not line.startswith("{"):
            return False
        try:  # a prompt may begin with a brace
            data = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(data, dict) and any(key in data for key in KEYS)

    def _object(self, data: object, where: str) -> Prompt:
        given = [key for key in KEYS if isinstance(data, dict) and key in data]
        if isinstance(data, str):
            return self._of(where, data)
        if len(given) != 1:
            raise ConfigError(
                f"{where}: expected an object with one of {', '.join(KEYS)}, found {quote(data)}"
            )
        assert isinstance(data, dict)
        value = data[given[0]]
        if given[0] == "prompt":
            if not isinstance(value, str):
                raise ConfigError(f"{where}: prompt: expected a text, found {quote(value)}")
            return self._of(where, value)
        if given[0] == "ids":
            whole = isinstance(value, list) and all(type(item) is int for item in value)
            if not whole:
                raise ConfigError(f"{where}: ids: expected a list of token ids, found {quote(value)}")
            return Prompt(where, ids=value)
        from launcher.generation.text.chat import check_messages

        try:
            check_messages(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: messages: {error}") from None
        return Prompt(where, messages=value)


def read_ids(text: str, where: str) -> list[int]:
    """Token ids from text such as ``1,15043,29892``. Raises `ConfigError`."""
    parts = [parse_whole(part) for part in text.replace(",", " ").split()]
    ids = [part for part in parts if part is not None]
    if not parts or len(ids) < len(parts):
        raise ConfigError(f"{where}: expected token ids such as 1,15043,29892, found {text[:40]!r}")
    return ids


def _skip(file: BinaryIO, line: bytes) -> None:
    """Reads what is left of a line that is too long."""
    while len(line) >= MAX_LINE and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE)
