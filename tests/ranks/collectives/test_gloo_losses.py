"""What a rank of Gloo says where a collective fails: who was lost, and why, as far as anyone has said so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from ranks.collectives.torch import distributed
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError

CLOSED = RuntimeError("Connection closed by peer [127.0.0.1]:1")
LATE = RuntimeError("Timed out waiting 5000ms for recv operation to complete")


class Group:
    """Ranks 4, 6 and 8, of which this is the second, or 4 and 6 alone."""

    def __init__(self, word: tuple[int, str] | None, lost: int | None, size: int = 3) -> None:
        self.rank, self.size, self.timeout, self.members = 1, size, 5.0, (4, 6, 8)[:size]
        self.asked: list[tuple[Any, ...]] = []
        self._membership = SimpleNamespace(lost=self._lost, disband=lambda: self.asked.append(("disband",)))
        self._word, self._found = word, lost

    def _lost(self, seconds: float, among: tuple[int, ...] | None) -> int | None:
        self.asked.append((seconds, among))
        return self._found

    def last_word(self) -> tuple[int, str] | None:
        return self._word

    def _fail(self, error: Exception) -> None:
        raise error

    def lose(self, error: Exception, peer: int | None = None) -> CollectiveError:
        this: Any = self
        with pytest.raises(CollectiveError) as caught:
            distributed.GlooCommunicator._lose(this, error, lambda: "all_reduce", peer)
        return caught.value


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ((8, "no more memory"), "Rank 8 could not go on: no more memory"),
        # A rank that said so itself knows it, and looks for another reason.
        ((6, "no more memory"), "Rank 4 ended while rank 6 waited in all_reduce"),
        (None, "Rank 4 ended while rank 6 waited in all_reduce"),
    ],
)
def test_why_a_rank_could_not_go_on(word: tuple[int, str] | None, said: str) -> None:
    found = Group(word, 4).lose(CLOSED)
    assert str(found).startswith(said) and isinstance(found, PeerLostError)
    assert found.peer == int(said.split()[1])


@pytest.mark.parametrize(
    ("size", "lost", "peer", "named"),
    [
        (3, 8, None, "Rank 8"),
        (3, None, 0, "Rank 4"),
        (3, None, 2, "Rank 8"),
        (3, None, None, "Another rank"),
        # Of two it can only be the other one.
        (2, None, None, "Rank 4"),
        (3, 8, 0, "Rank 8"),
    ],
)
@pytest.mark.parametrize("error", [CLOSED, LATE])
def test_who_was_lost(size: int, lost: int | None, peer: int | None, named: str, error: Exception) -> None:
    """A rank whose connection was closed may be seen to end a little later; those that wait hear of it."""
    group = Group(None, lost, size)
    found = group.lose(error, peer)
    assert str(found).startswith(f"{named} ")
    assert isinstance(found, CollectiveTimeoutError if error is LATE else PeerLostError)
    assert group.asked == [(0.0, group.members) if error is LATE else (0.2, None), ("disband",)]
