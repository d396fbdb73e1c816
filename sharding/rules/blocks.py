"""Which block counts a graph needs, by axis length (see ``Split.blocks``).

An axis that is cut or joined into equal pieces somewhere (a fused query-key-value weight, a concatenation of
channels) is best held as blocks everywhere else. The rules of Split, Concat, Reshape, Slice and Tile name
their block counts by themselves; this collects them, so that all other rules offer the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sharding.rules.base import RULES, Dim, NodeView
from sharding.slices.placement import Placement, Split

MAX_PER_LENGTH = 4
"""Block counts kept for one length, the smallest first: each makes one more option in many nodes."""
ROUNDS = 3
"""Block counts found in one round make others appear in the next (a concatenation of concatenations)."""


def block_counts(nodes: Iterable[NodeView]) -> dict[int, tuple[int, ...]]:
    """Axis length -> block counts above 1, ascending, for ``NodeView.block_counts`` of all these nodes."""
    views = list(nodes)
    found: dict[int, tuple[int, ...]] = {}
    for _ in range(ROUNDS):
        counts: dict[int, set[int]] = {}
        for view in views:
            rule = RULES.get((view.domain, view.op_type))
            if rule is None:
                continue
            for option in rule(replace(view, block_counts=found)):
                _collect(option.inputs, view.shapes, counts)
                _collect(option.outputs, view.output_shapes, counts)
        latest = {length: tuple(sorted(some)[:MAX_PER_LENGTH]) for length, some in counts.items()}
        if latest == found:
            break
        found = latest
    return found


def _collect(
    placements: Sequence[Placement], shapes: Sequence[Sequence[Dim] | None], counts: dict[int, set[int]]
) -> None:
    for placement, shape in zip(placements, shapes, strict=False):
        if isinstance(placement, Split) and placement.blocks > 1 and shape is not None:
            # A file may say of an output what cannot be: another number of axes than its operator gives it.
            length = shape[placement.axis] if placement.axis < len(shape) else None
            if isinstance(length, int):
                counts.setdefault(length, set()).add(placement.blocks)
