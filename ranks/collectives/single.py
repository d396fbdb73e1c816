"""The group of one rank: every collective is a copy or nothing at all."""

from __future__ import annotations

from ranks.collectives.base import Buffer, Communicator, Groups
from ranks.errors import CollectiveError


class SingleCommunicator(Communicator):
    """A world of size 1, on numpy arrays and on torch tensors alike."""

    name = "single"
    awaits = False

    def __init__(self, timeout: float = 300.0, member: int = 0) -> None:
        self.rank = 0
        self.members = (member,)
        self.size = 1
        self.timeout = timeout

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        return self

    def all_reduce(self, buffer: Buffer) -> None:
        """Does nothing: the sum over one rank is there already."""

    def all_gather(self, buffer: Buffer, out: Buffer, axis: int = 0) -> None:
        out[...] = buffer

    def all_to_all(self, buffer: Buffer, out: Buffer) -> None:
        out[...] = buffer

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        if root != 0:
            raise CollectiveError(f"broadcast from rank {root} in a world of one rank: the root must be 0.")

    def send(self, buffer: Buffer, peer: int) -> None:
        raise CollectiveError(f"send to rank {peer} in a world of one rank: there is no other rank.")

    def recv(self, buffer: Buffer, peer: int) -> None:
        raise CollectiveError(f"recv from rank {peer} in a world of one rank: there is no other rank.")

    def barrier(self) -> None:
        """Does nothing."""

    def all_failed(self, why: str) -> bool:
        """There is no other."""
        return True

    def close(self) -> None:
        """Does nothing."""
