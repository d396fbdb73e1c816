"""What ranks say of their model when they are ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.common.tensors import TensorSpec
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.watch import Job
    from ranks.talk.reports import Ready, TensorReport


@dataclass(frozen=True)
class RankStats:
    """What one rank said when it was ready; ``cpus``: the processors that it may use, such as 0-3."""

    rank: int
    host: str
    pid: int
    segments: int
    collectives: int
    weight_bytes: int
    load_seconds: float
    backend: str
    cpus: str


def spec_of(item: TensorReport) -> TensorSpec:
    """An input or output."""
    dtype = wire.dtype_named(item["dtype"])
    return TensorSpec(item["name"], dtype, tuple(item["shape"]), open_rank=item["open_rank"])


def stats_of(rank: int, job: Job, ready: Ready) -> RankStats:
    """The numbers of a rank that is ready."""
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
        cpus=ready["cpus"],
    )
