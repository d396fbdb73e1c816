"""What a user may ask of a slicing besides the model and the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sharding.slices.mesh import Mesh
from sharding.slices.topology import Topology


@dataclass(frozen=True)
class SliceOptions:
    """Options of `sharding.slice_model`; all of them are part of a cached slicing's key. Of texts there are
    those that `sharding.demands.choices` names."""

    allow_replicated: bool = False
    """Go on where nothing can be split, with the whole model on every rank."""
    strategy: str = "tensor"
    """One of `STRATEGIES`; which mesh axis all ranks form where ``mesh`` is not given."""
    mesh: Mesh | None = None
    """Mixes strategies: axis sizes whose product is the number of ranks."""
    micro_batches: int | None = None
    """Pieces that the batch is cut into so that pipeline stages work at the same time; None: as many as
    stages where the batch can be cut, else 1."""
    memory: int | None = None
    """Bytes that one rank may hold of weights; only ``auto`` looks at it."""
    profile: Path | None = None
    """An ONNX Runtime profile (JSON) of the model: pipeline stages are balanced by its times."""
    steering: Path | None = None
    """A YAML file of weight-name patterns and how the weights they match are cut."""
    plan: Path | None = None
    """A saved plan to follow."""
    sums: str | None = None
    """One of `SUMS`. ``parts``: ranks may add up parts of floating-point sums. These depend on the order in
    which they are added, and with them the steps to which products of few bits round what they read: with
    ``whole`` no rank has a part of one. ``auto``: whole where something rounds what products read. None:
    ``parts``, and ``auto`` for whoever generates texts."""
    annotations: bool = True
    """Follow the multi-device annotations that the model carries."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Input -> the output that is its value in the next step, besides the pairs that are found."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Open length -> what it will be most often: the plan is the best for these, and right for all. Left out:
    one for a batch and for the new tokens of a decoder with a cache, else
    `sharding.graph.sizes.SYMBOL_LENGTH`."""
    topology: Topology | None = None
    """On which hosts ranks run and how these are joined; only ``auto`` looks at it."""
