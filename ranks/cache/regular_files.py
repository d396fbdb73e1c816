"""Files of the cache, in whose place anything may lie: a pipe that never ends, a device, a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from ranks.cache.place import free_name

_BLOCK = 1 << 20


def open_regular(path: Path) -> int:
    """A descriptor to read a file by, at once whatever lies there.

    Raises `OSError`, also for what is no file, for a link, and for a file of another user, who may change it.
    """
    # Without O_NONBLOCK to open a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file of this user", str(path))
    return descriptor


def read(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises `OSError`, also where they are more than ``most``."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
        return file.read(most)


def sha256_of(path: Path, size: int) -> str | None:
    """SHA-256 of a file's bytes, in hexadecimal; None unless it has ``size`` of them. Raises `OSError`."""
    digest = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size != size:
            return None
        while size and (block := file.read(min(size, _BLOCK))):
            digest.update(block)
            size -= len(block)
    return None if size else digest.hexdigest()


def size_of(path: Path) -> int | None:
    """The bytes of this user's file that is there; None where there is none, or a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else None


def is_regular(path: Path) -> bool:
    """Whether a file of this user is there, and no link."""
    return size_of(path) is not None


def remove(path: Path) -> None:
    """Removes the file that lies there; nothing may. A folder there is not ours, and is moved aside. Raises
    `OSError`."""
    if path.is_dir() and not path.is_symlink():
        path.rename(free_name(path))
    else:
        path.unlink(missing_ok=True)


def replace(made: Path, target: Path) -> None:
    """Moves a file into place, whatever lies there. Raises `OSError`."""
    try:
        made.replace(target)
    except IsADirectoryError:
        remove(target)
        made.replace(target)
