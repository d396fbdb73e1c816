"""Attributes of operators by name, whose types their operators say: a file may hold others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import SupportsInt

from sharding.errors import ModelError


class WrongAttributeError(ModelError, ValueError):
    """An attribute that is not what its operator demands. Where something is only guessed, it is caught like
    any other value that does not fit; elsewhere the user reads it."""


def integer(attributes: Mapping[str, object], name: str, default: int | None = None) -> int:
    """A whole number. Raises `WrongAttributeError` where the attribute holds something else, and where it is
    missing and has no ``default``."""
    return _whole(attributes.get(name, default), name)


def integers(attributes: Mapping[str, object], name: str, default: Iterable[int] = ()) -> list[int]:
    """Whole numbers; the ``default`` where there are none. Raises `WrongAttributeError` like `integer`."""
    found = attributes.get(name)
    if found is None:
        return list(default)
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise _error(name, "whole numbers", found)
    return [_whole(item, name) for item in found]


def _whole(value: object, name: str) -> int:
    if not isinstance(value, SupportsInt):  # a text has no such method
        raise _error(name, "a whole number", value)
    return int(value)


def _error(name: str, expected: str, found: object) -> WrongAttributeError:
    said = "is missing" if found is None else f"is {str(found)[:40]!r}"
    return WrongAttributeError(f"the attribute {name!r} of an operator {said}; expected {expected}")
