"""Numbers for the open lengths of a model's inputs, such that the model can be run with them."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.fold import small_constant
from sharding.graph.symbols import shown, shown_shape
from sharding.graph.values import shape_of
from sharding.rules.base import Dim
from sharding.rules.products import MARK, length_of, product

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
MORE_PRIMES = (53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
MAX_SUMS = 12
MAX_NUMBERS = 16
"""Elements of a constant that is taken for a shape, or bounds."""


@dataclass(frozen=True)
class Lengths:
    """Symbol -> number, and the numbers of axes without a symbol, by their place in a shape."""

    numbers: Mapping[str, int]
    other: int = PRIMES[0]
    places: Mapping[int, int] = field(default_factory=dict)
    alike: bool = False
    """Whether axes without a symbol have one number where they might have several."""

    def number(self, length: Dim, place: int = 0) -> int:
        """The number for an axis; exporters write expressions too, such as ``past + 1``."""
        value = evaluate(shown(length), self.numbers)
        return self.places.get(place, self.other) if value is None or value < 1 else value


def lengths_of(source: Source, batch: Mapping[str, int]) -> Iterator[Lengths]:
    """Assignments to try: every symbol and every place without one another number, which is no factor of a
    length or a constant of the model; then one symbol the sum of two others, as the length of a mask is that
    of the cache and of the new tokens; last, one number for all that have no symbol."""
    found: dict[str, None] = {}
    unnamed: dict[int, None] = {}
    for value in source.model.graph.inputs:
        for axis, length in enumerate(shown_shape(value) or ()):
            if isinstance(length, str) and batch.get(value.name or "") != axis:
                found[length] = None
            elif length is None and batch.get(value.name or "") != axis:
                unnamed[axis] = None
    plain = [symbol for symbol in found if symbol.isidentifier()]
    free = itertools.cycle(_free_primes(source.model))
    numbers = {symbol: next(free) for symbol in plain}
    places = {axis: next(free) for axis in unnamed}
    other = next(free)
    yield Lengths(numbers, other, places)
    triples = (
        (total, a, b)
        for total in reversed(plain)
        for a, b in itertools.combinations([symbol for symbol in plain if symbol != total], 2)
    )
    for total, a, b in itertools.islice(triples, MAX_SUMS):
        yield Lengths(numbers | {total: numbers[a] + numbers[b]}, other, places)
    if len(places) > 1:
        yield Lengths(numbers, other, alike=True)


def _free_primes(model: ir.Model) -> list[int]:
    """The primes that no length and no number of a small constant is a multiple of: an axis of such a length
    is taken for nothing else. All where too few are left."""
    values = [*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)]
    taken = {axis for value in values for axis in shape_of(value) or () if isinstance(axis, int)}
    for value in model.graph.initializers.values():
        known = small_constant(value)
        if known is not None and known.dtype.kind == "i" and known.size <= MAX_NUMBERS:
            taken.update(known.reshape(-1).tolist())
    taken.discard(0)
    free = [prime for prime in (*PRIMES, *MORE_PRIMES) if all(number % prime for number in taken)]
    return free if len(free) >= len(PRIMES) else [*PRIMES, *MORE_PRIMES]


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
    """The number that an axis' length stands for: a symbol, or an expression of symbols and numbers as
    exporters write them (``past + 1``, ``Min(128, sequence)``). None where it cannot be told."""
    if isinstance(length, int) or length is None:
        return length
    if length in numbers:
        return numbers[length]
    try:
        return _value(_parsed(length), numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def as_product(length: Dim, names: Collection[str] = ()) -> Dim:
    """A length that a file writes as a product (``8*batch``) as `sharding.rules.products` does; others as
    they are, and so are the ``names`` of axes, whatever they look like."""
    if not isinstance(length, str) or "*" not in length or length in names:
        return length
    try:
        factors = list(_factors(_parsed(length)))
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


def _parsed(length: str) -> ast.expr:
    return ast.parse(length[:200].replace(MARK, "*"), mode="eval").body


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"min": min, "max": max, "floor": lambda x: x}


def _value(node: ast.expr, numbers: Mapping[str, int]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) < 1 << 31 else None
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, numbers)
        return None if value is None else -value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and node.args:
        function = _FUNCTIONS.get(node.func.id.lower())
        found = [_value(item, numbers) for item in node.args]
        if function is None or None in found or (function not in {min, max} and len(found) > 1):
            return None
        return function(*found) if len(found) > 1 else found[0]
    operation = _OPERATIONS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if operation is None or not isinstance(node, ast.BinOp):
        return None
    a, b = _value(node.left, numbers), _value(node.right, numbers)
    if a is None or b is None or abs(a) > 1 << 31 or abs(b) > 1 << 31:
        return None
    return None if b == 0 and operation in {operator.floordiv, operator.mod} else operation(a, b)
