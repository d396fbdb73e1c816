"""Whether what lies in the cache is still what was put there.

A file may be cut short, lost, or changed by a disk or another program. All bytes are hashed when a folder is
first used, or used after one of its files was touched (size, times, inode); that it was whole is remembered.
Who finds it damaged makes it again.

    FOLDER/complete.json  size and SHA-256 of each file
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from ranks.cache import regular_files
from ranks.cache.folder import recall, remember
from ranks.cache.place import SEAL

log = logging.getLogger(__name__)

Files = Mapping[str, tuple[int, str]]
"""Size and SHA-256 of files by name."""

_KIND = "whole"
_MOST_SEAL = 16 << 20


def is_whole(folder: Path, files: Files) -> bool:
    """Whether a folder holds these files, unchanged; others in it are no harm."""
    if is_known(folder, files):
        return True
    try:
        for name, (size, digest) in files.items():
            if regular_files.sha256_of(folder / name, size) != digest:
                return False
    except OSError:
        return False
    note(folder, files)
    return True


def is_known(folder: Path, files: Files) -> bool:
    """As `is_whole`, but only as far as it is remembered."""
    return not files or (recall(folder / _KIND, _kind(files)) is not None and not _has_links(folder, files))


def _has_links(folder: Path, files: Files) -> bool:
    """Whether a link stands for a file: who reads models takes none that lies outside of their folder."""
    return any((folder / name).is_symlink() for name in files)


def note(folder: Path, files: Files) -> None:
    """Remembers that a folder holds these files as they should be."""
    if files:
        remember(folder / _KIND, _kind(files), list(files), _KIND)


def seal(folder: Path, known: Files | None = None) -> Files:
    """Writes down what files a folder holds now, and gives it, for `note`, once the folder is in its place;
    ``known``: of those that need not be read for it.

    Raises `OSError`.
    """
    told = dict(known or {})
    for path in sorted(folder.iterdir()):
        if path.name not in {*told, SEAL}:
            size = path.stat().st_size
            told[path.name] = (size, regular_files.sha256_of(path, size) or "")
    (folder / SEAL).write_text(json.dumps(told))
    return told


def is_sealed(folder: Path) -> bool:
    """Whether a folder holds what it held when it was sealed."""
    files = _sealed(folder)
    return bool(files) and is_whole(folder, files)


def still_has(folder: Path, name: str) -> bool:
    """Whether this file of a sealed folder has the bytes that it had, read now, whatever is remembered; else
    the folder is unsealed."""
    size, digest = _sealed(folder).get(name, (0, ""))
    try:
        if regular_files.sha256_of(folder / name, size) == digest:
            return True
    except OSError:
        pass
    unseal(folder)
    return False


def _sealed(folder: Path) -> Files:
    try:
        told = json.loads(regular_files.read(folder / SEAL, _MOST_SEAL))
        return {str(name): (int(size), str(digest)) for name, (size, digest) in told.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def unseal(folder: Path) -> None:
    """Has the next who uses a folder make it again: its bytes changed, and nothing else shows it."""
    with contextlib.suppress(OSError):
        regular_files.remove(folder / SEAL)


def say_damaged(what: Path) -> None:
    """One line for the user: a later run, which finds nothing wrong, says nothing."""
    log.warning("%s was damaged and is made again", what)


def _kind(files: Files) -> str:
    """The name under which this set of files is remembered; one folder may have several such sets."""
    return f"{_KIND} {hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()}"
