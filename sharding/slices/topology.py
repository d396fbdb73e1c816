"""Which ranks share a host, and how fast hosts are joined."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What joins each host to the others: bytes a second in either direction, and the seconds that a message
    takes besides."""

    bandwidth: float
    latency: float

    def __str__(self) -> str:
        return f"{self.bandwidth * 8e-9:.6g} Gbit/s, {self.latency * 1e3:.6g} ms"


@dataclass(frozen=True)
class Topology:
    """``hosts`` has the number of each rank's host, in the order of ranks."""

    hosts: tuple[int, ...]
    link: Link

    @property
    def count(self) -> int:
        """Of hosts."""
        return len(set(self.hosts))

    def __str__(self) -> str:
        return f"{','.join(map(str, self.hosts))} by {self.link.bandwidth!r} {self.link.latency!r}"
