"""Who may end while a group is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.collectives.torch.joining import see
from ranks.errors import PeerLostError


@pytest.mark.parametrize(
    ("gone", "members", "lost"),
    [([2], {0, 1}, None), ([2, 1], {0, 1}, 1), ([2], None, 2), ([], None, None), ([0], {0, 1}, 0)],
)
def test_only_members_of_the_group_that_is_made_must_stay(
    gone: list[int], members: set[int] | None, lost: int | None
) -> None:
    rendezvous: Any = SimpleNamespace(
        gone=lambda: gone, lost=lambda rank: PeerLostError(f"Rank {rank} ended", rank)
    )
    identity: Any = SimpleNamespace(rank=0, world_size=3)
    if lost is None:
        see(identity, rendezvous, [], members)
        return
    with pytest.raises(PeerLostError, match=f"Rank {lost} ended before all ranks had joined") as told:
        see(identity, rendezvous, [], members)
    assert told.value.peer == lost
