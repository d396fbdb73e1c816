"""The ranks as a mesh: one axis per strategy, as in GSPMD and PyTorch's DeviceMesh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sharding.common.bounds import MAX_RANKS
from sharding.common.text import parse_whole
from sharding.errors import SliceError

AXES = ("data", "pipeline", "tensor")
"""Also the default order: ranks of one tensor group are neighbours."""


@dataclass(frozen=True)
class Mesh:
    """Axis names and sizes, row-major: ranks that differ in the last axis only are neighbours.

    Every axis of `AXES` is there, with size 1 where a strategy is not used.
    """

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **sizes: int) -> Mesh:
        """A mesh in the order of the arguments; axes that are left out come first, with size 1."""
        missing = [(name, 1) for name in AXES if name not in sizes]
        return cls((*missing, *sizes.items()))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(size for _, size in self.axes)

    def length(self, axis: str) -> int:
        """The number of ranks along an axis."""
        return dict(self.axes)[axis]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis name -> where the rank stands on it."""
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, one for each axis."""
        number = 0
        for name, size in self.axes:
            number = number * size + coordinates[name]
        return number

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from this one on one axis only, in order; itself among them."""
        stride, length = self._stride(axis), self.length(axis)
        first = rank - rank // stride % length * stride
        return tuple(range(first, first + length * stride, stride))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """All groups along an axis, in the order of their first ranks."""
        stride, length = self._stride(axis), self.length(axis)
        firsts = (rank for rank in range(self.size) if rank // stride % length == 0)
        return [tuple(range(first, first + length * stride, stride)) for first in firsts]

    def _stride(self, axis: str) -> int:
        """How far apart ranks are that are neighbours on an axis."""
        names = [name for name, _ in self.axes]
        return math.prod(size for _, size in self.axes[names.index(axis) + 1 :])

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def parse_mesh(text: str) -> Mesh:
    """Reads ``data=2,tensor=4``. Raises `SliceError` for unknown, repeated or impossible axes."""
    sizes: dict[str, int] = {}
    for item in text.split(","):
        name, _, size = (part.strip() for part in item.partition("="))
        if name not in AXES or name in sizes:
            what = "is given twice" if name in sizes else "is not one of them"
            raise SliceError(
                f"The mesh {text[:80]!r} must be like data=2,tensor=4 with axes "
                f"{', '.join(AXES)}, each once; "
                f"{name[:40]!r} {what}."
            )
        length = parse_whole(size, 1, MAX_RANKS)
        if length is None:
            raise SliceError(
                f"The mesh {text[:80]!r} gives {name} the size {size[:40]!r}; expected a whole "
                f"number from 1 to {MAX_RANKS}."
            )
        sizes[name] = length
    mesh = Mesh.of(**sizes)
    if mesh.size > MAX_RANKS:
        raise SliceError(f"The mesh {text[:80]!r} has {mesh.size} ranks; at most {MAX_RANKS} are possible.")
    return mesh
