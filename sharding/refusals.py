"""Options by which one rank might refuse what the others do not.

ONNX Runtime refuses an index beyond its axis when the model runs. All ranks must then refuse together: one
that goes on alone waits for the others. Indices that every rank has whole are no trouble. Where they are cut,
each rank sees only its own, so they must be known to be right, or stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sharding.placement import Split
from sharding.rules.base import NodeView, Option

MICROSOFT = "com.microsoft"

INDICES: Mapping[tuple[str, str], Sequence[int]] = {
    ("", "Gather"): (1,),
    ("", "GatherElements"): (1,),
    ("", "GatherND"): (1,),
    (MICROSOFT, "GatherND"): (1,),
    ("", "Scatter"): (1,),
    ("", "ScatterElements"): (1,),
    ("", "ScatterND"): (1,),
    ("", "TensorScatter"): (2,),
    ("", "ReverseSequence"): (1,),
    ("", "RoiAlign"): (2,),
    ("", "MaxRoiPool"): (1,),
    (MICROSOFT, "CropAndResize"): (2,),
    ("", "RotaryEmbedding"): (3,),
    (MICROSOFT, "RotaryEmbedding"): (1,),
    (MICROSOFT, "GroupQueryAttention"): (5, 6, 9),
    (MICROSOFT, "EmbedLayerNormalization"): (0, 1, 8),
}
"""The inputs whose elements ONNX Runtime checks when an operator runs: indices, positions, lengths."""
_IN_RANGE = {"ArgMax", "ArgMin", "TopK", "NonZero"}


def may_refuse(node: NodeView, option: Option, producers: Sequence[str | None]) -> bool:
    """Whether a rank may refuse its part of the indices while the others find nothing wrong with theirs.

    ``producers``: the operator that makes each input; "" for a weight or a constant, None for an input.
    """
    return any(
        isinstance(option.inputs[index], Split)
        and producers[index] != ""
        and producers[index] not in _IN_RANGE
        for index in INDICES.get((node.domain, node.op_type), ())
        if index < len(producers)
    )
