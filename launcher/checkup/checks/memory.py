"""Memory, and shared memory, by which ranks of one host talk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from sharding.common.limits import free_memory, memory_limit
from sharding.common.text import human_bytes

SHARED = "/dev/shm"
_LITTLE, _TOO_LITTLE = 1 << 30, 32 << 20
_MORE = "mount it larger: `--shm-size` of a container, `--shm` of shardrun submit, or /etc/fstab"


def _run(asked: Asked) -> Iterator[Finding]:
    free, limit = free_memory(), memory_limit()
    found = [f"{human_bytes(free)} available"] if free is not None else []
    found += [f"the cgroup allows {human_bytes(limit)}"] if limit is not None else []
    if free is not None and free < _LITTLE:
        yield Finding("warn", ", ".join(found), "end what uses it, or use more ranks on more hosts")
    else:
        yield Finding("ok", ", ".join(found) or "not known")
    yield shared(SHARED)


def shared(folder: str) -> Finding:
    """What is to be said of the folder of shared memory."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, 4096)
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding("fail", f"{folder} cannot be used ({error.strerror or error})", _MORE)
    found = f"{folder}: {human_bytes(usage.free)} free of {human_bytes(usage.total)}"
    if usage.free < _TOO_LITTLE:
        return Finding("fail", found, _MORE)
    return Finding("warn", found, _MORE) if usage.free < _LITTLE else Finding("ok", found)


CHECK = Check("memory", 7, _run)
