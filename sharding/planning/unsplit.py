"""The sentences about models of which no weight can be split, or almost none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sharding.common.text import counted

if TYPE_CHECKING:
    from sharding.onnx_files.tensors import WeightTensor
    from sharding.planning.plan import Plan
    from sharding.slices.manifest import Manifest

HARDLY = 0.9
"""A plan that leaves a rank this part of the weights or more splits almost nothing."""


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


def hardly_splits(held: int, total: int, tensor: int, whole: Mapping[str, int]) -> str:
    """What to know of a plan of which almost nothing is split; empty if enough is.

    ``held``: the bytes of weights of a rank of each pipeline stage, together; ``total``: those of the whole
    weights of each stage; ``tensor``: the ranks that share a stage; ``whole``: the operators that hold a
    weight worth splitting, and how many nodes.
    """
    if tensor == 1 or not total or held < HARDLY * total:
        return ""
    why = ", ".join(f"{count} {op}" for op, count in sorted(whole.items()))
    return (
        f"almost nothing is split: each rank holds {100 * held / total:.1f} % of the weights"
        f"{f' ({why} hold theirs whole)' if why else ''}, so {counted(tensor, 'rank')} need as much memory "
        f"each as one process would, and are hardly quicker"
    )


def hardly_splits_slices(manifest: Manifest) -> str:
    """The same of a slice folder."""
    stages = range(manifest.mesh.length("pipeline"))
    firsts = [manifest.mesh.rank(data=0, pipeline=stage, tensor=0) for stage in stages]
    held = sum(manifest.ranks[rank].weight_bytes for rank in firsts)
    total = sum(weight.bytes * len(weight.stages) for weight in manifest.weights.values())
    return hardly_splits(held, total, manifest.mesh.length("tensor"), manifest.whole)
