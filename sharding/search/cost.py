"""What a plan costs: the bytes of weights that a rank holds, then the estimated seconds of one inference.

The constants describe a CPU core and ranks of one host over shared memory, rounded: only their proportions
matter, for they choose between plans. `sharding.graph.sizes` says what lengths count as that are symbols.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sharding.graph.sizes import Sizes
from sharding.slices.placement import Partial, Placement, Replicated, Split, is_finer

if TYPE_CHECKING:
    from sharding.search.steps import Step

FLOPS_PER_SECOND = 5e10
"""Multiply-adds of matrix products count two."""
ELEMENTS_PER_SECOND = 4e9
"""For every other operator: most of them work in cache, and ONNX Runtime fuses many."""
COLLECTIVE_SECONDS = 5e-5
"""Latency of one collective, waiting for the slowest rank, ending one segment and starting the next."""
BYTES_PER_SECOND = 8e9
"""Between two ranks of a host."""
NODE_SECONDS = 5e-7
"""Time of a node that only selects: a local slice."""

IMPOSSIBLE = math.inf

_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "FusedMatMul"}
_CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"}


def node_seconds(step: Step, sizes: Sizes) -> float:
    """Estimated seconds of a node on one rank that computes all of it."""
    output = max((sizes.elements(value) for value in step.node.outputs), default=1)
    shapes = step.view.shapes
    if step.node.op_type in _PRODUCTS and shapes[0]:
        axis = 0 if step.view.attributes.get("transA") else -1
        return 2.0 * output * sizes.length(shapes[0][axis]) / FLOPS_PER_SECOND
    if step.node.op_type in _CONVOLUTIONS:
        kernel = shapes[3] if step.node.op_type == "QLinearConv" else shapes[1]
        if kernel:
            inner = math.prod(sizes.length(axis) for axis in kernel[1:])
            return 2.0 * output * inner / FLOPS_PER_SECOND
    return output / ELEMENTS_PER_SECOND


def weight_cost(size: int, placement: Placement, world: int) -> tuple[int, float]:
    """(bytes, seconds) that count for a weight of ``size`` bytes held at a placement.

    Copies of a part count as if they were cut further: key-value heads fewer than ranks are held by group, as
    Megatron-LM and others do, rather than gathered in every layer of every inference.
    """
    if not isinstance(placement, Split):
        return size, 0.0
    return size // world, 0.0 if placement.copies == 1 else NODE_SECONDS


def reshard_seconds(source: Placement, target: Placement, size: int, world: int) -> float:
    """Estimated seconds of bringing a value of ``size`` bytes (whole) from one placement to another."""
    if source == target:
        return 0.0
    sent = size * (world - 1) / world / BYTES_PER_SECOND
    if isinstance(target, Partial):
        return IMPOSSIBLE
    if isinstance(source, Replicated):
        return NODE_SECONDS
    if isinstance(source, Partial):
        return COLLECTIVE_SECONDS + 2 * sent + (NODE_SECONDS if isinstance(target, Split) else 0.0)
    if isinstance(target, Split) and is_finer(target, source):
        return NODE_SECONDS
    sent *= source.copies
    if isinstance(target, Split) and target.axis != source.axis and source.copies == target.copies == 1:
        # Cutting and joining the parts before and after the exchange is not free.
        return COLLECTIVE_SECONDS + sent / world + 4 * world * NODE_SECONDS
    # Parts of an inner axis are interleaved as they come, in strides; blocks need one more pass.
    passes = 0.5 if source.blocks == source.copies == 1 else 1.5
    return COLLECTIVE_SECONDS + sent + passes * size / BYTES_PER_SECOND
