"""Long lists of numbers in JSON, which are read in pieces.

Whatever begins a text of JSON is read the same, however it goes on. So where the beginning of a list, up to a
comma, is by itself the inside of a list, that comma stands between two of its elements.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import orjson

from launcher.serving.parsing.pace import PIECE, breathe

_MOST_TEXTS, _MOST_ELSE = 20_000, 1 << 20
"""Texts in a body, quotation marks in them, and bytes beside its long lists, up to which it is looked
through."""
_NEAR, _SPACES = 4096, 64
_SPACE = b" \t\r\n"
_OPENING = re.compile(rb"(?:\[[ \t\r\n]{0,64}){1,32}")
_AFTER = b"]},[{ \t\r\n"


class IrregularError(Exception):
    """A text that cannot be read in pieces, or is no JSON: only all of it at once tells."""


@dataclass(eq=False)
class Run:
    """A list of numbers, or of lists of them, from its first bracket to its last. ``depth``: 1 for one of
    numbers."""

    data: bytes
    start: int
    end: int
    depth: int
    _whole: bool = False

    @property
    def most(self) -> int:
        """How many numbers it may hold."""
        return (self.end - self.start) // 2 + 1

    def pieces(self) -> Iterator[list[object]]:
        """All that its innermost lists hold, in order. Raises `IrregularError`, also for lists of different
        lengths."""
        yield from _flat(self.data, self.start + 1, self.end - 1, self.depth)
        self._whole = True

    def check(self) -> None:
        """Reads it, unless that is done. Raises as `pieces` does."""
        if not self._whole:
            for _ in self.pieces():
                pass

    def numbers(self) -> list[object]:
        """All of them as a list. Raises `IrregularError`, also where they are in lists themselves."""
        if self.depth > 1:
            raise IrregularError
        return list(chain.from_iterable(self.pieces()))

    def __str__(self) -> str:
        return self.data[self.start : self.start + 80].decode("utf-8", "replace")


def parsed(data: bytes, *, lists: bool) -> tuple[object, list[Run]]:
    """What a text of JSON says. Without ``lists`` there are `Run`s in place of long lists of numbers, which
    have not been read; all of them follow. Raises `orjson.JSONDecodeError`."""
    if (found := _hollowed(data)) is not None:
        hollow, mark, runs = found
        try:
            whole = orjson.loads(hollow)
            found_in = [run.numbers() for run in runs] if lists else runs
            if isinstance(whole, dict | list) and _filled(whole, mark, found_in) == len(runs):
                return whole, [] if lists else runs
        except (
            orjson.JSONDecodeError,
            IrregularError,
        ):  # the place of what is wrong is one of the whole text
            pass
    return orjson.loads(data), []


def _hollowed(data: bytes) -> tuple[bytes, str, list[Run]] | None:
    """The text with marks in place of its long lists, the beginning of these marks, and the lists; None where
    there are none, or where it takes too long to say."""
    if data.count(b'\\"') > _MOST_TEXTS:
        return None
    mark, runs = secrets.token_hex(16), list[Run]()
    parts, kept, at, left = list[bytes](), 0, 0, len(data)
    for _ in range(_MOST_TEXTS):
        quote = data.find(b'"', at)
        end = quote if quote >= 0 else len(data)
        if end - at > PIECE and (run := _run(data, at, end)) is not None:
            parts += [data[kept : run.start], f'"{mark}{len(runs)}"'.encode()]
            runs.append(run)
            kept, left = run.end, left - (run.end - run.start)
            breathe()
        if quote < 0:
            parts.append(data[kept:])
            return (b"".join(parts), mark, runs) if runs and left <= _MOST_ELSE else None
        at = _after_text(data, quote)
        if not at:
            return None
    return None


def _after_text(data: bytes, quote: int) -> int:
    """Where the text that begins with this quotation mark ends; 0 where it does not."""
    end = data.find(b'"', quote + 1)
    while end >= 0:
        near = data[max(quote + 1, end - _NEAR) : end]
        slashes = len(near) - len(near.rstrip(b"\\"))
        if slashes == _NEAR:
            return 0
        if not slashes % 2:
            return end + 1
        end = data.find(b'"', end + 1)
    return 0


def _run(data: bytes, at: int, end: int) -> Run | None:
    """The long list between two places with no text between them."""
    start = data.find(b"[", at, end)
    opening = _OPENING.match(data, start, end) if start >= 0 else None
    if opening is None:
        return None
    depth = opening[0].count(b"[")
    near = data[max(opening.end(), end - _NEAR) : end]
    last = end - len(near) + len(near.rstrip(_AFTER))
    closing = re.compile(rb"(?:[ \t\r\n]{0,64}\]){%d}" % depth).match(data, last, end)
    if closing is None or closing.end() - start <= PIECE:
        return None
    return Run(data, start, closing.end(), depth)


def _filled(whole: object, mark: str, runs: Sequence[object]) -> int:
    """Puts the lists where their marks are; how many marks there were."""
    count, left = 0, [whole]
    while left:
        inside = left.pop()
        pairs = inside.items() if isinstance(inside, dict) else enumerate(cast("list[object]", inside))
        for key, value in list(pairs):
            if isinstance(value, dict | list):
                left.append(value)
            elif isinstance(value, str) and value.startswith(mark):
                cast("dict[object, object]", inside)[key] = runs[int(value[len(mark) :])]
                count += 1
    return count


Lengths = tuple[int, ...]


def _flat(data: bytes, at: int, end: int, depth: int) -> Generator[list[object], None, Lengths]:
    """The innermost values between two places inside a list, in pieces; returns the lengths of the list and
    of those in it."""
    count, inner = 0, None
    closing = b"]" * (depth - 1)
    while True:
        stop = end if end - at <= PIECE else data.rfind(closing + b",", at, at + PIECE) + len(closing)
        if stop >= at + len(closing):
            values, (more, *rest) = _read(data[at:stop], depth)
            own = tuple(rest)
            yield values
        else:  # the next element is longer than a piece
            stop = data.find(closing, at, end) + len(closing) if closing else -1
            first = data.find(b"[", at, stop) if stop - at >= PIECE else -1
            if first < 0 or data[at:first].strip(_SPACE):
                raise IrregularError
            own, more = (yield from _flat(data, first + 1, stop - 1, depth - 1)), 1
        if inner not in {None, own}:
            raise IrregularError
        count, inner = count + more, own
        near = data[stop : min(end, stop + _SPACES)].lstrip(_SPACE)
        if not near and end - stop <= _SPACES:
            break
        if not near.startswith(b","):
            raise IrregularError
        at = data.find(b",", stop) + 1
        breathe()
    return count, *(inner or ())


def _read(piece: bytes, depth: int) -> tuple[list[object], Lengths]:
    """The innermost values of the inside of a list, and its lengths."""
    try:
        values = orjson.loads(b"[" + piece + b"]")
    except orjson.JSONDecodeError:
        raise IrregularError from None
    if not values:  # such as between two commas
        raise IrregularError
    lengths = [len(values)]
    for _ in range(depth - 1):
        if set(map(type, values)) != {list} or len(sizes := set(map(len, values))) != 1:
            raise IrregularError
        lengths.append(*sizes)
        values = list(chain.from_iterable(values))
    if list in set(map(type, values)):
        raise IrregularError
    return values, tuple(lengths)
