"""Placements that a user, an annotation or a saved plan demands, applied to a graph's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.placement import Placement

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.options import SliceOptions
    from sharding.read import Source
    from sharding.steps import Step


def pin(source: Source, graph: Sequence[Step], options: SliceOptions) -> Mapping[ir.Value, Placement]:
    """Leaves each step only the options that agree with what is demanded, and returns the values that must be
    brought to a placement as soon as they are produced. Raises `SliceError` for what cannot be done."""
    return {}
