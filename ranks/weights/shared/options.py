"""The options that decide which weights a model has prepared: the same in an owner and in who attaches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sharding.common.text import one_line

LONGEST_TEXT = 500
"""Characters of JSON; the facts of an owner travel in one packet (`ranks.weights.shared.protocol`)."""


class Option(NamedTuple):
    """One such option: what a difference in it is called, and which keys of a configuration give it."""

    words: str
    keys: str


OPTIONS: Mapping[str, Option] = {
    "variable_weights": Option(
        "other variable weights", "variable_weights_list or variable_weights_file (or neither)"
    ),
    "precision_mode": Option("another precision mode", "precision_mode (or none)"),
    "execution_plan": Option("another execution plan", "[execution_plan] (or none)"),
}


def fact(values: Iterable[str]) -> str:
    """What is told of an option's values, whose order does not matter: a hash, and then words for people."""
    ordered = sorted(values)
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]
    return f"{digest} {_listed(ordered)}"


def _listed(ordered: list[str]) -> str:
    if not ordered:
        return "none"
    shown: list[str] = []
    room = LONGEST_TEXT
    for value in ordered:
        text = repr(value)
        room -= len(json.dumps(text))
        if room < 0:
            return f"{', '.join([*shown, '...'])} ({len(ordered)} in all)"
        shown.append(text)
    return ", ".join(shown)


def difference(theirs: Mapping[str, object], ours: Mapping[str, str]) -> str | None:
    """The first option in which an owner's facts differ from ours, as the end of a sentence; None: none."""
    for name, option in OPTIONS.items():
        other = str(theirs.get(name))
        if other == ours[name]:
            continue
        told = one_line(other.partition(" ")[2][: LONGEST_TEXT + 50])
        return (
            f"has {option.words}: it was built with {told or 'others'}, but this process with "
            f"{ours[name].partition(' ')[2]}. Give the same {option.keys} in both."
        )
    return None
