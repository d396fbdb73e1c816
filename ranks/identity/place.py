"""A process's place in its group: its rank, the number of ranks, and its place on its host."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ranks.errors import IdentityError


@dataclass(frozen=True)
class Identity:
    """One rank of one job.

    ``local_rank`` and ``local_size`` count the job's ranks on this host; ``local_size`` is None where the
    launcher does not say. ``source`` names what was believed, for messages. ``device`` is the device id
    where the launcher or a rank table gives one. ``key`` is the same text in all ranks of a job on one host
    and names their rendezvous.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int | None = 1
    host: str = ""
    source: str = "single"
    device: int | None = None
    key: str = ""

    def __post_init__(self) -> None:
        for name in ("rank", "world_size", "local_rank"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise IdentityError(f"{name} must be an integer, but is {value!r} (from {self.source}).")
        if self.world_size < 1:
            raise IdentityError(
                f"The world size must be at least 1, but is {self.world_size} (from {self.source})."
            )
        if not 0 <= self.rank < self.world_size:
            raise IdentityError(
                f"Rank {self.rank} does not exist in a world of {self.world_size} (from {self.source}): "
                f"ranks go from 0 to {self.world_size - 1}."
            )
        if self.local_rank < 0:
            raise IdentityError(
                f"The local rank must not be negative, but is {self.local_rank} (from {self.source})."
            )
        if self.local_size is not None and not self.local_rank < self.local_size <= self.world_size:
            raise IdentityError(
                f"Local rank {self.local_rank} of {self.local_size} on this host does not fit a world of "
                f"{self.world_size} (from {self.source})."
            )
        if not self.host:
            object.__setattr__(self, "host", os.uname().nodename)

    @property
    def shares_host(self) -> bool:
        """Whether the launcher says that all ranks are on this host."""
        return self.local_size == self.world_size
