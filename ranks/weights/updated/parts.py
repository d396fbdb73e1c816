"""Which part of a whole weight a rank's model holds, under which name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.errors import ModelError, ShardError
from ranks.weights.updated.values import Spec, number_named
from sharding.slices.placement import REPLICATED, Placement, Split, held_bytes, parse_placement

if TYPE_CHECKING:
    import onnx

    from ranks.models.part import Part
    from sharding.common.arrays import Array
    from sharding.slices.manifest import Manifest


@dataclass(frozen=True)
class Share:
    """A weight of a rank's model: its part, under ``placement``, of some columns of a whole weight."""

    held: str
    placement: Placement
    rank: int
    size: int
    columns: tuple[int, slice] | None = None
    """Axis and columns; None for all."""

    def of(self, whole: Array) -> Array:
        """The values of the part."""
        from sharding.onnx_files.tensors import cut

        if self.columns is not None:
            axis, piece = self.columns
            whole = whole[(slice(None),) * axis + (piece,)]
        return cut(whole, self.placement, self.rank, self.size)


@dataclass(frozen=True)
class Whole:
    """A variable weight as the caller knows it, and what this rank holds of it (for other stages nothing)."""

    spec: Spec
    shares: tuple[Share, ...]
    own: bool = False
    """Whether only this rank holds it: other ranks may have other values under the same name."""


def wholes(  # noqa: PLR0917 - each says another thing about the rank model
    names: Sequence[str],
    model: onnx.ModelProto,
    manifest: Manifest | None,
    part: Part | None,
    place: tuple[int, int],
    file: Path,
) -> dict[str, Whole]:
    """The variable weights of a rank model by the names that they have in the source model.

    ``place``: this rank and the number of ranks, where no mesh says its place. Without a manifest the rank
    model's own names and shapes count. Raises `ModelError` for a weight that the slices do not hold as the
    source model had it.
    """
    if part is not None:
        place = part.place["tensor"], part.mesh.length("tensor")
    held = {tensor.name: Spec(tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer}
    finder = _Finder(held, manifest, part, place, file)
    return {name: finder.whole(name) for name in dict.fromkeys(names)}


class _Finder:
    def __init__(
        self,
        held: Mapping[str, Spec],
        manifest: Manifest | None,
        part: Part | None,
        place: tuple[int, int],
        file: Path,
    ) -> None:
        self.held, self.manifest, self.file = held, manifest, file
        self.rank, self.size = place
        self.stage = part.place["pipeline"] if part is not None else 0

    def whole(self, name: str) -> Whole:
        weights = self.manifest.weights if self.manifest is not None else {}
        if name in weights:
            spec = self._spec(name)
            return Whole(spec, self._shares(name, spec, None))
        pieces = self._pieces(name)
        if pieces:
            return self._of_pieces(name, pieces)
        if name in self.held:
            return Whole(self.held[name], (Share(name, REPLICATED, self.rank, self.size),), own=True)
        folder = self.file.parent if self.manifest else self.file
        made = next((key for key, entry in weights.items() if name in entry.made_of), None)
        if made is not None:
            raise ModelError(
                f"{folder} holds no weight {name[:200]!r}: slicing computed the weight {made[:200]!r} from "
                f"{', '.join(map(repr, weights[made].made_of))[:400]}. Make {made[:200]!r} variable, and "
                "update it with a whole new value."
            )
        raise ModelError(
            f"{folder} holds no weight {name[:200]!r}: the model has none, or slicing made another one of it."
        )

    def _spec(self, name: str) -> Spec:
        assert self.manifest is not None
        entry = self.manifest.weights[name]
        number = number_named(entry.dtype)
        if number is None:
            raise ModelError(f"The weight {name!r} has the type {entry.dtype}, which cannot be variable.")
        return Spec(number, entry.shape)

    def _shares(self, name: str, spec: Spec, columns: tuple[int, slice] | None) -> tuple[Share, ...]:
        """The parts of a weight of the manifest in this rank's model."""
        assert self.manifest is not None
        entry = self.manifest.weights[name]
        placement = parse_placement(entry.placement)
        assert placement is not None, "a manifest is checked as it is read"
        shares = []
        for held, found in self._copies(name, placement):
            if self.held[held] != Spec(spec.element, _local(spec.shape, found, self.size)):
                raise ShardError(
                    f"{self.file} holds {held!r} as {self.held[held]}, which is no part of the weight "
                    f"{name!r} ({spec}) under {found}: slice the model again."
                )
            shares.append(Share(held, found, self.rank, self.size, columns))
        if not shares and self.stage in entry.stages:
            raise ModelError(
                f"{self.file} does not hold the weight {name!r} as the model has it, so that it cannot be "
                "variable: slicing computed another constant of it, or left it to one rank, as the bias of a "
                "Gemm whose weight is split by rows. Write such a bias as an Add behind the product."
            )
        return tuple(shares)

    def _copies(self, name: str, placement: Placement) -> list[tuple[str, Placement]]:
        """The names under which a weight is held, and how: the first is its own, others say how."""
        others = []
        for held in self.held:
            if held.startswith(f"{name}/"):
                found = parse_placement(re.sub(r"_\d+$", "", held[len(name) + 1 :]))
                if found is not None:
                    others.append((held, found))
        if name not in self.held:
            return others
        if any(found == placement for _, found in others):
            raise ModelError(
                f"{self.file} holds the weight {name!r} in several ways, and its manifest does not say which "
                "is which: it cannot be variable."
            )
        return [(name, placement), *others]

    def _pieces(self, name: str) -> list[tuple[int, str]]:
        """Weights of a product that slicing took apart: the column that each starts at, and its name."""
        pattern = re.compile(re.escape(name) + r"/columns_(\d{1,12})")
        found = [
            (int(match[1]), key)
            for key in (self.manifest.weights if self.manifest is not None else ())
            if (match := pattern.fullmatch(key))
        ]
        return sorted(found)

    def _of_pieces(self, name: str, pieces: Sequence[tuple[int, str]]) -> Whole:
        specs = [self._spec(key) for _, key in pieces]
        axis = self._axis([start for start, _ in pieces], specs)
        if axis is None:
            raise ModelError(
                f"The weight {name!r} was taken apart by slicing in a way that its manifest does not tell: "
                "it cannot be variable."
            )
        start = 0
        shares: list[Share] = []
        for (_, key), spec in zip(pieces, specs, strict=True):
            end = start + spec.shape[axis]
            shares += self._shares(key, spec, (axis, slice(start, end)))
            start = end
        shape = specs[0].shape
        return Whole(Spec(specs[0].element, (*shape[:axis], start, *shape[axis + 1 :])), tuple(shares))

    @staticmethod
    def _axis(starts: Sequence[int], specs: Sequence[Spec]) -> int | None:
        """The axis that was cut: the one whose lengths are in proportion to the columns."""
        gaps = [after - before for before, after in itertools.pairwise(starts)]
        if starts[0] != 0 or not gaps or len({len(spec.shape) for spec in specs}) != 1:
            return None
        found = []
        for axis in range(len(specs[0].shape)):
            others = {(*spec.shape[:axis], *spec.shape[axis + 1 :]) for spec in specs}
            scales = {spec.shape[axis] / gap for spec, gap in zip(specs, gaps, strict=False)}
            if len(others) == len(scales) == 1 and scales.pop().is_integer():
                found.append(axis)
        return found[0] if len(found) == 1 else None


def _local(shape: tuple[int, ...], placement: Placement, size: int) -> tuple[int, ...]:
    if not isinstance(placement, Split):
        return shape
    if placement.axis >= len(shape):
        return ()
    length = held_bytes(shape[placement.axis], placement, size)
    return (*shape[: placement.axis], length, *shape[placement.axis + 1 :])
