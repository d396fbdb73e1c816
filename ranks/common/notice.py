"""Warnings that point at the script's own line, however deep in this package they arise."""

from __future__ import annotations

import sys
import warnings

_warned: set[str] = set()


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is not this package's."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ranks":
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def warn_once(key: str, message: str) -> None:
    """Warns once per process and ``key``."""
    if key not in _warned:
        _warned.add(key)
        warn_user(message)


def deprecated(old: str, new: str) -> None:
    """Warns that ``old`` still works and that ``new`` is the present way."""
    warn_user(f"{old} is deprecated, use {new} instead.", DeprecationWarning)
