"""Concrete nodes for every operator rule, by operator family."""

from collections.abc import Set

from tests.sharding.proof import Case
from tests.sharding.rule_cases import (
    attention,
    blocks,
    elementwise,
    flow,
    fused,
    gpu_only,
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
    *attention.CASES,
    *fused.CASES,
    *flow.CASES,
    *gpu_only.CASES,
    *elementwise.CASES,
    *images.CASES,
    *indexing.CASES,
    *layout.CASES,
    *nets.CASES,
    *products.CASES,
    *quantized.CASES,
    *sequences.CASES,
    *shapes.CASES,
    *blocks.CASES,
]
EXTRA_BY_DOMAIN: dict[tuple[str, str], Set[str]] = {
    **attention.EXTRA,
    **flow.EXTRA,
    **fused.EXTRA,
    **gpu_only.EXTRA,
}
"""The same by domain and operator."""
EXTRA: dict[str, Set[str]] = {**images.EXTRA, **quantized.EXTRA, **sequences.EXTRA}
"""By operator: the kinds of options that the cases must run, besides split->split."""
