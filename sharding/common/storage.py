"""What the system says where files cannot be written, and what its user can do about that."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

PAGE = 4096
"""Bytes: what lies in a file from a page on can be mapped, and shares no memory with what is before it."""

_LONGEST_NAME = 255  # bytes of a name in a folder, on every file system of Linux
_ADVICE = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "remove some of your files, or ask for a larger quota",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`), or use another file system",
    errno.EIO: "the disk or its connection fails",
    errno.ENOMEM: "free some memory",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "the system does not let this user change it",
    errno.EROFS: "this file system is mounted to be read only",
    errno.ENOTDIR: "a part of this path is a file, and no folder",
    errno.EEXIST: "a file or link that is no folder has this name",
    errno.ENOENT: "a folder of this path is not there, or is a link that leads nowhere",
    errno.EISDIR: "a folder has this name",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ELOOP: "links of this path lead in a circle",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "the system has too many open files",
    errno.ESTALE: "the network file system has lost it: mount it again",
    errno.ETXTBSY: "it is a program that runs",
    errno.EBUSY: "it is in use",
    errno.ETIMEDOUT: "another process holds its lock",
}
_PLACE = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ,
})  # fmt: skip


def why_unwritable(error: OSError | ValueError, otherwise: str = "") -> str:
    """Why something cannot be written, and what to do: ``No space left on device: free some space there``.

    ``otherwise`` is what helps whatever the reason is, such as ``choose another folder``.
    """
    number = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or (os.strerror(number) if number else str(error))
    advice = what_to_do(error, otherwise)
    return f"{reason}: {advice}" if advice else reason


def what_to_do(error: OSError | ValueError, otherwise: str = "") -> str:
    """The advice alone; nothing where there is none."""
    number = getattr(error, "errno", None) or 0
    # An error with words of its own says more than its number.
    own = _ADVICE.get(number, "") if getattr(error, "strerror", None) == os.strerror(number) else ""
    # Where the place is wrong, our own words say why, and only the others what to do.
    return ("; " if is_place(error) else ", or ").join(text for text in (own, otherwise) if text)


def is_place(error: OSError | ValueError) -> bool:
    """Whether what was given as the place is wrong, rather than what happened while it was written to."""
    return not isinstance(error, OSError) or error.errno in _PLACE


def probe(target: Path) -> None:
    """Raises the `OSError` that making ``target``, and the folders above it that are not there, would end in.

    It is quick and makes nothing. A full disk, say, is not noticed before something is written.
    """
    for part in target.parts:
        if len(os.fsencode(part)) > _LONGEST_NAME:
            raise _error(errno.ENAMETOOLONG, target)
    with contextlib.suppress(FileNotFoundError):
        target.lstat()
    folder = target.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise _error(errno.EEXIST if folder.is_symlink() else errno.ENOTDIR, folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise _error(errno.EROFS if read_only else errno.EACCES, folder)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
