"""Bytes of what ranks keep from one step to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharding.common.text import counted, human_bytes
from sharding.graph.sizes import tensor_bytes
from sharding.slices.placement import REPLICATED, held_bytes, parse_placement
from sharding.slices.state import StatePair

Shape = Sequence["int | str | None"]
Kept = tuple[StatePair, int, str, "Shape | None"]
"""A pair, its pipeline stage, its element type, and its whole shape, as far as it is known."""


@dataclass(frozen=True)
class StateSize:
    """Of one sequence; ``rank``: of the rank that keeps most."""

    pairs: int
    token_bytes: int
    """Whole, for each further position."""
    rank_token_bytes: int
    fixed_bytes: int
    """Whole, of the pairs that do not grow."""
    rank_fixed_bytes: int
    placements: tuple[str, ...]

    def text(self) -> str:
        """As one line: ``16 pairs, 2.0 KiB per token and rank (4.0 KiB whole), split:1``."""
        parts = [counted(self.pairs, "pair")]
        if self.token_bytes:
            each = f"{human_bytes(self.rank_token_bytes)} per token and rank"
            parts.append(f"{each} ({human_bytes(self.token_bytes)} whole)")
        if self.fixed_bytes or not self.token_bytes:
            besides = " besides" if self.token_bytes else ""
            each = f"{human_bytes(self.rank_fixed_bytes)} per rank{besides}"
            parts.append(f"{each} ({human_bytes(self.fixed_bytes)} whole)")
        return ", ".join([*parts, *self.placements])

    def to_json(self) -> dict[str, object]:
        """As plain JSON values."""
        return {
            "pairs": self.pairs,
            "token_bytes": self.token_bytes,
            "rank_token_bytes": self.rank_token_bytes,
            "fixed_bytes": self.fixed_bytes,
            "rank_fixed_bytes": self.rank_fixed_bytes,
            "placements": list(self.placements),
        }


def state_size(kept: Iterable[Kept], world: int, dims: Mapping[str, int]) -> StateSize | None:
    """What ``world`` ranks of each stage keep; None where there is no state. A symbol that ``dims`` does not
    name counts as it does in the planner's estimates."""
    kept = list(kept)
    if not kept:
        return None
    whole = [0, 0]
    stages: dict[int, list[int]] = {}
    for pair, stage, dtype, shape in kept:
        axes = list(shape or ())
        if pair.axis is not None and pair.axis < len(axes):
            axes[pair.axis] = 1
        size = tensor_bytes(dtype, axes, dims) if shape is not None else 0
        number = 0 if pair.kind == "append" else 1
        whole[number] += size
        placement = parse_placement(pair.placement) or REPLICATED
        stages.setdefault(stage, [0, 0])[number] += held_bytes(size, placement, world)
    token, fixed = (max(sizes[number] for sizes in stages.values()) for number in range(2))
    placements = tuple(dict.fromkeys(pair.placement for pair, *_ in kept))
    return StateSize(len(kept), whole[0], token, whole[1], fixed, placements)


def joined_shape(before: Shape | None, after: Shape | None) -> Shape | None:
    """What an input's and an output's shape say of both: a number, where either knows it."""
    if before is None or after is None or len(before) != len(after):
        return after if before is None else before
    return [
        a if isinstance(a, int) or not isinstance(b, int) else b for a, b in zip(before, after, strict=True)
    ]
