"""Axes of a model's inputs that must not be empty: some of ONNX Runtime's operators end a process over it.

Found once, by the symbols of the axes: in the graph that is sliced, or in a whole model that is loaded. All
ranks of a group judge a request by the same. Imports only the standard library: ranks read manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from sharding.slices.domains import MICROSOFT
from sharding.slices.manifest_fields import Field

Shape = Sequence["int | str | None"]

_FATAL: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("", "GRU"): ((0, 0), (0, 1)),
    ("", "LSTM"): ((0, 1),),
    (MICROSOFT, "GroupQueryAttention"): ((0, 0), (3, 0), (4, 0), (5, 0)),
}
"""Operator -> which of its inputs, and which axis of that: over these, where their length is 0, it divides by
zero or fails an assertion (ONNX Runtime 1.31)."""
_PRODUCT = ("", "Einsum")
_SOME = 2
"""Stands for a length that is neither 0 nor 1."""


class Operator(NamedTuple):
    """A node of a model: what it is, and the shapes of what it is given."""

    domain: str
    name: str
    shapes: Sequence[Shape | None]
    equation: str = ""
    """Of an `Einsum`."""


@dataclass(frozen=True)
class NeverEmpty:
    """Inputs' axes of one length, which an operator does not bear to be 0."""

    operator: str
    axes: Mapping[str, int]
    """Name of an input -> its axis."""

    def to_json(self) -> dict[str, object]:
        """As manifests have it."""
        return {"operator": self.operator, "axes": dict(self.axes)}


def is_fatal(domain: str, operator: str) -> bool:
    """Whether there is any length that ends a process in such an operator."""
    return _key(domain, operator) in _FATAL or _key(domain, operator) == _PRODUCT


def find(inputs: Iterable[tuple[str, Shape]], nodes: Iterable[Operator]) -> tuple[NeverEmpty, ...]:
    """``inputs``: those of the model that must be fed. Axes are of one length where they have one symbol."""
    axes: dict[str, dict[str, int]] = {}
    for name, shape in inputs:
        for axis, symbol in enumerate(shape):
            if isinstance(symbol, str):
                axes.setdefault(symbol, {}).setdefault(name, axis)
    found: dict[str, NeverEmpty] = {}
    for node in nodes:
        for symbol in _fatal_in(node):
            if isinstance(symbol, str) and symbol in axes:
                found.setdefault(symbol, NeverEmpty(node.name, axes[symbol]))
    return tuple(found.values())


def _fatal_in(node: Operator) -> Iterator[int | str | None]:
    """The lengths that must not be 0 where all others are not."""
    key = _key(node.domain, node.name)
    for place, axis in _FATAL.get(key, ()):
        given = node.shapes[place] if place < len(node.shapes) else None
        if given is not None and axis < len(given):
            yield given[axis]
    if key == _PRODUCT:
        shapes = [shape for shape in node.shapes if shape is not None]
        if len(shapes) == len(node.shapes):
            for symbol in dict.fromkeys(length for shape in shapes for length in shape):
                lengths = [[_number(length, symbol) for length in shape] for shape in shapes]
                if isinstance(symbol, str) and product_ends_process(node.equation, lengths):
                    yield symbol


def _number(length: int | str | None, empty: int | str | None) -> int:
    if length == empty:
        return 0
    return length if isinstance(length, int) else _SOME


def product_ends_process(equation: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether ONNX Runtime 1.31 divides by zero in an `Einsum` of these lengths.

    Before all else it puts the axes of each input into the order in which the whole equation names them,
    those of an ellipsis first. Where that moves one axis past others, or a run of axes from the end, it
    divides by their length, and by the numbers of elements in front and behind. An input that names one
    index twice is put in order in another way, which is not followed here.
    """
    terms = equation.replace(" ", "").split("->")[0].split(",")
    named = [_indices(term, len(shape)) for term, shape in zip(terms, shapes, strict=False)]
    order: dict[str | int, int] = {}
    for names in named:
        for name in names:
            order.setdefault(name, name if isinstance(name, int) else len(order))
    return any(
        _divides_by_zero([order[name] for name in names], shape)
        for names, shape in zip(named, shapes, strict=False)
        if len(set(names)) == len(names) == len(shape)
    )


def _indices(term: str, rank: int) -> list[str | int]:
    """A letter for each axis, and for those of an ellipsis their places, counted from its end."""
    before, dots, behind = term.partition("...")
    hidden = rank - len(before) - len(behind) if dots else 0
    return [*before, *range(-hidden, 0), *behind]


def _divides_by_zero(places: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether putting axes into the order of their ``places`` divides by zero."""
    moved = [axis for axis, _ in sorted(enumerate(places), key=lambda item: item[1])]
    long = [axis for axis in moved if shape[axis] != 1]
    if long == sorted(long):  # nothing but axes of length 1 has moved
        return False
    first, *_, last = (place for place, axis in enumerate(moved) if place != axis)
    start = moved[first]
    if moved[first : last + 1] != [*range(start, last + 1), *range(first, start)]:
        return False
    # Two runs of axes have changed places: the last one is counted, or the first where that is one axis.
    if start < last and start - first > 1 and last + 1 < len(shape):
        return False
    block = shape[first:start] if start < last and start - first == 1 else shape[start : last + 1]
    return 0 in (prod(shape[:first]), prod(block), prod(shape[last + 1 :]))


def read(items: Field) -> tuple[NeverEmpty, ...]:
    """What a manifest says."""
    return tuple(
        NeverEmpty(item.text("operator"), {name: axis.integer(0) for name, axis in item["axes"].entries()})
        for item in items.items()
    )


def _key(domain: str, operator: str) -> tuple[str, str]:
    return ("" if domain == "ai.onnx" else domain), operator
