"""Checks of argument types, with the messages of the mindspore_lite package."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Generic, SupportsIndex, TypeVar, cast

import numpy as np

T = TypeVar("T")


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

    Where several kinds are given, the message names the first.
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


def _index(value: object) -> int:
    if isinstance(value, np.bool_):  # that it is no number is an error of numpy's in its later releases
        raise TypeError
    return operator.index(cast("SupportsIndex", value))  # which raises what it should


def integer(name: str, value: object) -> int:
    """``value`` as an int, be it one of numpy or torch; raises `TypeError` for what is no whole number."""
    try:
        return _index(value)
    except TypeError:
        raise TypeError(f"{name} must be int, but got {type(value)}.") from None


def of_bits(name: str, number: int, bits: int, where: str = "") -> int:
    """``number``, if it is a signed one of so many bits, in which the original keeps it; else `TypeError`."""
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise TypeError(
            f"{name} must fit in {bits} bits, but got {number}{where}: incompatible function arguments."
        )
    return number


def identifier(name: str, value: object) -> int:
    """As `integer`, of the number of a process, say: True and False are none."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be int, but got {type(value)}.")
    return integer(name, value)


def integers(name: str, values: Iterable[object], *, truths: bool = True) -> list[int]:
    """The elements as ints; raises `TypeError` naming the index of the first that is no whole number, or with
    ``truths`` False a truth value."""
    found = []
    for index, value in enumerate(values):
        try:
            if isinstance(value, bool) and not truths:
                raise TypeError
            found.append(_index(value))
        except TypeError:
            raise TypeError(f"{name} element must be int, but got {type(value)} at index {index}.") from None
    return found


def sized(name: str, numbers: Sequence[int], bits: int) -> list[int]:
    """``numbers``, if each is one of so many bits; else `TypeError` naming the index of the first that is
    not."""
    return [
        of_bits(f"{name} element", number, bits, f" at index {index}") for index, number in enumerate(numbers)
    ]


def list_of_integers(name: str, value: object) -> list[int]:
    """The elements of a list as ints; raises `TypeError` for another type, and as `integers` and `sized`
    do."""
    check_isinstance(name, value, list)
    assert isinstance(value, list)
    return sized(name, integers(name, value), 32)


def checked_shape(shape: object) -> tuple[int, ...]:
    """``shape`` as a tuple of ints; raises unless it is a list or tuple of ints of 64 bits."""
    check_sequence("shape", shape)
    assert isinstance(shape, (list, tuple))
    return tuple(sized("shape", integers("shape", shape), 64))


def count(name: str, value: object, subject: str = "") -> int:
    """``value`` as an int; raises `ValueError` for a negative one, and as `integer` and `of_bits` do."""
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{subject}{name} must be a non-negative int.")
    return of_bits(f"{subject}{name}", number, 32)


def decryption_key(secret: object, mode: object) -> tuple[bytes, str] | None:
    """``dec_key`` and ``dec_mode`` as they are used; None without a key. Raises `TypeError`, `ValueError`."""
    if secret is None or secret == b"":
        return None
    check_isinstance("dec_key", secret, bytes)
    check_isinstance("dec_mode", mode, str)
    if mode == "":
        raise ValueError("dec_mode must not be empty string!")
    assert isinstance(secret, bytes) and isinstance(mode, str)
    return secret, mode


def of(kind: type[T]) -> Callable[[str, object], T]:
    """A check for values of a kind, which are kept as they are."""

    def taken(name: str, value: object) -> T:
        check_isinstance(name, value, kind)
        return cast("T", value)

    return taken


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """``value``, if it is a str out of ``choices``; raises otherwise."""
    found = of(str)(name, value)
    if found not in choices:
        raise ValueError(f"{name} must be in [{', '.join(choices)}], but got {found}.")
    return found


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


class Checked(Generic[T]):
    """An attribute that is checked when it is set: ``taken`` gives what is kept of a value, or raises under
    the name ``called``, the attribute's own by default. It lies in the instance, or in the object that the
    instance has as ``inside``."""

    def __init__(
        self, taken: Callable[[str, object], T], default: T, called: str = "", inside: str = ""
    ) -> None:
        self._taken, self._default, self._called, self._inside = taken, default, called, inside

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> T:
        if instance is None:
            return cast("T", self)
        return deepcopy(cast("T", self._kept(instance).get(self._name, self._default)))

    def __set__(self, instance: object, value: T) -> None:
        self._kept(instance)[self._name] = self._taken(self._called or self._name, value)

    def _kept(self, instance: object) -> dict[str, object]:
        return vars(getattr(instance, self._inside) if self._inside else instance)
