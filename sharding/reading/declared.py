"""What a file declares of the shapes inside its graph: checked, or not used.

ONNX Runtime does not believe such shapes. It runs a model whose input was opened after the shapes inside had
been written for a batch of 1, and only warns where an output has other axes than it declares. Exporters on
the other hand know more than inference with symbols finds out: that a convolution's output is as high as
another's, or that what stays for one axis of a Reshape is the number of heads.

So all declared shapes are taken off the graph. Then the open lengths of the inputs are given numbers, a few
sets of them, and with numbers inference finds what it can. A declared axis comes back where it agrees with
all that was found, in two sets or more. What inference cannot find with numbers either is not believed.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.open_lengths import DEMANDING
from sharding.graph.symbols import is_made_up, shown, shown_shape
from sharding.graph.values import shape_of, subgraphs
from sharding.reading.clashes import (
    Clashes,
    called,
    clashes_in,
    contradictions,
    made_equal,
    numbers_apart,
    wanted_equal,
)
from sharding.reading.lengths import PRIMES, Lengths, as_product, evaluate, with_inputs
from sharding.rules.base import Dim
from sharding.rules.flow import FLOW
from sharding.slices.expressions import is_expression

if TYPE_CHECKING:
    import onnx_ir as ir

_LARGER = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103)
_SMALLER = (7, 11, 5, 9, 3, 8, 6, 10, 4, 12)
# Tables of positions end early. Networks of images halve their axes and want what can be halved.
SETS = (PRIMES, _SMALLER, _LARGER, tuple(32 * n for n in PRIMES[:5]), tuple(64 * n for n in PRIMES[:5]))
"""Numbers for the open lengths, one set after the other."""
_FEW = (2, 3)
MOST_TURNS = 4
"""Times that axes of one name are told apart: each time fewer, if the model wants some to be equal."""
ENOUGH = 2
"""Sets in which a length must be found."""

Shape = tuple[Dim, ...]
logger = logging.getLogger(__name__)


def forget(graph: ir.Graph) -> dict[str, Shape]:
    """Takes the shapes off what the nodes of a graph make, and off the bodies of loops in it (those of other
    bodies stay); returns the graph's by name."""
    declared = {}
    names = {axis for value in graph.inputs for axis in shape_of(value) or () if isinstance(axis, str)}
    names = {axis for axis in names if not is_expression(axis, names)}
    for node in graph:
        for value in node.outputs:
            shape = shape_of(value)
            if shape is not None and value.name:
                declared[value.name] = tuple(as_product(axis, names) for axis in shape)
            value.shape = None
        if node.op_type == "Loop" and not node.domain:
            _forget_in_loop(node)
    return declared


def _forget_in_loop(node: ir.Node) -> None:
    """What the body stacks keeps its shape: it is what a loop of no turns gives."""
    for body in subgraphs(node):
        carried = len(node.inputs) - 2
        stacked = set(body.outputs[1 + carried :])
        shapes = {value: value.shape for value in stacked}
        for value in body.inputs[2:]:
            value.shape = None
        forget(body)
        for value, shape in shapes.items():
            value.shape = shape


def confirm(model: ir.Model, path: Path, declared: Mapping[str, Shape]) -> bool:
    """Gives values of an inferred model the declared axes that hold, where inference left them open.

    Whether there were any: then the model must be inferred again, for nothing else is left of its shapes.
    """
    import onnx_ir as ir

    asked = {}
    checks = {}
    guessed = False
    opened = any(node.domain == FLOW for node in model.graph)
    for node in model.graph:
        for value in node.outputs:
            shape, inferred = declared.get(value.name or ""), shape_of(value)
            if opened and shape is None and inferred is not None and _is_quotient(node, inferred):
                # Merged branches come without what they once declared.
                checks[value.name or ""], guessed = _Check((None,) * len(inferred), guess=True), True
            elif shape is None or not _says_more(shape, inferred):
                continue
            else:
                checks[value.name or ""] = _Check(shape)
            asked[value.name or ""] = value
    if not asked:
        return False
    together: set[str] = set()
    apart = numbers_apart(model)
    small = _needed(model, asked.values())
    for number, lengths in enumerate(_sets(model)):
        # What goes together where axes of one name are equal is asked of the whole model, once.
        found = _shapes_at(model if apart and not number else small, path, lengths.number, checks)
        together.update(name for name, shape in found.items() if _is_known(shape))
        for name, check in checks.items():
            check.compare(found.get(name), lengths.numbers, gone=bool(found) and name not in found)
        if all(check.decided() for check in checks.values()):
            break
    if guessed:  # what is as long as many positions are may be shorter where there are few
        few = next(_sets(model, (_FEW,)))
        for name, shape in _shapes_at(small, path, few.number, checks).items():
            if name in checks:
                checks[name].compare(shape, few.numbers)
    found, apart, equal = _told_apart(model, path, apart, together)
    for name, check in checks.items():
        check.take_for_inputs(equal, apart)
        check.tell_apart(found.get(name), apart, equal)
    held = {name: shape for name, check in checks.items() if (shape := check.held()) is not None}
    if not any(_says_more(shape, shape_of(asked[name])) for name, shape in held.items()):
        return False
    forget(model.graph)  # names that inference made up would stand beside what is known now
    for name, shape in held.items():
        asked[name].shape = ir.Shape(shape)
    return True


def _needed(model: ir.Model, asked: Iterable[ir.Value]) -> ir.Model:
    """The part of a model by which the shapes of these values are found, or all where that is most of it: the
    nodes before them, and those right after that say what they need. All too where bodies use values."""
    if any(True for node in model.graph for _ in subgraphs(node)):
        return model
    kept: set[ir.Node] = set()
    waiting = [value.producer() for value in asked]
    waiting += [user for value in asked for user, _ in value.uses() if user.op_type in DEMANDING]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in kept:
            kept.add(node)
            waiting += [value.producer() for value in node.inputs if value is not None]
    if 2 * len(kept) > len(model.graph):
        return model
    part = model.clone()
    copies = list(zip(model.graph, part.graph, strict=True))
    part.graph.outputs.clear()
    part.graph.remove([copy for node, copy in copies if node not in kept], safe=True)
    for node, copy in copies:
        if node in kept:
            part.graph.outputs.extend(value for value in copy.outputs if value.name and not value.uses())
    return part


def _says_more(declared: Shape, inferred: Shape | None) -> bool:
    if inferred is None:
        return True
    if len(declared) != len(inferred):
        return False
    return any(map(_is_better, declared, inferred))


def _is_better(mine: Dim, theirs: Dim) -> bool:
    """Whether ``mine`` is better. A length beats a symbol; the file's own beats a made-up one and nothing."""
    if mine is None or mine == theirs or isinstance(theirs, int):
        return False
    return isinstance(mine, int) or theirs is None or is_made_up(theirs) or shown(theirs) != theirs


class _Check:
    """One value's declared shape against what is found with numbers."""

    def __init__(self, declared: Shape, *, guess: bool = False) -> None:
        """``guess``: whether an axis of which nothing is declared is looked at, too."""
        self.declared = list(declared)
        self.times = [0] * len(declared)
        self.right = [guess or axis is not None for axis in declared]
        self.own: dict[int, str] = {}
        self.rank = True
        self.seen = 0
        self.gone = 0

    def compare(self, found: Shape | None, numbers: Mapping[str, int], *, gone: bool = False) -> None:
        """``gone``: with these numbers nothing needs the value any more."""
        self.gone += gone
        if found is None:
            return
        self.seen += 1
        if len(found) != len(self.declared):
            self.rank = False
            return
        for axis, (said, length) in enumerate(zip(self.declared, found, strict=True)):
            if isinstance(length, int):
                self.times[axis] += 1
                if said is None and self.right[axis]:  # a number, if it is the same in all sets
                    self.declared[axis] = length
                self.right[axis] &= evaluate(self.declared[axis], numbers) == length

    def tell_apart(self, found: Shape | None, numbers: Mapping[str, int], equal: Collection[Dim]) -> None:
        """Axes that the file gives one name had each its own number, but those called one of ``equal``: which
        of them is this value's?"""
        for axis, said in enumerate(self.declared):
            length = found[axis] if found is not None and len(found) == len(self.declared) else None
            if not isinstance(length, int) or said in equal:
                continue
            own = [
                symbol for symbol, number in numbers.items() if called(symbol) == said and number == length
            ]
            if own:
                self.own[axis] = own[0]
            elif isinstance(said, int) or (said not in numbers and evaluate(said, numbers) is not None):
                self.right[axis] &= evaluate(said, numbers) == length

    def take_for_inputs(self, equal: Collection[Dim], symbols: Collection[str]) -> None:
        """Axes called one of ``equal`` that is an expression are those of the input that is called so."""
        named = {called(symbol): symbol for symbol in symbols if shown(symbol) not in symbols}
        self.own.update(
            (axis, named[said]) for axis, said in enumerate(self.declared) if said in equal and said in named
        )

    def decided(self) -> bool:
        return (
            not self.rank
            or self.gone >= ENOUGH
            or all(times >= ENOUGH or not right for times, right in zip(self.times, self.right, strict=True))
        )

    def held(self) -> Shape | None:
        """The axes that hold, None for the others; None where the number of axes is not sure."""
        if not self.rank or self.seen < ENOUGH:
            return None
        return tuple(
            self.own.get(axis, said) if self.right[axis] and self.times[axis] >= ENOUGH else None
            for axis, said in enumerate(self.declared)
        )


def _is_quotient(node: ir.Node, shape: Shape) -> bool:
    """Whether a node makes an axis of what is left for it, of which inference with symbols knows nothing."""
    return node.op_type == "Reshape" and not node.domain and any(map(is_made_up, shape))


def _sets(model: ir.Model, sets: Iterable[Sequence[int]] = SETS) -> Iterator[Lengths]:
    """Each symbol of the inputs another number."""
    symbols = dict.fromkeys(
        str(axis)
        for value in model.graph.inputs
        for axis in shown_shape(value) or ()
        if isinstance(axis, str)
    )
    plain = [symbol for symbol in symbols if not is_expression(symbol, symbols)]
    for numbers in sets:
        cycle = itertools.cycle(numbers)
        known = {symbol: next(cycle) for symbol in plain}
        for symbol in symbols:
            if (evaluate(symbol, known) or 0) < 1:
                known[symbol] = next(cycle)
        yield Lengths(known, next(cycle))


def _is_known(shape: Shape | None) -> bool:
    return shape is not None and all(isinstance(axis, int) for axis in shape)


def _knows(model: ir.Model, asked: Collection[str]) -> bool:
    """Whether a model's shapes are all known, of what is asked for and still there."""
    found = _shapes(model)
    return all(_is_known(found[name]) for name in asked if name in found)


def _told_apart(
    model: ir.Model, path: Path, numbers: dict[str, int], together: Collection[str]
) -> tuple[dict[str, Shape | None], dict[str, int], set[Dim]]:
    """Shapes where each axis has its own number, or that of its name where the model wants those to be equal;
    these numbers; and the names. ``together``: what can be known where axes of one name are equal."""
    equal: set[Dim] = set()
    found: dict[str, Shape | None] = {}
    for _ in range(MOST_TURNS if numbers else 0):
        copy = _inferred_at(model, path, functools.partial(_number, numbers=numbers), together, clashes=True)
        clashes = Clashes() if copy is None else clashes_in(copy, together)
        shapes = {} if copy is None else _shapes(copy)
        if copy is None or any(
            name in shapes and name not in clashes.unsure and not _is_known(shapes[name]) for name in together
        ):
            return {}, numbers, {called(symbol) for symbol in numbers}  # nobody knows what is in the way
        found = shapes | dict.fromkeys(clashes.unsure)
        wanted = wanted_equal(model, clashes.nodes, numbers) - equal
        if not wanted:
            break
        equal |= wanted
        numbers = made_equal(numbers, equal)
    return found, numbers, equal


def _number(axis: Dim, numbers: Mapping[str, int]) -> int:
    return axis if isinstance(axis, int) else numbers.get(axis or "", PRIMES[0])


def _shapes_at(
    model: ir.Model, path: Path, number: Callable[[Dim], int], asked: Collection[str]
) -> dict[str, Shape | None]:
    """Shapes of all values where inputs have these lengths; inferred again where one asked for lacks."""
    copy = _inferred_at(model, path, number, asked)
    return {} if copy is None else _shapes(copy) | dict.fromkeys(contradictions(copy))


def _inferred_at(
    model: ir.Model,
    path: Path,
    number: Callable[[Dim], int],
    asked: Collection[str],
    *,
    clashes: bool = False,
) -> ir.Model | None:
    """A copy of the model where inputs have these lengths; None where there can be none. ``clashes``: what is
    not sure need not be known."""
    sizes = {
        value.name or "": [number(axis) for axis in shape]
        for value in model.graph.inputs
        if (shape := shape_of(value)) is not None
    }

    def enough(copy: ir.Model) -> bool:
        unsure = clashes_in(copy).unsure if clashes else set()
        return _knows(copy, [name for name in asked if name not in unsure])

    try:
        return with_inputs(model, path, sizes, enough)
    except Exception as error:  # a damaged model, which cannot be copied or numbered: nothing is confirmed
        logger.debug("%s: %s", path, error)
        return None


def _shapes(model: ir.Model) -> dict[str, Shape | None]:
    """By name, None where nothing is known; what nothing needs any more is not there."""
    graph = model.graph
    values = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name or "": shape_of(value) for value in values}
