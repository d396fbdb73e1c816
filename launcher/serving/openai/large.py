"""The JSON of bodies, of which large ones are read in pieces, in a thread: Python's reader lets no other
thread run before it is done, and a whole body may take it a second in which nobody else would be answered."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator

from launcher.serving.bodies import bad, object_of, said
from launcher.serving.context import Call

AT_ONCE = 1 << 18
"""Bytes that are read at once, in a few milliseconds."""
_DEEPEST = 64
_SPACE = re.compile(r"[ \t\n\r]*")
_NESTED = re.compile(r'["\[{]')


def _reject(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)
_SCAN: Callable[[str, int], tuple[object, int]] = vars(_DECODER)["scan_once"]


async def object_in(call: Call) -> dict[str, object]:
    """The JSON object in a request's body. Raises `RefusalError`."""
    data = await call.body()
    if len(data) <= AT_ONCE:
        return object_of(data)
    return await asyncio.to_thread(large_object, data)


def large_object(data: bytes) -> dict[str, object]:
    """As `launcher.serving.bodies.object_of`, while other threads go on. Raises `RefusalError`."""
    try:
        text = data.decode("utf-8-sig")
        found, end = _Reader(text).value(_space(text, 0), 0)
        if (end := _space(text, end)) != len(text):
            raise ValueError(f"expected its end: character {end}")
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is no JSON: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise bad(f"the body: expected a JSON object, found {said(found)}")
    return found


def _space(text: str, at: int) -> int:
    """Where space ends."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, at: int, depth: int) -> tuple[object, int]:
        """A value that begins at a character, and where it ends. Raises `ValueError`."""
        sign = self._text[at : at + 1]
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} levels in each other: character {at}")
        if sign == "{":
            return self._object(at, depth)
        if sign == "[":
            end = self._text.find("]", at, at + AT_ONCE)
            if end < 0 or _NESTED.search(self._text, at + 1, end):
                return self._list(at, depth)
        found, end = self._plain(at)
        if isinstance(found, str):
            found.encode()  # half a character is no text
        return found, end

    def _plain(self, at: int) -> tuple[object, int]:
        try:
            return _SCAN(self._text, at)
        except StopIteration:
            raise ValueError(f"expected a value: character {at}") from None

    def _object(self, at: int, depth: int) -> tuple[object, int]:
        found: dict[str, object] = {}
        text, end = self._text, _space(self._text, at + 1)
        if text[end : end + 1] == "}":
            return found, end + 1
        while True:
            if text[end : end + 1] != '"':
                raise ValueError(f"expected a name in quotes: character {end}")
            name, end = self.value(end, depth)
            end = _space(text, end)
            if text[end : end + 1] != ":":
                raise ValueError(f"expected a colon: character {end}")
            found[str(name)], end = self.value(_space(text, end + 1), depth + 1)
            end = _space(text, end)
            if text[end : end + 1] == "}":
                return found, end + 1
            if text[end : end + 1] != ",":
                raise ValueError(f"expected a comma: character {end}")
            end = _space(text, end + 1)

    def _list(self, at: int, depth: int) -> tuple[object, int]:
        found: list[object] = []
        text, end = self._text, _space(self._text, at + 1)
        if text[end : end + 1] == "]":
            return found, end + 1
        while True:
            for stretch, after in self._stretches(end):
                found += stretch
                end = after
            one, end = self.value(_space(text, end), depth + 1)
            found.append(one)
            end = _space(text, end)
            if text[end : end + 1] == "]":
                return found, end + 1
            if text[end : end + 1] != ",":
                raise ValueError(f"expected a comma: character {end}")
            end = _space(text, end + 1)

    def _stretches(self, at: int) -> Iterator[tuple[list[object], int]]:
        """What of a list is plain, such as many numbers, up to a comma; and where it goes on."""
        while (end := self._text.rfind(",", at, at + AT_ONCE)) > at:
            if _NESTED.search(self._text, at, end) or self._text.find("]", at, end) >= 0:
                return
            stretch, _ = _DECODER.raw_decode(f"[{self._text[at:end]}]")
            if not stretch:
                raise ValueError(f"expected a value: character {at}")
            at = end + 1
            yield stretch, at
