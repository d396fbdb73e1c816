"""A rank's place, read from a rank table."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ranks.errors import IdentityError
from ranks.identity.place import Identity
from sharding.common.rank_table import load_rank_table


def identity_from_table(
    path: str | Path, rank: int | None = None, device: int | None = None, size: int | None = None
) -> Identity:
    """The identity of one rank of the table at ``path``.

    The rank is found by its ``rank`` or, in a table of one server, by its ``device``; what is given beside it
    (``device``, ``size``) must agree with the table. Raises `IdentityError`, naming file, place in it and
    value.
    """
    table = load_rank_table(path, IdentityError)
    world = table.world_size
    if size is not None and size != world:
        raise IdentityError(f"RANK_SIZE is {size}, but rank table {path} has {world} ranks.")
    if rank is not None:
        found = [place for place in table.devices if place.rank == rank]
        if not found:
            raise IdentityError(f"Rank {rank} is not in rank table {path}, which has ranks 0 to {world - 1}.")
    else:
        found = [place for place in table.devices if place.device_id == device]
        if len(found) != 1:
            raise IdentityError(
                f"Rank table {path}: device_id {device} stands {len(found)} times, so it does not say which "
                "rank this process is: give the rank id."
            )
    mine = found[0]
    if device is not None and device != mine.device_id:
        raise IdentityError(
            f"Rank table {path} gives rank {mine.rank} device_id {mine.device_id}, "
            f"but this process was told device {device}."
        )
    return Identity(
        mine.rank,
        world,
        mine.local_rank,
        len(table.hosts[mine.host]),
        source=f"rank table {path}",
        device=mine.device_id,
        # Of what the table says, not of its bytes: ranks that read it as JSON and as YAML are one group.
        key="table:" + hashlib.sha256(table.to_json().encode()).hexdigest(),
    )
