"""Numbers for the open lengths of a model's inputs, such that the model can be run with them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.values import shape_of

if TYPE_CHECKING:
    from sharding.read import Source

PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
MAX_SUMS = 12


@dataclass(frozen=True)
class Lengths:
    """Symbol -> number."""

    numbers: Mapping[str, int]

    def number(self, length: int | str | None) -> int:
        """The number for an axis; exporters write expressions too, such as ``past + 1``."""
        if isinstance(length, int):
            return length
        if length is None:
            return PRIMES[0]
        if length in self.numbers:
            return self.numbers[length]
        value = _evaluate(length, self.numbers)
        return PRIMES[0] if value is None or value < 1 else value


def lengths_of(source: Source, batch: Mapping[str, int]) -> Iterator[Lengths]:
    """Assignments to try: every symbol another number; then one symbol the sum of two others, as the length
    of a mask is that of the cache and of the new tokens."""
    found: dict[str, None] = {}
    for value in source.model.graph.inputs:
        for axis, length in enumerate(shape_of(value) or ()):
            if isinstance(length, str) and batch.get(value.name or "") != axis:
                found[length] = None
    plain = [symbol for symbol in found if symbol.isidentifier()]
    numbers = dict(zip(plain, itertools.cycle(PRIMES)))
    yield Lengths(numbers)
    triples = (
        (total, a, b)
        for total in reversed(plain)
        for a, b in itertools.combinations([symbol for symbol in plain if symbol != total], 2)
    )
    for total, a, b in itertools.islice(triples, MAX_SUMS):
        yield Lengths(numbers | {total: numbers[a] + numbers[b]})


def _evaluate(text: str, numbers: Mapping[str, int]) -> int | None:
    """The value of sums, differences, products and quotients of symbols and numbers."""
    try:
        tree = ast.parse(text[:200], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    def value(node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1 << 31:
            return node.value
        if isinstance(node, ast.Name):
            return numbers.get(node.id)
        if isinstance(node, ast.BinOp):
            a, b = value(node.left), value(node.right)
            if a is None or b is None or abs(a) > 1 << 31 or abs(b) > 1 << 31:
                return None
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
                return (
                    a + b
                    if isinstance(node.op, ast.Add)
                    else a - b
                    if isinstance(node.op, ast.Sub)
                    else a * b
                )
            if isinstance(node.op, ast.FloorDiv | ast.Div) and b:
                return a // b
        return None

    return value(tree)
