"""What a crash of the machine leaves: a file's name and size may reach the disk without all of its bytes.

Making sure of that when a file is written (fsync) takes as long as the disk does, for all prepared weights.
Instead an entry says in which run of the system it was written, and the first who opens it in another run
hashes its files, which must then come from the disk anyway. A file beside it remembers that this was done:

    KEY.boot  the run of the system that wrote the entry, after which its files were found whole

What is changed later is for `ranks.cache.intact`, which knows a changed file by its times.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from ranks.cache import regular_files
from ranks.cache.folder import write_whole

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # proc_sys_kernel(5): made anew at each start
_THREADS = 2
_MOST_BYTES = 4096  # of a marker


@functools.cache
def boot_id() -> str:
    """The system's name for the time since it was started; nothing where it has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def flush(path: Path) -> None:
    """Waits until a file is on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_known(marker: Path, boot: str) -> bool:
    """Whether files are whole as far as anyone knows without reading them: nothing crashed since, or
    ``marker`` says that they were read.

    ``boot``: the `boot_id` at which they were written, nothing if they were flushed.
    """
    if boot in {"", boot_id()}:
        return True
    try:
        return regular_files.read(marker, _MOST_BYTES) == boot.encode()
    except OSError:
        return False


def are_whole(files: Sequence[tuple[Path, int]], marker: Path, boot: str) -> bool:
    """As `is_known`, but what is not known is found out: files' names are the SHA-256 of their bytes.

    ``files``: each with its size. Raises `OSError` where they cannot be read.
    """
    if is_known(marker, boot):
        return True
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:  # hashing leaves the interpreter's lock
        if not all(pool.map(lambda file: regular_files.sha256_of(*file) == file[0].name, files)):
            return False
    with contextlib.suppress(OSError):  # then the next one reads them again
        if not regular_files.is_regular(marker):
            regular_files.remove(marker)
        write_whole(marker, boot.encode())
    return True
