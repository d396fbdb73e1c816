"""What a plan's exchanges take where they cross hosts, beside what they take within one.

Ranks of a group that share a host first add up there (`ranks.collectives.hierarchical`), so that only sums,
or what others lack, go between hosts; each host has one way to all others. Groups that work at the same time,
as those of data parallelism do, share it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sharding.slices.mesh import Mesh
from sharding.slices.topology import Topology

_GATHERING = {"AllGather", "Broadcast"}


@dataclass(frozen=True)
class Exchange:
    """One collective of a stage's tensor group; ``bytes``: what each rank puts in."""

    op: str
    stage: int
    bytes: int


@dataclass(frozen=True)
class Passed:
    """What each rank of a stage sends to the rank in its place in another stage."""

    here: int
    there: int
    bytes: int


class Crossing:
    """A mesh on hosts."""

    def __init__(self, mesh: Mesh, topology: Topology) -> None:
        self._mesh, self._topology = mesh, topology

    def seconds(self, exchanges: Iterable[Exchange], passed: Iterable[Passed]) -> float:
        """Of all that crosses hosts in one inference, one after the other."""
        return sum(map(self._exchange, exchanges)) + sum(map(self._pass, passed))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """The groups along an axis: the hosts of each one's ranks."""
        hosts = self._topology.hosts
        return [tuple(hosts[rank] for rank in group) for group in self._mesh.groups(axis)]

    def crosses(self, axis: str) -> bool:
        """Whether ranks of some group along an axis are on several hosts."""
        return any(len(set(hosts)) > 1 for hosts in self.groups(axis))

    def _stage(self, stage: int) -> list[tuple[int, ...]]:
        """The hosts of the ranks of each tensor group of a stage."""
        hosts, length = self._topology.hosts, self._mesh.length("tensor")
        return [
            tuple(hosts[self._mesh.rank(data=data, pipeline=stage, tensor=part)] for part in range(length))
            for data in range(self._mesh.length("data"))
        ]

    def _exchange(self, exchange: Exchange) -> float:
        busy: Counter[int] = Counter()
        rounds = 0
        for hosts in self._stage(exchange.stage):
            each = Counter(hosts)
            if len(each) == 1:
                continue
            steps, load = _between(exchange.op, exchange.bytes, each)
            rounds = max(rounds, steps)
            busy.update(load)
        return self._time(rounds, busy)

    def _pass(self, passed: Passed) -> float:
        busy: Counter[int] = Counter()
        for here, there in zip(self._stage(passed.here), self._stage(passed.there), strict=True):
            for source, target in zip(here, there, strict=True):
                if source != target:
                    busy[source] += passed.bytes
        return self._time(1 if busy else 0, busy)

    def _time(self, rounds: int, busy: Counter[int]) -> float:
        link = self._topology.link
        return rounds * link.latency + max(busy.values(), default=0) / link.bandwidth


def _between(op: str, size: int, each: Counter[int]) -> tuple[int, dict[int, int]]:
    """Rounds of messages and the bytes that each host sends, for a group that has so many ranks on each."""
    count, ranks = len(each), sum(each.values())
    if op in _GATHERING:  # what each host has goes round all others
        widest = max(each.values()) * size
        return count - 1, dict.fromkeys(each, (count - 1) * widest)
    if op == "AllToAll":
        return count - 1, {host: here * size * (ranks - here) // ranks for host, here in each.items()}
    # A ring of hosts: sums of parts go round, then the parts.
    return 2 * (count - 1), dict.fromkeys(each, 2 * (count - 1) * size // count)


def orders(mesh: Mesh) -> list[Mesh]:
    """The mesh with its axes in each order that gives ranks other neighbours; itself first."""
    used = [(name, size) for name, size in mesh.axes if size > 1]
    return [mesh, *(Mesh.of(**dict(order)) for order in list(itertools.permutations(used))[1:])]


def in_words(mesh: Mesh, topology: Topology) -> str:
    """Which axes stay within hosts, and which cross them."""
    crossing = Crossing(mesh, topology)
    axes = [name for name, size in mesh.axes if size > 1]
    within = [name for name in axes if not crossing.crosses(name)]
    across = [name for name in axes if name not in within]
    parts = [f"{' and '.join(within)} within a host"] if within else []
    parts += [f"{' and '.join(across)} across"] if across else []
    return f"{topology.count} hosts, {topology.link} between them: {', '.join(parts)}"
