"""Checks of argument types, with the messages of the mindspore_lite package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def check_isinstance(name: str, value: object, kind: type, *, none_allowed: bool = False) -> None:
    """Raises `TypeError` unless ``value`` is an instance of ``kind`` (or None, where allowed)."""
    if value is None and none_allowed:
        return
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, but got {type(value)}.")


def check_list_of(name: str, value: object, kind: type) -> None:
    """Raises `TypeError` unless ``value`` is a list whose elements are all instances of ``kind``."""
    if not isinstance(value, list):
        raise TypeError(f"{name} must be list, but got {type(value)}.")
    check_elements(name, value, kind)


def check_elements(name: str, values: Sequence[object], kind: type | tuple[type, ...]) -> None:
    """Raises `TypeError` naming the index of the first element that is not an instance of ``kind``.

    Of several kinds the message names the first.
    """
    first = kind[0] if isinstance(kind, tuple) else kind
    for index, element in enumerate(values):
        if not isinstance(element, kind):
            raise TypeError(
                f"{name} element must be {first.__name__}, but got {type(element)} at index {index}."
            )


def check_sequence(name: str, value: object, what: str = "") -> None:
    """Raises `TypeError` unless ``value`` is a list or a tuple; ``what`` says of which elements."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be list or tuple{what}, but got {type(value)}.")


def check_shape(shape: object) -> None:
    """Raises unless ``shape`` is a list or tuple of ints of 64 bits."""
    check_sequence("shape", shape)
    assert isinstance(shape, (list, tuple))
    check_elements("shape", shape, int)
    for index, length in enumerate(shape):
        if not -INT64_MAX <= length <= INT64_MAX:
            raise ValueError(f"shape element must fit in 64 bits, but got {length} at index {index}.")


def check_count(name: str, value: Any, subject: str = "") -> None:
    """Raises unless ``value`` is an int from 0 to 2**31 - 1 (the original keeps counts in 32 bits)."""
    check_isinstance(name, value, int)
    if value < 0:
        raise ValueError(f"{subject}{name} must be a non-negative int.")
    if value > INT32_MAX:
        raise ValueError(f"{subject}{name} must be at most {INT32_MAX}, but got {value}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises unless ``value`` is a str out of ``choices``."""
    check_isinstance(name, value, str)
    if value not in choices:
        raise ValueError(f"{name} must be in [{', '.join(choices)}], but got {value}.")


def check_sections(name: str, value: object) -> None:
    """Raises `TypeError` unless ``value`` is a dict of dicts of str, all keys str."""
    check_isinstance(name, value, dict)
    assert isinstance(value, dict)
    for section, entries in value.items():
        check_isinstance(f"{name}_key", section, str)
        check_isinstance(f"{name}_value", entries, dict)
        for key, entry in entries.items():
            check_isinstance(f"{name}_value_key", key, str)
            check_isinstance(f"{name}_value_value", entry, str)
