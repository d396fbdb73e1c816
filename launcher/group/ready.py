"""What ranks say of their model when they are ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ranks.common.tensors import TensorSpec
from ranks.talk import wire
from sharding.common.ranges import in_ranges

if TYPE_CHECKING:
    from launcher.group.watch import Job
    from ranks.talk.reports import Ready, TensorReport, WeightReport
    from sharding.common.arrays import DType

_SHOWN = 8


class RankStats(NamedTuple):
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


def places(ranks: Sequence[RankStats]) -> dict[str, str]:
    """Where ranks run, as rows of a summary: their hosts where they are several, and the processors of
    each."""
    hosts: dict[str, list[RankStats]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    rows = {}
    if len(hosts) > 1:
        named = [f"{host} ({_ranks(there)})" for host, there in hosts.items()]
        rows["hosts"] = _few(named, "; ")
    cores = []
    for host, there in hosts.items():
        before = f"{host} " if len(hosts) > 1 else ""
        if len(there) > 1 and len({rank.cpus for rank in there}) == 1:
            cores.append(f"{before}{there[0].cpus} (of all ranks)")
        else:
            cores.append(before + _few([f"{rank.cpus} (rank {rank.rank})" for rank in there], ", "))
    rows["cores"] = _few(cores, "; ")
    return rows


def _ranks(there: Sequence[RankStats]) -> str:
    numbers = in_ranges(rank.rank for rank in there)
    return f"rank{'s' * (len(there) > 1)} {numbers}"


def _few(parts: Sequence[str], between: str) -> str:
    return between.join(parts[:_SHOWN]) + (f"{between}..." if len(parts) > _SHOWN else "")


def spec_of(item: TensorReport) -> TensorSpec:
    """An input or output."""
    dtype = wire.dtype_named(item["dtype"])
    return TensorSpec(item["name"], dtype, tuple(item["shape"]), open_rank=item["open_rank"])


def weight_of(item: WeightReport) -> tuple[str, DType, tuple[int, ...]]:
    """A weight that can be replaced: its name, type and shape."""
    return item["name"], wire.dtype_named(item["dtype"]), tuple(item["shape"])


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
