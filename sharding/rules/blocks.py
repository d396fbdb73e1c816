"""Which block counts a graph needs, by axis length (see ``Split.blocks``).

An axis that is cut or joined into equal pieces somewhere (a fused query-key-value weight, a concatenation of
channels) is best held as blocks everywhere else. The rules of Split, Concat, Reshape, Slice and Tile name
their block counts by themselves; this collects them, so that all other rules offer the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace

from sharding.rules.base import RULES, Dim, NodeView, Option
from sharding.slices.placement import Placement, Split

MAX_PER_LENGTH = 4
"""Block counts kept for one length, the smallest first: each makes one more option in many nodes."""
ROUNDS = 3
"""Block counts found in one round make others appear in the next (a concatenation of concatenations)."""


class Asked(Mapping[int, Sequence[int]]):
    """Block counts by length that remember which lengths a rule asks for."""

    def __init__(self, counts: Mapping[int, Sequence[int]]) -> None:
        self.counts = counts
        self.lengths: set[int] = set()

    def __getitem__(self, length: int) -> Sequence[int]:
        self.lengths.add(length)
        return self.counts.get(length, ())  # no exception for each length that has none

    def __iter__(self) -> Iterator[int]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


@dataclass
class Offer:
    """What a rule offers for a node with some block counts, and for which lengths it asked."""

    view: NodeView
    options: list[Option]
    lengths: set[int]


def offered(view: NodeView, counts: Mapping[int, Sequence[int]]) -> Offer:
    """Asks a node's rule; the options go on with a view that does not remember what is asked."""
    asked = Asked(counts)
    rule = RULES.get((view.domain, view.op_type))
    options = [] if rule is None else rule(replace(view, block_counts=asked))
    plain = view if not counts and not view.block_counts else replace(view, block_counts=counts)
    return Offer(plain, options, asked.lengths)


def block_counts(offers: MutableSequence[Offer]) -> dict[int, tuple[int, ...]]:
    """Axis length -> block counts above 1, ascending, for ``NodeView.block_counts`` of all these nodes.

    ``offers``: what the rules offer without any. Each is brought up to date: with the counts that are found.
    """
    found: dict[int, tuple[int, ...]] = {}
    for _ in range(ROUNDS):
        counts: dict[int, set[int]] = {}
        for offer in offers:
            for option in offer.options:
                _collect(option.inputs, offer.view.shapes, counts)
                _collect(option.outputs, offer.view.output_shapes, counts)
        latest = {length: tuple(sorted(some)[:MAX_PER_LENGTH]) for length, some in counts.items()}
        changed = {length for length in {*latest, *found} if latest.get(length) != found.get(length)}
        if not changed:
            break
        found = latest
        for index, offer in enumerate(offers):
            if not changed.isdisjoint(offer.lengths):
                offers[index] = offered(offer.view, found)
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
