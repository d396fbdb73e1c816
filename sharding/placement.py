"""Where the data of one value lies over the ranks.

The three placements are those of the SPMD literature (GSPMD, PyTorch DTensor): every rank holds all of the
value, each holds one part of one axis, or each holds a summand.
"""

from __future__ import annotations

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
    """

    axis: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"split:{self.axis}" if self.blocks == 1 else f"split:{self.axis}/{self.blocks}"


@dataclass(frozen=True)
class Partial:
    """The value is the sum of what the ranks hold; each holds an array of the full shape."""

    def __str__(self) -> str:
        return "partial"


Placement = Replicated | Split | Partial
REPLICATED = Replicated()
PARTIAL = Partial()
