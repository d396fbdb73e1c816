"""Which names of axes stand for one length, because a model cannot be run where they do not.

Axes that a file gives one name are told apart while a model is read. Each is given another number, and where
the inputs of a node do not fit together then, the model itself wants those axes to be equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharding.graph.symbols import shown
from sharding.graph.values import captured, shape_of
from sharding.reading.lengths import as_product, evaluate
from sharding.rules.base import Dim
from sharding.rules.elementwise import ELEMENTWISE
from sharding.slices.expressions import is_expression

if TYPE_CHECKING:
    import onnx_ir as ir

_SHIFTS, _FACTORS = 6, 4
"""Numbers are powers of 2 while they are small: 64 bits count the elements of tensors of several axes."""


@dataclass
class Clashes:
    """The first nodes whose inputs do not fit together, and all that is not sure then."""

    nodes: list[ir.Node] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    """What these nodes make, and what is made of that."""


def clashes_in(model: ir.Model, wanted: Collection[str] = ()) -> Clashes:
    """``wanted``: values whose shapes can be known where inputs fit."""
    found = Clashes()
    for node in model.graph:
        made = {value.name or "" for value in node.outputs}
        read = [value for value in (*node.inputs, *captured(node)) if value is not None]
        if not found.unsure.isdisjoint(value.name or "" for value in read):
            found.unsure |= made
        elif _contradicts(node) or (
            not made.isdisjoint(wanted)
            and all(_is_known(value) for value in read)
            and not all(_is_known(value) for value in node.outputs if value.name in wanted)
        ):
            found.nodes.append(node)
            found.unsure |= made
    return found


def contradictions(model: ir.Model) -> set[str]:
    """Outputs of nodes whose inputs do not fit together: inference may have taken the shape from one input,
    before it knew the other."""
    wrong = [node for node in model.graph if _contradicts(node)]
    return {value.name or "" for node in wrong for value in node.outputs}


def called(symbol: str) -> Dim:
    """What a file calls an axis, as it would inside the graph."""
    return as_product(shown(symbol))


def numbers_apart(model: ir.Model) -> dict[str, int]:
    """Each open axis of the inputs another number than those of its name, by its own symbol; empty where no
    name is repeated, or an expression of others."""
    axes = [axis for value in model.graph.inputs for axis in shape_of(value) or ()]
    symbols = list(dict.fromkeys(axis for axis in axes if isinstance(axis, str)))
    if all(shown(symbol) == symbol for symbol in symbols):
        return {}
    # Most divide the next ones: a Reshape of one input to another's length can be inferred.
    numbers = {
        symbol: (64 << index % _SHIFTS) * (2 * (index // _SHIFTS) + 1) for index, symbol in enumerate(symbols)
    }
    named = [symbol for symbol in numbers if is_expression(str(shown(symbol)), numbers)]
    for index, symbol in enumerate(named):  # another one than the expression's, of which that is a factor
        number = evaluate(shown(symbol), numbers) or 0
        if number > 0:
            numbers[symbol] = number * (2 << index % _FACTORS) * (2 * (index // _FACTORS) + 1)
    return numbers


def made_equal(numbers: Mapping[str, int], names: Collection[Dim]) -> dict[str, int]:
    """The same numbers, but axes of these names have one."""
    found = dict(numbers)
    for symbol in numbers:
        if called(symbol) in names:
            same = [number for other, number in numbers.items() if called(other) == called(symbol)]
            found[symbol] = max(0, evaluate(shown(symbol), numbers) or 0) or same[0]
    return found


def wanted_equal(model: ir.Model, nodes: Iterable[ir.Node], numbers: Mapping[str, int]) -> set[Dim]:
    """The names whose axes must be equal for these nodes to run: those of the lengths that do not fit, or of
    all inputs that the node is computed from, where its lengths are nobody's own."""
    lengths: dict[Dim, set[int]] = {}
    for symbol, number in numbers.items():
        own = lengths.setdefault(called(symbol), set())
        own |= {number, evaluate(shown(symbol), numbers) or number}
    made = {value.name: value for node in model.graph for value in node.outputs}
    wanted: set[Dim] = set()
    for node in nodes:
        shapes = [{axis for axis in shape_of(value) or () if isinstance(axis, int)} for value in node.inputs]
        names = {name for name, own in lengths.items() if _differ([own & shape for shape in shapes])}
        if not names:
            names = {called(symbol) for symbol in _symbols_before(made.get(node.outputs[0].name))}
        wanted |= names
    repeated = {called(symbol) for symbol in numbers if shown(symbol) != symbol}
    return wanted & repeated


def _differ(found: Iterable[set[int]]) -> bool:
    """Whether two inputs have lengths of one name that are not equal."""
    return any(a and b and len(a | b) > 1 for a, b in itertools.combinations(found, 2))


def _symbols_before(value: ir.Value | None) -> set[str]:
    """Those of all inputs from which a value is computed."""
    found: set[str] = set()
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None:
            waiting += [*node.inputs, *captured(node)]
        elif value.is_graph_input():
            found.update(axis for axis in shape_of(value) or () if isinstance(axis, str))
    return found


def _contradicts(node: ir.Node) -> bool:
    """Whether a node's inputs do not go together, so far as their shapes are known."""
    if node.op_type not in ELEMENTWISE:
        return False
    shapes = map(shape_of, node.inputs)
    axes = itertools.zip_longest(*(reversed(shape) for shape in shapes if shape), fillvalue=1)
    return any(len({n for n in lengths if isinstance(n, int)} - {1}) > 1 for lengths in axes)


def _is_known(value: ir.Value) -> bool:
    shape = shape_of(value)
    return shape is not None and all(isinstance(axis, int) for axis in shape)
