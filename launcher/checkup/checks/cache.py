"""The cache: whether it can be written, and the room that is left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from ranks.cache.folder import cache_folder
from sharding.common.text import human_bytes

_LITTLE = 2 << 30


def _run(asked: Asked) -> Iterator[Finding]:
    folder = cache_folder()
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        yield Finding("fail", f"{folder} cannot be written ({error.strerror or error})",
                      "name another folder in SHARDRUN_CACHE")  # fmt: skip
        return
    found = f"{folder}: {human_bytes(free)} free"
    if free < _LITTLE:
        yield Finding("warn", found, "free some space, or name another folder in SHARDRUN_CACHE")
    else:
        yield Finding("ok", found)


CHECK = Check("cache", 12, _run)
