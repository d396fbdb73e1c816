"""What one rank runs, as `sharding.planning.emit` builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.rules.base import Dim
from sharding.slices.placement import Placement

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class HeldWeight:
    """A weight in a rank's graph: ``name`` there, ``source`` in the model, and how it is cut."""

    value: ir.Value
    source: str
    placement: Placement


@dataclass(frozen=True)
class Collective:
    """A collective in the order of execution; ``shape`` and ``dtype`` are those of what each rank puts in."""

    op: str
    tensor: str
    dtype: str
    shape: tuple[Dim, ...]
    stage: int = 0
    within: str = ""
    """The bodies that it lies in, from the outermost in, as ``encoder/If (then)``."""


@dataclass
class RankGraph:
    """What one rank runs."""

    inputs: list[ir.Value]
    outputs: list[ir.Value]
    nodes: list[ir.Node]
    weights: list[HeldWeight]
    constants: list[ir.Value]
    """Small values that slicing added; each has its data."""
    collectives: list[Collective]
