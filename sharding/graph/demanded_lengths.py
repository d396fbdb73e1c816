"""Lengths that a graph demands: a node refuses its inputs where they are not so.

A mask that is an input of its own leaves the rows of scores without a known length: added to them it could
make many rows of one. But from the result rows for a product are made, which takes as many columns as its
weight has rows. So a name that inference made up for a length is often a number, or another name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sharding.graph.symbols import MADE_UP, NUMBERED, is_made_up
from sharding.graph.values import shape_of, subgraphs
from sharding.rules.base import Dim
from sharding.rules.elementwise import ELEMENTWISE
from sharding.rules.flow import FLOW
from sharding.rules.products import MAX_SYMBOLS, Product, length_of, product

if TYPE_CHECKING:
    import onnx_ir as ir

_NAMES = 3
"""The most names that are compared with as many others."""
_DEPTH = 4
"""Nodes in a row that only move elements."""


def demand(graph: ir.Graph) -> set[ir.Value]:
    """Writes made-up names as what they must be, in the shapes of all values; returns those that changed.

    Not where bodies of control flow are open: what a node there demands holds only in turns that reach it.
    Nor where others are left, for the names that inference makes up in a body may be the graph's too.
    """
    if any(node.domain == FLOW or any(True for _ in subgraphs(node)) for node in graph):
        return set()
    changed = set["ir.Value"]()
    stands_for: dict[str, Product] = {}
    longer: dict[str, set[str]] = {}
    for node in graph:
        _compare(node, longer)
        for one, other in _equal(node):
            both = _written(one, stands_for), _written(other, stands_for)
            for name, length in _solved(*both) or _paired(*both, longer):
                stands_for = {key: _written(value, {name: length}) for key, value in stands_for.items()}
                stands_for[name] = length
    for value in (value for node in graph for value in node.outputs) if stands_for else ():
        shape = shape_of(value)
        if shape is None:
            continue
        better = [_length(length, stands_for) for length in shape]
        if better != list(shape):
            _give(value, better)
            changed.add(value)
    return changed


def _give(value: ir.Value, shape: list[Dim]) -> None:
    import onnx_ir as ir

    value.shape = ir.Shape(shape)


def _equal(node: ir.Node) -> Iterator[tuple[Product, Product]]:
    """Products of lengths that must be equal for a node to run."""
    if node.domain or not node.inputs or any(attribute.is_ref() for attribute in node.attributes.values()):
        return
    if node.op_type == "Reshape":
        result, value = shape_of(node.outputs[0]), node.inputs[0]
        yield from _both(shape_of(value), result)
        for _ in range(_DEPTH):  # what only moves elements has as many
            maker = None if value is None else value.producer()
            if maker is None or maker.domain or maker.op_type not in {"Reshape", "Transpose"}:
                break
            value = maker.inputs[0]
            yield from _both(shape_of(value), result)
    elif node.op_type in {"Gemm", "MatMul"} and len(node.inputs) > 1:
        left, right = shape_of(node.inputs[0]), shape_of(node.inputs[1])
        if left and right and len(left) > 1 and len(right) > 1:
            turned = [
                bool(node.attributes[name].value) for name in ("transA", "transB") if name in node.attributes
            ]
            if not any(turned):
                yield from _both(left[-1:], right[-2:-1])


def _both(one: tuple[Dim, ...] | None, other: tuple[Dim, ...] | None) -> Iterator[tuple[Product, Product]]:
    a, b = (None if shape is None else product(shape) for shape in (one, other))
    if a is not None and b is not None:
        yield a, b


def _compare(node: ir.Node, longer: dict[str, set[str]]) -> None:
    """Notes which names an axis that is broadcast is at least as long as."""
    if node.domain or node.op_type not in {*ELEMENTWISE, "MatMul"}:
        return
    result, spare = shape_of(node.outputs[0]) or (), 2 if node.op_type == "MatMul" else 0
    for value in node.inputs:
        shape = shape_of(value) or ()
        for axis in range(1 + spare, min(len(shape), len(result)) + 1):
            mine, whole = shape[-axis], result[-axis]
            if isinstance(mine, str) and isinstance(whole, str) and is_made_up(whole) and mine != whole:
                longer.setdefault(whole, set()).add(mine)


def _paired(one: Product, other: Product, longer: dict[str, set[str]]) -> list[tuple[str, Product]]:
    """Where each name left of one side is at least as long as another of the other side, and all together
    are as long, each is as long."""
    for names, others in (_left(one, other), _left(other, one)):
        if one[0] != other[0] or len(names) != len(others) or not 1 < len(names) <= _NAMES:
            continue
        for order in itertools.permutations(others):
            if all(_covers(name, shorter, longer) for name, shorter in zip(names, order, strict=True)):
                return [(name, (1, (shorter,))) for name, shorter in zip(names, order, strict=True)]
    return []


def _covers(name: str, shorter: str, longer: dict[str, set[str]]) -> bool:
    seen, waiting = {name}, [name]
    while waiting:
        fresh = longer.get(waiting.pop(), set()) - seen
        if shorter in fresh:
            return True
        seen |= fresh
        waiting += fresh
    return False


def _left(one: Product, other: Product) -> tuple[list[str], list[str]]:
    """The names of both sides without those that both have."""
    left, right = list(one[1]), list(other[1])
    for name in one[1]:
        if name in right:
            left.remove(name)
            right.remove(name)
    return left, right


def _solved(one: Product, other: Product) -> list[tuple[str, Product]]:
    """A made-up name that alone is left of one side, and what it stands for; of two the later one."""
    left, right = _left(one, other)
    ways = []
    for names, number, others, rest in ((left, one[0], right, other[0]), (right, other[0], left, one[0])):
        if len(names) == 1 and is_made_up(names[0]) and rest % number == 0:
            ways.append((_made_up_at(names[0]), names[0], (rest // number, tuple(sorted(others)))))
    return [max(ways)[1:]] if ways else []


def _made_up_at(name: str) -> int:
    found = NUMBERED.fullmatch(name)
    return int(found[1]) if found else -1


def _written(value: Product, stands_for: dict[str, Product]) -> Product:
    number, symbols = value[0], list[str]()
    for name in value[1]:
        more, names = stands_for.get(name, (1, (name,)))
        number *= more
        symbols += names
    return number, tuple(sorted(symbols))


def _length(length: Dim, stands_for: dict[str, Product]) -> Dim:
    if not isinstance(length, str) or MADE_UP not in length:
        return length
    value = product((length,))
    found = None if value is None else _written(value, stands_for)
    return length if found is None or found == value or len(found[1]) > MAX_SYMBOLS else length_of(found)
