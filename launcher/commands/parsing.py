"""What the parsers of commands do besides what argparse does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


class Late(str):
    """A text of ``--help`` that is made when somebody wants to read it."""

    def __new__(cls, make: Callable[[], str]) -> Late:
        late = super().__new__(cls, "?")
        late.make = make
        return late

    make: Callable[[], str]


class TakesFlags(argparse._StoreAction):
    """Of an option whose value is the next word even where that begins with a hyphen."""


def joined(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The same command line, where argparse takes each of those words for the value that it is."""
    actions = parser._option_string_actions
    rest_is_not_ours = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    found: list[str] = []
    left = iter(words)
    for word in left:
        action = actions.get(word)
        takes_one = action is not None and action.nargs is None and action.const is None
        ours = word.startswith("-") and word != "--"
        value = next(left, None) if takes_one else None
        if value is not None and isinstance(action, TakesFlags):
            found.append(f"{word}={value}")
        else:
            found += [word] if value is None else [word, value]
        if rest_is_not_ours and not ours:
            break
    return [*found, *left]
