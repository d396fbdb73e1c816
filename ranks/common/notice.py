"""Warnings that point at the script's own line, however deep in this package they arise."""

from __future__ import annotations

import sys
import warnings

from sharding.common.text import printable

# Where a context manager of this package decorates one of its functions, contextlib's line is between them.
_NOT_THE_USERS = frozenset({"ranks", "contextlib"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is not this package's."""
    level = 2
    frame = sys._getframe(1)
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS
    ):
        frame = frame.f_back
        level += 1
    warnings.warn(printable(message), category, stacklevel=level)  # it may quote a file


class Notices:
    """What was warned of once. One per process, which is what a user reads the warnings of, however many
    models it has."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn_once(self, key: str, message: str) -> None:
        """Warns once per process and ``key``."""
        if key not in self._given:
            self._given.add(key)
            warn_user(message)


NOTICES = Notices()
warn_once = NOTICES.warn_once


def deprecated(old: str, new: str) -> None:
    """Warns that ``old`` still works and that ``new`` is the present way."""
    warn_user(f"{old} is deprecated, use {new} instead.", DeprecationWarning)
