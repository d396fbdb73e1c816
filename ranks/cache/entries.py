"""Folders of the cache that hold one thing each: sliced models, conversions, models optimised for a GPU.

KIND/KEY       held shared by who uses it (`ranks.cache.locks`); its time is the last use, or, where it is
               kept for processes that do not run yet, until when it is
KIND/KEY.tmp*  being made, or left by a crash
KIND/KEY.lock  held while KEY is being made or removed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ranks.cache import locks, place
from ranks.cache.folder import locked
from ranks.cache.place import FORMS
from ranks.common.waiting import HeldError

KINDS = tuple(kind for kind, form in FORMS.items() if form.files)
"""``minilm`` and ``benchmarks``: models that the example and the benchmarks exported."""


@dataclass(frozen=True)
class Folder:
    """One of these folders; ``bytes`` on the disk; ``used``: when last, in seconds since 1970."""

    kind: str
    path: Path
    bytes: int
    used: float

    @property
    def key(self) -> str:
        """What it is, or was to be."""
        return FORMS[self.kind].key(self.path.name) or self.path.name

    @property
    def finished(self) -> bool:
        """Whether it is more than something being made, or left by a crash."""
        return self.key == self.path.name


def listing(root: Path, kind: str) -> list[Folder]:
    """All of a kind in the cache folder ``root``, the longest unused first; nothing that is not ours.

    Raises `OSError` where another user could have put it there.
    """
    found: list[Folder] = []
    folder = place.ours(root, kind)
    for path in children(folder) if folder else ():
        if FORMS[kind].key(path.name) and path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                used = min(path.stat().st_mtime, time.time())  # what is expected has a later one
                found.append(Folder(kind, path, sum(map(size, path.rglob("*"))), used))
    return sorted(found, key=lambda folder: folder.used)


def remove(folder: Folder, mapped: Iterable[str] = ()) -> bool:
    """Removes it, unless it is in use or being made; gives whether it is gone. Raises `OSError`.

    ``mapped``: see `mapped_files`.
    """
    lock = folder.path.with_name(f"{folder.key}.lock")
    try:
        with locked(lock, 0):
            gone = _remove(folder, mapped)
            if gone:
                lock.unlink(missing_ok=True)
            return gone
    except HeldError:
        return False


def _remove(folder: Folder, mapped: Iterable[str]) -> bool:
    try:
        descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not locks.lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, folder.path):
            return False
        if locks.is_expected(descriptor):
            return False
        if any(Path(name).is_relative_to(folder.path) for name in mapped):
            return False
        place.discard(folder.path, FORMS[folder.kind])
    finally:
        os.close(descriptor)
    return True


def mapped_files(folders: Iterable[Path]) -> set[str]:
    """Files in ``folders`` that processes of this user have mapped, as sessions do with a model's weights.

    Programs that are not ours hold no locks.
    """
    found: set[str] = set()
    inside = [(folder, os.fsencode(f"{folder.resolve()}/")) for folder in folders]
    for process in filter(str.isdecimal, os.listdir("/proc") if inside else ()):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps", "rb") as maps:  # noqa: PTH123
            text = maps.read()  # whole: of most processes no line need be looked at
            for folder, place in inside:
                if place in text:
                    names = {line.partition(place)[2] for line in text.split(b"\n") if place in line}
                    found.update(str(folder / os.fsdecode(name)) for name in names)
    return found


def children(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing where it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def size(path: Path) -> int:
    """Bytes of a file on the disk; 0 for anything else."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_blocks * 512 if path.is_file() else 0
    return 0
