"""Numbers for the open lengths of a model's inputs, such that the model can be run with them."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.symbols import shown, shown_shape
from sharding.graph.values import shape_of
from sharding.rules.base import Dim
from sharding.rules.products import length_of, product
from sharding.slices.expressions import MARK, is_expression, number_of, parsed

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
MAX_SUMS = 12
MAX_NUMBERS = 16
"""Elements of a constant that is taken for a shape, or bounds."""

Place = tuple[str, int]
"""An input's name, and one of its axes."""


@dataclass(frozen=True)
class Lengths:
    """Symbol -> number, and the numbers of axes without a symbol, by their place."""

    numbers: Mapping[str, int]
    other: int = PRIMES[0]
    places: Mapping[Place, int] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    """The symbols that are taken for sums, and of what: what is proved holds for inputs of such lengths."""
    own: Mapping[str, int] = field(default_factory=dict)
    """What symbols count as that are no sums."""
    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What is added for each of the sums: symbols and expressions; what others are made of comes first."""

    def number(self, length: Dim, place: Place | None = None) -> int:
        """The number for an axis; exporters write expressions too, such as ``past + 1``."""
        if place is not None and place in self.places:
            return self.places[place]
        value = evaluate(shown(length), self.numbers)
        return self.other if value is None or value < 1 else value

    def equal(self, one: int, other: int) -> Lengths | None:
        """These numbers, but what is ``one`` is ``other`` too; None where no axis has that one by itself."""
        known = {*self.numbers.values(), *self.places.values()}
        if one not in known:
            return None
        return Lengths(
            {symbol: other if number == one else number for symbol, number in self.numbers.items()},
            self.other,
            {place: other if number == one else number for place, number in self.places.items()},
            self.sums,
        )

    def summed(self, terms: Mapping[str, tuple[str, ...]]) -> Lengths:
        """The same, but each of these symbols is the sum of its terms, where that is a length, and no other
        symbol is a sum."""
        numbers, sums = dict(self.own), {}
        for symbol, parts in terms.items():
            others = {name: number for name, number in numbers.items() if name != symbol}
            number = sum(evaluate(part, others) or 0 for part in parts)
            if number > 0:
                numbers[symbol] = number
                sums[symbol] = " + ".join(parts) if len(parts) > 1 else parts[0].replace(MARK, "*")
        return replace(self, numbers=numbers, sums=sums, terms=terms)

    def without(self, symbol: str) -> Lengths:
        """The same where this symbol is no sum."""
        return self.summed({name: parts for name, parts in self.terms.items() if name != symbol})


def lengths_of(
    source: Source, batch: Mapping[str, int], taken: Iterable[int] = ()
) -> Iterator[tuple[Lengths, ...]]:
    """Assignments to try: every symbol and every place without one another number, which is no factor of a
    length or a constant of the model, nor of those ``taken``; then those that are called expressions of
    others (``past + 1``) what they are called; then one symbol the sum of two others, as the length of a mask
    is that of the cache and of the new tokens.

    Each comes with a second one, of numbers that lie in another order and at other distances. What holds in
    one of them alone holds by chance: a length that follows from others may meet a constant of the model.
    """
    found: dict[str, None] = {}
    unnamed: dict[Place, None] = {}
    for value in source.model.graph.inputs:
        for axis, length in enumerate(shown_shape(value) or ()):
            if batch.get(value.name or "") == axis:
                continue
            if isinstance(length, str):
                found[length] = None
            elif length is None:
                unnamed[value.name or "", axis] = None
    if not found and not unnamed:
        yield (Lengths({}),)
        return
    expressions = {symbol: (symbol,) for symbol in found if is_expression(symbol, found)}
    plain = [symbol for symbol in found if symbol not in expressions]
    free = _free_primes(source.model, taken)
    first = list(itertools.islice(free, len(found) + len(unnamed) + 1))
    sets = []
    for numbers in (first, _elsewhere(first, free)):
        named = dict(zip(found, numbers, strict=False))
        places = dict(zip(unnamed, numbers[len(found) :], strict=False))
        sets.append(Lengths(named, numbers[-1], places, own=named))
    yield tuple(sets)
    if expressions:
        yield tuple(item.summed(expressions) for item in sets)
    triples = (
        (total, a, b)
        for total in reversed(plain)
        for a, b in itertools.combinations([symbol for symbol in plain if symbol != total], 2)
    )
    for total, a, b in itertools.islice(triples, MAX_SUMS):
        yield tuple(item.summed({total: (a, b), **expressions}) for item in sets)


def _free_primes(model: ir.Model, taken: Iterable[int] = ()) -> Iterator[int]:
    """The primes that no length and no number of a small constant is a multiple of: an axis of such a length
    is taken for nothing else."""
    values = [*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)]
    used = {axis for value in values for axis in shape_of(value) or () if isinstance(axis, int)}
    used.update(taken)
    for value in model.graph.initializers.values():
        known = small_constant(value)
        if known is not None and known.dtype.kind == "i" and known.size <= MAX_NUMBERS:
            used.update(known.reshape(-1).tolist())
    used.discard(0)
    for number in itertools.count(PRIMES[0], 2):
        prime = all(number % factor for factor in range(3, math.isqrt(number) + 1, 2))
        if prime and all(other % number for other in used):
            yield number


def _elsewhere(first: Sequence[int], free: Iterator[int]) -> list[int]:
    """As many further numbers, the largest first, no two at the distance that they have in ``first``."""
    found: list[int] = []
    for number in free:
        if len(found) == len(first):
            break
        place = len(first) - 1 - len(found)
        apart = [abs(first[place] - first[len(first) - 1 - other]) for other in range(len(found))]
        if all(number - other != distance for other, distance in zip(found, apart, strict=True)):
            found.append(number)
    return found[::-1]


def with_inputs(
    model: ir.Model,
    path: Path,
    sizes: Mapping[str, Sequence[int]],
    enough: Callable[[ir.Model], bool] = lambda _: False,
) -> ir.Model:
    """A copy of a model whose inputs have these shapes, inferred anew: once if that is ``enough``."""
    import onnx_ir as ir

    from sharding.reading.shapes import infer

    copy = model.clone()
    for value in copy.graph.inputs:
        if value.name in sizes:
            value.shape = ir.Shape(list(sizes[value.name or ""]))
    for _ in range(2):  # what the first pass folds to constants lets the second infer more
        for node in copy.graph:
            for value in node.outputs:
                value.shape = None
        infer(copy, path)
        if enough(copy):
            break
    return copy


def evaluate(length: Dim, numbers: Mapping[str, int]) -> int | None:
    """The number that an axis' length stands for: a symbol, or an expression (`sharding.slices.expressions`).
    None where it cannot be told."""
    if isinstance(length, int) or length is None:
        return length
    return numbers[length] if length in numbers else number_of(length.replace(MARK, "*"), numbers)


def as_product(length: Dim, names: Collection[str] = ()) -> Dim:
    """A length that a file writes as a product (``8*batch``) as `sharding.rules.products` does; others as
    they are, and so are the ``names`` of axes, whatever they look like."""
    if not isinstance(length, str) or "*" not in length or length in names:
        return length
    try:
        factors = list(_factors(parsed(length.replace(MARK, "*"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return length
    found = product(factors)
    return length if found is None else length_of(found)


def _factors(node: ast.expr) -> Iterator[Dim]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 < node.value < 1 << 31:
        yield node.value
    else:
        raise ValueError("it is not a product")
