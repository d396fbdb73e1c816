"""Slice folders that the launcher has copied into the caches of a job's hosts, each with the files of that
host's ranks."""

from __future__ import annotations

import os
from pathlib import Path

from ranks.cache.folder import cache_folder
from ranks.cache.intact import is_sealed
from ranks.cache.locks import hold
from ranks.cache.place import FORMS, place_of
from ranks.errors import ShardrunError

KIND = "slices"


def here(path: str, key: str, host: str) -> str:
    """The folder that a rank is to load for ``path``: its host's copy with that key, if there is one, which
    stays as long as this process lives. Raises `ShardrunError` where neither is there."""
    if key and FORMS[KIND].key(key) == key:
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
