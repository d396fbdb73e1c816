"""What the process beside a rank tells, once that has ended without joining: `ranks.collectives.absence`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from ranks.collectives.absence import gone_text, rank_of
from ranks.identity.place import Identity


def tell(said: Sequence[bytes]) -> None:
    """Tells it to those who wait; ``said`` are the lines that the rank has said to this process."""
    with contextlib.suppress(Exception):  # nobody would hear of it
        _tell(said)


def _tell(said: Sequence[bytes]) -> None:
    first, *heard = map(json.loads, said)
    identity = Identity(**first["identity"])
    gone: str = next((news["gone"] for news in heard if "gone" in news), "")
    gone = gone or gone_text(identity.rank, identity.host)
    told = {rank for news in heard for rank in news["told"]}
    late = set(range(identity.world_size)) - {identity.rank, rank_of(gone), *told}
    if identity.shares_host:
        from ranks.collectives.meeting import tell_gone

        tell_gone(identity, gone, late, first["seconds"])
    else:
        from ranks.collectives.torch.store import tell_gone as tell_in_store

        tell_in_store(identity, gone, late, first["seconds"])
