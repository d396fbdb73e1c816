"""Concrete nodes for every operator rule, by operator family."""

from collections.abc import Set

from tests.sharding.proof import Case
from tests.sharding.rule_cases import (
    elementwise,
    images,
    indexing,
    layout,
    nets,
    products,
    quantized,
    sequences,
    shapes,
)

CASES: list[Case] = [
    *elementwise.CASES,
    *images.CASES,
    *indexing.CASES,
    *layout.CASES,
    *nets.CASES,
    *products.CASES,
    *quantized.CASES,
    *sequences.CASES,
    *shapes.CASES,
]
EXTRA: dict[str, Set[str]] = {**images.EXTRA, **quantized.EXTRA, **sequences.EXTRA}
"""By operator: the kinds of options that the cases must run, besides split->split."""
