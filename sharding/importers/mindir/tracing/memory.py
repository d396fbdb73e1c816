"""What a network changes in place while it runs, as values.

A tensor that is changed in place has one *storage*, whatever names its results have. A `Memory` says what
each storage that was changed holds by now; it goes with the ways on which a program goes on (`outcomes`), so
that the sides of a branch and the rounds of a loop each see what was changed on their own way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sharding.importers.mindir.primitives.base import PRIMITIVES, Value

if TYPE_CHECKING:
    from sharding.importers.mindir.tracing.outcomes import Traced

_IN_PLACE = ("Inplace", "Assign", "ScatterUpdate", "ScatterNdUpdate", "ScatterNdAdd", "ScatterNdSub")
"""How the names begin of primitives that change their first operand."""


@dataclass(frozen=True)
class Cell:
    """What a storage held before it was first changed, and what it holds."""

    first: Value
    now: Value


@dataclass(frozen=True, eq=False)
class Memory:
    """The storages that were changed, by name. It is never changed itself."""

    cells: Mapping[str, Cell] = field(default_factory=dict)

    def now(self, value: Value) -> Value:
        """What the storage of a value holds."""
        cell = self.cells.get(storage(value)) if self.cells else None
        return value if cell is None else cell.now

    def written(self, old: Value, new: Value) -> Memory:
        """With other content in the storage of ``old``."""
        name = storage(old)
        first = self.cells[name].first if name in self.cells else old
        return Memory({**self.cells, name: Cell(first, replace(new, storage=name))})

    def holds(self, value: Traced) -> bool:
        """Whether the storage of a value was changed."""
        return isinstance(value, Value) and storage(value) in self.cells


def is_writing(op_type: str) -> bool:
    """Whether a primitive changes its first operand in place, and its conversion says to what."""
    return op_type.startswith(_IN_PLACE) and op_type in PRIMITIVES


def storage(value: Value) -> str:
    """The storage of a value: its own unless it says another."""
    return value.storage or value.name


def in_one_storage(x: Traced, y: Traced) -> bool:
    """Whether two operands are tensors that lie in the same place."""
    return isinstance(x, Value) and isinstance(y, Value) and storage(x) == storage(y)


def contents(item: Traced, memory: Memory) -> Traced:
    """An operand as it is by now."""
    if not memory.cells:
        return item
    if isinstance(item, tuple):
        return tuple(contents(part, memory) for part in item)
    return memory.now(item) if isinstance(item, Value) else item


def detached(item: Traced, name: str) -> Traced:
    """An operand that later changes of what it was made of do not change: ``name`` begins its storages."""
    if isinstance(item, tuple):
        return tuple(detached(part, f"{name}.{number}") for number, part in enumerate(item))
    return replace(item, storage=name) if isinstance(item, Value) else item
