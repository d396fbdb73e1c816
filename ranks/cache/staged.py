"""What the launcher has copied into the caches of a job's hosts: slice folders, each with the files of that
host's ranks, and rank models that were made elsewhere, each in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

from ranks.cache.folder import cache_folder
from ranks.cache.intact import is_sealed
from ranks.cache.locks import hold
from ranks.cache.place import FORMS, place_of
from ranks.errors import ShardrunError
from ranks.identity.told import Told

SLICES, RANK_MODEL = "slices", "staged"
"""The kinds of things in the cache that copies are."""


def here(path: str, told: Told, host: str) -> str:
    """What a rank is to load for ``path``: its copy, if the launcher has ``told`` of one, which stays as long
    as this process lives. Raises `ShardrunError` where neither is there."""
    kind = RANK_MODEL if told.file else SLICES
    if told.copy and FORMS[kind].key(told.copy) == told.copy and "/" not in told.file:
        root = cache_folder()
        place = (place_of(root, "staged") if told.file else place_of(root, "slices")) / told.copy
        if not (hold(place) and is_sealed(place)):
            raise ShardrunError(
                f"{place}, into which --stage copied {Path(path).name}, is not there any more on host "
                f"{host}: run it again."
            )
        return str(place / told.file)
    # A pattern names no file. The launcher has seen the path on its own host.
    if "{}" not in path and (lacks := _lacking(path)):
        raise ShardrunError(
            f"{path} {lacks} on host {host}, which has no file system in common with the launcher's host "
            "there: give --stage, which copies to each host the files of its ranks, or copy it yourself."
        )
    return path


def _lacking(path: str) -> str:
    """How a host lacks what the launcher's has; "" where it may be there. A file system that is not mounted
    leaves an empty folder."""
    if not os.path.lexists(path):
        return "does not exist"
    try:
        with os.scandir(path) as entries:
            return "" if next(entries, None) else "is an empty folder"
    except OSError:  # a file, or what another sentence is about
        return ""
