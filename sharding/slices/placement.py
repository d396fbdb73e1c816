"""Where the data of one value lies over the ranks.

The three placements are those of the SPMD literature (GSPMD, PyTorch DTensor): every rank holds all of the
value, each holds one part of one axis, or each holds a summand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Replicated:
    """Every rank holds the whole value."""

    def __str__(self) -> str:
        return "replicated"


@dataclass(frozen=True)
class Split:
    """Rank r of n holds the r-th of n equal parts of ``axis`` (never negative).

    ``blocks`` > 1 means that the axis is made of that many equal blocks and each rank holds its part of every
    one of them, in order (as a fused query-key-value weight needs: blocks=3). A plain split has blocks=1.

    ``copies`` > 1 means that there are only n / copies parts and rank r holds part r // copies, so that
    neighbouring ranks hold the same (as key-value heads fewer than ranks need).
    """

    axis: int
    blocks: int = 1
    copies: int = 1

    def parts(self, world: int) -> int:
        """How many different parts there are on this many ranks."""
        return world // self.copies

    def part(self, rank: int) -> int:
        """Which of the parts a rank holds."""
        return rank // self.copies

    def __str__(self) -> str:
        blocks = "" if self.blocks == 1 else f"/{self.blocks}"
        return f"split:{self.axis}{blocks}" + ("" if self.copies == 1 else f"*{self.copies}")


@dataclass(frozen=True)
class Partial:
    """The value is the sum of what the ranks hold; each holds an array of the full shape."""

    def __str__(self) -> str:
        return "partial"


Placement = Replicated | Split | Partial
REPLICATED = Replicated()
PARTIAL = Partial()


def is_finer(part: Split, whole: Split) -> bool:
    """Whether each rank's part under ``part`` is a part of what it holds under ``whole``."""
    same = part.axis == whole.axis and part.blocks == whole.blocks
    return same and part.copies < whole.copies and whole.copies % part.copies == 0


def held_bytes(size: int, placement: Placement, world: int) -> int:
    """Bytes that each rank holds of a weight of ``size`` bytes under a placement."""
    return size // placement.parts(world) if isinstance(placement, Split) else size


_SPLIT = re.compile(r"split:(\d{1,4})(?:/([1-9]\d{0,8}))?(?:\*([1-9]\d{0,3}))?")


def parse_placement(text: str) -> Placement | None:
    """The placement that prints as ``text``; None if no placement does."""
    if text in {"replicated", "partial"}:
        return REPLICATED if text == "replicated" else PARTIAL
    found = _SPLIT.fullmatch(text)
    return None if found is None else Split(int(found[1]), int(found[2] or 1), int(found[3] or 1))
