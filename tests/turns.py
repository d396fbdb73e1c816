"""Parameters of tests of which one need not meet every combination of the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def in_turns(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every combination of all but the last parameter, with one value of that, which take turns.

    Each of its values still meets each two values of other parameters, where there are three others; each
    single one, where there are two. No other may have fewer values than it.
    """
    *others, last = values
    found = []
    for numbers in itertools.product(*(range(len(one)) for one in others)):
        chosen = [one[number] for one, number in zip(others, numbers, strict=True)]
        found.append((*chosen, last[sum(numbers) % len(last)]))
    return found
