"""The most that the cache may take, and what is thrown out of it: what was not used for longest."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection
from pathlib import Path

from ranks.cache import entries as cache_entries
from ranks.cache import place
from ranks.common import settings

log = logging.getLogger(__name__)

MOST_BYTES = 20 * 10**9
"""The default limit, or a tenth of the disk if that is less."""


def limit_of(folder: Path) -> int:
    """The most bytes that the cache may take: ``SHARDRUN_CACHE_LIMIT``, else `MOST_BYTES`, or a tenth of
    the disk that ``folder`` is on if that is less.

    Raises `SettingError` where the variable is wrong, `OSError` where there is no such folder.
    """
    limit = settings.cache_limit()
    if limit is not None:
        return limit
    disk = os.statvfs(folder)
    return min(MOST_BYTES, disk.f_blocks * disk.f_frsize // 10)


def occupied(root: Path) -> dict[str, int]:
    """Bytes that what is ours in the cache folder ``root`` takes on the disk, by kind. Raises `OSError` as
    `cache_place.ours` does."""
    from ranks.cache import weight_entries

    sizes = {
        kind: sum(one.bytes for one in cache_entries.listing(root, kind)) for kind in cache_entries.KINDS
    }
    sizes["hashes"] = sum(map(cache_entries.size, memos(root)))
    weights = place.ours(root, "weights")
    sizes["weights"] = weight_entries.occupied(weights) if weights else 0
    return sizes


def memos(root: Path) -> list[Path]:
    """The files of remembered hashes in the cache folder ``root``. Raises `OSError` as `occupied` does."""
    folder = place.ours(root, "hashes")
    form = place.FORMS["hashes"]
    found = cache_entries.children(folder) if folder else ()
    return [path for path in found if form.key(path.name) and path.is_file() and not path.is_symlink()]


def bound(root: Path, limit: int, keep: Collection[str] = ()) -> None:
    """Throws out what was not used for longest, of any kind, until the cache takes at most ``limit`` bytes.

    What is in use or being made stays, and so do the prepared weights of the keys ``keep``, even where that
    is more. Never fails: what cannot be removed is left to the next time.
    """
    try:
        _bound(root, limit, keep)
    except OSError as problem:
        log.info("the cache at %s cannot be cut to %d bytes: %s", root, limit, problem)


def _bound(root: Path, limit: int, keep: Collection[str]) -> None:
    from ranks.cache import weight_entries
    from ranks.cache.weight_entry import Entry

    weights = place.place_of(root, "weights")
    if place.ours(root, "weights"):
        weight_entries.throw_out(weights, sys.maxsize)  # weights that no entry refers to
    sizes = occupied(root)
    if sum(sizes.values()) <= limit:
        return
    folders = [one for kind in cache_entries.KINDS for one in cache_entries.listing(root, kind)]
    prepared = [entry for entry in weight_entries.listing(weights) if entry.key not in keep]
    mapped = cache_entries.mapped_files(
        place.place_of(root, kind) for kind in cache_entries.KINDS if sizes[kind]
    )
    # What crashed processes left goes first.
    oldest: list[cache_entries.Folder | Entry] = sorted(
        [*folders, *prepared],
        key=lambda one: (isinstance(one, Entry) or one.finished, one.used),
    )
    for one in oldest:
        if sum(sizes.values()) <= limit:
            return
        if isinstance(one, Entry):
            weight_entries.throw_out(weights, 0, only=one.key)
            sizes["weights"] = weight_entries.occupied(weights)
        elif cache_entries.remove(one, mapped):
            sizes[one.kind] -= one.bytes
    for memo in sorted(memos(root), key=_time):
        if sum(sizes.values()) <= limit:
            return
        sizes["hashes"] -= cache_entries.size(memo)
        memo.unlink(missing_ok=True)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
