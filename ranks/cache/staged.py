"""Slice folders that the launcher has copied into the caches of a job's hosts, each with the files of that
host's ranks. Which copy a rank has is told to all ranks alike: ``2-3=KEY;4-5=KEY``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ranks.cache.folder import cache_folder
from ranks.cache.intact import is_sealed
from ranks.cache.locks import hold
from ranks.cache.place import FORMS, place_of
from ranks.common import settings
from ranks.errors import ShardrunError
from sharding.common.ranges import in_ranges, parse_ranges

KIND = "slices"


def said(copies: Iterable[tuple[str, list[int]]]) -> str:
    """The ranks of each copy, given with its key, as one text. Hosts with the same files have one key."""
    return ";".join(f"{in_ranges(ranks)}={key}" for key, ranks in copies)


def here(path: str, rank: int, host: str) -> str:
    """The folder that this rank is to load for ``path``: its host's copy, if there is one, which stays as
    long as this process lives. Raises `ShardrunError` where neither is there."""
    for part in settings.STAGED.text().split(";"):
        ranks, _, key = part.partition("=")
        if rank not in (parse_ranges(ranks) or ()) or FORMS[KIND].key(key) != key:
            continue
        place = place_of(cache_folder(), KIND) / key
        if not (hold(place) and is_sealed(place)):
            raise ShardrunError(
                f"{place}, into which --stage copied {Path(path).name}, is not there any more on host "
                f"{host}: run it again."
            )
        return str(place)
    # A pattern names no file. The launcher has seen the path on its own host.
    if "{}" not in path and not os.path.lexists(path):
        raise ShardrunError(
            f"{path} does not exist on host {host}, which has no file system in common with the launcher's "
            "host there: give --stage, which copies to each host the files of its ranks, or copy it yourself."
        )
    return path
