"""Lists of numbers as Linux writes those of processors, ``0-3,8``, and Slurm those of tasks, ``2(x3),1``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = r"(?a)(\d{1,6})(?:-(\d{1,6}))?"
_MOST = 1 << 16
_COUNT = r"(?a)(\d{1,6})(?:\(x(\d{1,6})\))?"


def parse_ranges(text: str) -> list[int] | None:
    """The numbers of such a list, in order; None for any other text, and for none."""
    found: set[int] = set()
    for part in text.split(","):
        fits = re.fullmatch(_PART, part.strip())
        if fits is None:
            return None
        first, last = int(fits[1]), int(fits[2] or fits[1])
        if not 0 <= last - first < _MOST:
            return None
        found.update(range(first, last + 1))
    return sorted(found)


def expand_counts(text: str, most: int = _MOST) -> list[int] | None:
    """The numbers of Slurm's compressed list, one a node; None for any other text, and for more than ``most``
    nodes."""
    counts: list[int] = []
    for part in text.split(","):
        fits = re.fullmatch(_COUNT, part.strip())
        times = int(fits[2] or 1) if fits is not None else 0
        if fits is None or len(counts) + times > most:
            return None
        counts += [int(fits[1])] * times
    return counts


def in_ranges(numbers: Iterable[int]) -> str:
    """The shortest such list of some numbers."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
