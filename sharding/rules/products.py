"""Products of axis lengths, some of them symbols: what a Reshape makes of two axes, or one axis apart.

A length that is a product is written with `MARK` between its factors, the number first and the symbols sorted
(``8·batch``), so that equal products are equal lengths. What a file names a length is one symbol, whatever it
looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sharding.slices.expressions import MARK

if TYPE_CHECKING:  # the rules import this module
    from sharding.rules.base import Dim

MAX_SYMBOLS = 8
"""The most symbols in one length; a length with more counts as unknown."""

Product = tuple[int, tuple[str, ...]]
"""A product of lengths: the known ones multiplied, the symbols sorted."""


def product(lengths: Iterable[Dim]) -> Product | None:
    """The product of lengths; None where one of them is unknown, or nothing."""
    number, symbols = 1, list[str]()
    for length in lengths:
        if length is None or length == 0:
            return None
        if isinstance(length, int):
            number *= length
            continue
        first, *others = length.split(MARK)
        if others and first.isdecimal():
            number *= int(first)
            symbols += others
        else:
            symbols += [first, *others]
    return (number, tuple(sorted(symbols))) if len(symbols) <= MAX_SYMBOLS else None


def quotient(a: Product | None, b: Product | None) -> Dim:
    """a / b as a length, where it surely is a whole number; else None."""
    if a is None or b is None or a[0] % b[0]:
        return None
    symbols = list(a[1])
    for symbol in b[1]:
        if symbol not in symbols:
            return None
        symbols.remove(symbol)
    return length_of((a[0] // b[0], tuple(symbols)))


def length_of(value: Product) -> Dim:
    """A product as the length of one axis."""
    number, symbols = value
    if not symbols:
        return number
    return MARK.join(symbols if number == 1 else (str(number), *symbols))


def whole_quotient(a: Product | None, b: Product | None) -> int | None:
    """a / b where it is surely a known whole number, else None."""
    found = quotient(a, b)
    return found if isinstance(found, int) else None
