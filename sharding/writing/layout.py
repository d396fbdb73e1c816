"""Which file of a slice folder holds which part of which weight, and where in it.

A part that one rank alone holds lies in its own ``rank_R.data``. What several ranks hold is stored once:
``shared.data`` for all ranks or several stages, ``stage_S.data`` for the ranks of a stage, and
``part_P_of_N.data`` for those that hold the same of N parts. The layout follows from the plan alone, so that
hosts which write a rank each agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sharding.common.storage import PAGE
from sharding.graph.fold import SMALL_ELEMENTS
from sharding.onnx_files.tensors import WeightTensor
from sharding.planning.plan import Plan
from sharding.planning.rank_graph import RankGraph
from sharding.slices.placement import Placement, Split, held_bytes

INLINE_BYTES = 1024
"""Weights up to this size stay in the model file: ONNX Runtime wants shapes and axes there."""
PAGE_BYTES = 1 << 16
"""Weights of this size and more start on a page, so that mapped parts share none with a neighbour."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class Part:
    """One part of a weight: ``number`` of those that its placement makes on the tensor ranks."""

    weight: str
    placement: Placement
    number: int


@dataclass(frozen=True)
class Place:
    """Bytes of a file of the slice folder."""

    file: str
    offset: int
    length: int


def part_of(weight: str, placement: Placement, tensor_rank: int) -> Part:
    """The part that a rank of the tensor group holds."""
    return Part(weight, placement, placement.part(tensor_rank) if isinstance(placement, Split) else 0)


def alignment_of(length: int) -> int:
    """Of what a part of so many bytes starts at a multiple."""
    return PAGE if length >= PAGE_BYTES else _ALIGNMENT


def is_inline(weight: WeightTensor, placement: Placement, world: int) -> bool:
    """Whether ranks have their part in the model file."""
    length = held_bytes(weight.nbytes, placement, world)
    integers = weight.tensor.dtype.is_integer() and weight.tensor.size <= SMALL_ELEMENTS
    return weight.is_text or length <= INLINE_BYTES or (integers and weight.extent is None)


class Layout:
    """The places of all parts, of the shared files first and of each rank's own as it is added."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._order = {name: number for number, name in enumerate(plan.source.weights)}
        self._shared: dict[Part, Place] = {}
        self.sizes: dict[str, int] = {}
        """File -> bytes."""
        self.parts: dict[str, list[Part]] = {}
        """File -> what lies in it, in order."""
        files: dict[str, list[Part]] = {}
        for part, holders in self._holders().items():
            if len(holders) > 1:
                files.setdefault(self._name(part, holders), []).append(part)
        for file, parts in files.items():
            self._shared.update(self._fill(file, parts))

    def _holders(self) -> dict[Part, set[tuple[int, int]]]:
        """Part -> the (stage, tensor rank) that hold it."""
        plan = self.plan
        found: dict[Part, set[tuple[int, int]]] = {}
        for stage, held in enumerate(plan.stage_held):
            for name, placements in held.items():
                for placement in placements:
                    if is_inline(plan.source.weights[name], placement, plan.tensor_size):
                        continue
                    for place in range(plan.tensor_size):
                        found.setdefault(part_of(name, placement, place), set()).add((stage, place))
        return found

    def _name(self, part: Part, holders: set[tuple[int, int]]) -> str:
        stages = {stage for stage, _ in holders}
        of_stage = f"stage_{min(stages)}" if len(stages) == 1 and self.plan.pipeline.count > 1 else ""
        if not isinstance(part.placement, Split):
            return f"{of_stage or 'shared'}.data"
        parts = part.placement.parts(self.plan.tensor_size)
        return f"{of_stage and of_stage + '_'}part_{part.number}_of_{parts}.data"

    def add_rank(self, rank: int, graph: RankGraph) -> dict[Part, Place]:
        """The places of all parts that a rank reads from files."""
        plan = self.plan
        place = plan.mesh.coordinates(rank)["tensor"]
        parts = [
            part_of(held.source, held.placement, place)
            for held in graph.weights
            if not is_inline(plan.source.weights[held.source], held.placement, plan.tensor_size)
        ]
        own = self._fill(f"rank_{rank}.data", [part for part in parts if part not in self._shared])
        return {part: self._shared[part] if part in self._shared else own[part] for part in parts}

    def _fill(self, file: str, parts: Iterable[Part]) -> dict[Part, Place]:
        """Places parts in a file, in the order of the model's weights."""
        placed, end = {}, 0
        for part in self._sorted(parts):
            size = self.plan.source.weights[part.weight].nbytes
            length = held_bytes(size, part.placement, self.plan.tensor_size)
            alignment = alignment_of(length)
            offset = -(-end // alignment) * alignment
            placed[part], end = Place(file, offset, length), offset + length
        if placed:
            self.sizes[file], self.parts[file] = end, list(placed)
        return placed

    def _sorted(self, parts: Iterable[Part]) -> Sequence[Part]:
        return sorted(parts, key=lambda part: (self._order[part.weight], str(part.placement), part.number))
