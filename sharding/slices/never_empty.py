"""Axes of a model's inputs that must not be empty: some of ONNX Runtime's operators end a process over it.

Found once, by the symbols of the axes: in the graph that is sliced, or in a whole model that is loaded. All
ranks of a group judge a request by the same. Imports only the standard library: ranks read manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharding.slices.domains import MICROSOFT
from sharding.slices.manifest_fields import Field

Shape = Sequence["int | str | None"]

_FATAL: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("", "GRU"): ((0, 0), (0, 1)),
    ("", "LSTM"): ((0, 1),),
    (MICROSOFT, "GroupQueryAttention"): ((0, 0), (3, 0), (4, 0), (5, 0)),
}
"""Operator -> which of its inputs, and which axis of that: over these, where their length is 0, it divides by
zero or fails an assertion (ONNX Runtime 1.31).

Of `Einsum`, some products are fatal, too, but most are not, and no short rule tells them apart.
"""


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
    return _key(domain, operator) in _FATAL


def find(
    inputs: Iterable[tuple[str, Shape]], nodes: Iterable[tuple[str, str, Sequence[Shape | None]]]
) -> tuple[NeverEmpty, ...]:
    """``inputs``: those of the model that must be fed; ``nodes``: domain, operator and the shapes of what
    it is given. Axes are of one length where they have one symbol."""
    axes: dict[str, dict[str, int]] = {}
    for name, shape in inputs:
        for axis, symbol in enumerate(shape):
            if isinstance(symbol, str):
                axes.setdefault(symbol, {}).setdefault(name, axis)
    found: dict[str, NeverEmpty] = {}
    for domain, operator, shapes in nodes:
        for place, axis in _FATAL.get(_key(domain, operator), ()):
            given = shapes[place] if place < len(shapes) else None
            symbol = given[axis] if given is not None and axis < len(given) else None
            if isinstance(symbol, str) and symbol in axes:
                found.setdefault(symbol, NeverEmpty(operator, axes[symbol]))
    return tuple(found.values())


def read(items: Field) -> tuple[NeverEmpty, ...]:
    """What a manifest says."""
    return tuple(
        NeverEmpty(item.text("operator"), {name: axis.integer(0) for name, axis in item["axes"].entries()})
        for item in items.items()
    )


def _key(domain: str, operator: str) -> tuple[str, str]:
    return ("" if domain == "ai.onnx" else domain), operator
