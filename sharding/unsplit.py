"""The sentence about a model of which no weight can be split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.text import counted

if TYPE_CHECKING:
    from sharding.plan import Plan
    from sharding.tensors import WeightTensor


def nothing_splits(plan: Plan) -> str:
    """Why nothing is split, and what to do."""
    source, ranks = plan.source, plan.tensor_size
    names = plan.whole_weights or tuple(plan.weights)
    if not names:
        return f"{source.path} has no weights, so there is nothing to split over {ranks} ranks."
    largest: WeightTensor = max((source.weights[name] for name in names), key=lambda weight: weight.nbytes)
    what = f"the largest, {largest.name!r}, is {largest.dtype} {list(largest.shape)}"
    if any(size > 1 and size % ranks == 0 for size in largest.shape):
        # The number of ranks is not the reason.
        if plan.whole:
            why = (
                f"the operators that use them ({', '.join(sorted(plan.whole))}) cannot work on a part; {what}"
            )
        else:
            why = f"all of them are vectors, or too small to be worth a collective; {what}"
        advice = "let every rank hold the whole model"
    else:
        why = f"used by {', '.join(sorted(plan.whole)) or 'operators without large weights'}; {what}"
        advice = "choose a number of ranks that divides its axes, or let every rank hold the whole model"
    return (
        f"{source.path}: no weight can be split over {counted(ranks, 'rank')} ({why}): {advice} "
        "with --allow-replicated (in Python: allow_replicated=True)."
    )
