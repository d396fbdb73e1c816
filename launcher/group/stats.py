"""What ranks say of themselves and their model when they are ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranks.common.tensors import TensorSpec
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.watch import Job


@dataclass(frozen=True)
class RankStats:
    """What one rank said when it was ready."""

    rank: int
    host: str
    pid: int
    segments: int
    collectives: int
    weight_bytes: int
    load_seconds: float
    backend: str


def spec_of(item: Mapping[str, Any]) -> TensorSpec:
    """An input or output, as a rank tells it."""
    dtype = wire.dtype_named(item["dtype"])
    return TensorSpec(item["name"], dtype, tuple(item["shape"]), open_rank=item["open_rank"])


def stats_of(rank: int, job: Job, ready: Mapping[str, Any]) -> RankStats:
    """Of one rank, from what it said when it was ready."""
    stats = ready["stats"]
    return RankStats(
        rank=rank,
        host=job.host(rank),
        pid=job.pid(rank),
        segments=stats["segments"],
        collectives=stats["collectives"],
        weight_bytes=stats["weight_bytes"],
        load_seconds=ready["load_seconds"],
        backend=ready["collectives"],
    )
