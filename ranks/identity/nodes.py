"""Slurm's compressed lists of nodes: ``a[1-3,07],b2``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from sharding.common.bounds import MAX_RANKS

_NODE = re.compile(r"([^\[\],]*)\[([^\]]*)\]|([^\[\],]+)")


def expand(text: str) -> Iterator[str]:
    """The nodes of such a list, at most `MAX_RANKS`. Raises `ValueError` for any other text."""
    made = 0
    for item in _split(text):
        # Counted before they are made: a few brackets can stand for more names than memory holds.
        parts, count = [], 1
        for found in _NODE.finditer(item):
            if found[3] is not None:
                parts.append([found[3]])
                continue
            numbers = list(itertools.islice(_numbers(found[2], text), MAX_RANKS + 1))
            count *= len(numbers)
            if made + count > MAX_RANKS:
                raise ValueError(text)
            parts += [[found[1]], numbers]
        made += count
        if made > MAX_RANKS or not parts:
            raise ValueError(text)
        yield from map("".join, itertools.product(*parts))


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside brackets."""
    depth, start = 0, 0
    for at, sign in enumerate(f"{text},"):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if depth not in {0, 1}:
            raise ValueError(text)
        if sign == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if depth:
        raise ValueError(text)


def _numbers(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        first, hyphen, last = part.partition("-")
        last = last if hyphen else first
        if not (first.isdecimal() and last.isdecimal() and len(last) <= 9 and len(first) <= 9):
            raise ValueError(whole)
        if not 0 <= int(last) - int(first) < MAX_RANKS:
            raise ValueError(whole)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
