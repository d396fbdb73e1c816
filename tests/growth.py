"""How the work of a call grows with the length of what it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORT = 20_000


def as_lines_do(call: Callable[[str], object], part: str, begin: str = "") -> bool:
    """Whether a text of twice the length takes less than three times as long. ``part``: what it repeats."""
    once, twice = (_seconds(call, begin + part * (size // len(part))) for size in (_SHORT, 2 * _SHORT))
    return twice < 3 * once


def _seconds(call: Callable[[str], object], text: str) -> float:
    """Of a processor, the least of some."""
    found = []
    for _ in range(5):
        began = time.process_time()
        call(text)
        found.append(time.process_time() - began)
    return min(found)
