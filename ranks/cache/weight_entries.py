"""The prepared-weights store's folder: entries, the files they refer to, locks, and what is thrown out.

    KEY.json    the entry: what it is of, sizes and hashes of all that belongs to it; its time is the last use
    KEY.boot    see `ranks.cache.durable`
    KEY.onnx    the prepared graph, beside the folder that its weights lie in
    blobs/SHA   the prepared weights, each once
    work/       what is being made, in a folder per process
    locks/      a fixed number of files; one is held while a key is being made

Locks (flock) are given back by the kernel, however a process ends. ``KEY.json`` is held shared by all that
use the entry. ``work`` is held shared by all that make something in it, so that who gets it alone may empty
it. ``blobs`` is held shared while an entry that refers to some of them is put in place, alone while they are
thrown out.

This is not a `ranks.cache.cache.Cache`: models that are alike share blobs, so an entry is no folder of its
own that can be renamed whole, held or removed by itself; and what cannot be prepared has an entry too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ranks.cache import durable, intact, locks, regular_files, weight_entry
from ranks.cache import place as cache_place
from ranks.cache.locks import Pin
from ranks.cache.weight_entry import Blob, Entry, Prepared
from sharding.slices.cut_short import WHOLE_FILES

log = logging.getLogger(__name__)

BLOBS, LOCKS, WORK = "blobs", "locks", "work"
REFUSED_SECONDS = 86400.0
"""How long nobody tries again to prepare what could not be prepared: the reason may have been passing."""
_KEY = re.compile("[0-9a-f]{32}")
_OURS = re.compile(rf"{_KEY.pattern}\.(json|onnx|boot)|[0-9a-f]{{64}}")
_WORK_PREFIX = "tmp"
_IN_WORK = re.compile(rf"{_WORK_PREFIX}[a-z0-9_]{{8}}")  # tempfile's names


def make_folders(folder: Path) -> None:
    """Makes the store's folders. Raises `OSError` as `cache_place.make` does, and for a path that ONNX
    Runtime cannot take."""
    try:
        str(folder.resolve()).encode()
    except UnicodeEncodeError:
        raise OSError(
            errno.EILSEQ, "ONNX Runtime takes only paths in UTF-8", repr(os.fsencode(folder))
        ) from None
    cache_place.make(folder, "weights")
    for name in (BLOBS, LOCKS, WORK):
        cache_place.make_private(folder / name)


def take(folder: Path, key: str, *, check: bool = True) -> tuple[Entry, Pin] | None:
    """The whole, undamaged entry of a key, pinned and marked as used now; None if there is none.

    Without ``check`` its weights' bytes are taken to be right, as another process has found them.
    Raises `OSError` where it cannot be read.
    """
    descriptor = weight_entry.opened(folder / f"{key}.json")
    if descriptor is None:
        return None
    pin = Pin(descriptor)
    locks.lock(descriptor, fcntl.LOCK_SH, folder / f"{key}.json")
    entry = weight_entry.read(descriptor, key)
    # Between opening and locking it may have been thrown out: then the name is gone, or another file's.
    if entry is None or not locks.is_at(descriptor, folder / f"{key}.json") or not _is_whole(folder, entry):
        return None
    blobs = [(folder / BLOBS / blob.name, blob.bytes) for blob in entry.blobs]
    if not durable.are_whole(blobs, _marker(folder, key), entry.boot):
        log.info("%s was not on the disk when the machine crashed", folder / key)
        return None
    if check and not intact.is_whole(folder / BLOBS, _files(entry.blobs)):
        return None
    if entry.refused:
        return None if time.time() - entry.used > REFUSED_SECONDS else (entry, pin)
    with contextlib.suppress(OSError):
        os.utime(descriptor)
    return entry, pin


def is_there(folder: Path, key: str) -> bool:
    """Whether there is an entry, damaged or not, that is more than the note of a refusal."""
    try:
        entry = weight_entry.read_from(folder / f"{key}.json")
    except OSError:
        return False
    return not entry.refused if entry is not None else os.path.lexists(folder / f"{key}.json")


def graph_of(folder: Path, entry: Entry) -> bytes | None:
    """The entry's serialized graph; None if it is damaged."""
    try:
        data = regular_files.read(folder / f"{entry.key}.onnx", entry.graph_bytes)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == entry.graph_sha256 else None


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A new folder to make an entry in; removed at the end. What crashed processes left goes, too."""
    import shutil
    import tempfile

    with locks.folder_lock(folder / WORK, fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
        if alone:
            for stale in (folder / WORK).iterdir():
                # Only folders: to open a pipe, as rmtree does, waits until somebody writes to it.
                if _IN_WORK.fullmatch(stale.name) and stale.is_dir() and not stale.is_symlink():
                    shutil.rmtree(stale, ignore_errors=True)
    with locks.folder_lock(folder / WORK, fcntl.LOCK_SH):
        work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=folder / WORK))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def publish(folder: Path, key: str, what: str, prepared: Prepared, work: Path) -> None:
    """Puts what was made in ``work`` in place: weights first, the entry last. Raises `OSError`."""
    WHOLE_FILES.check()
    boot = durable.boot_id()
    with locks.folder_lock(folder / BLOBS, fcntl.LOCK_SH):
        known = _known_blobs(folder)
        for blob in prepared.blobs:
            if not boot:
                durable.flush(work / blob.name)
            _place(work / blob.name, folder / BLOBS / blob.name, blob, known)
        intact.note(folder / BLOBS, _files(prepared.blobs))
        weight_entry.replace(folder / f"{key}.onnx", prepared.graph, work)
        digest = hashlib.sha256(prepared.graph).hexdigest()
        weight_entry.write(
            folder, Entry(key, what, len(prepared.graph), digest, prepared.blobs, boot=boot), work
        )


def refuse(folder: Path, key: str, what: str, reason: str, work: Path) -> None:
    """Notes that a model cannot be prepared (`REFUSED_SECONDS`). Raises `OSError`."""
    weight_entry.write(folder, Entry(key, what, refused=reason or "unknown"), work)


def remove(folder: Path, key: str) -> None:
    """Removes a damaged entry; weights that nothing refers to any more go with the next `throw_out`."""
    for path in (folder / f"{key}.json", folder / f"{key}.onnx", _marker(folder, key)):
        with contextlib.suppress(OSError):
            regular_files.remove(path)


def listing(folder: Path) -> list[Entry]:
    """All entries, the longest unused first."""
    entries = []
    with contextlib.suppress(OSError):
        for path in folder.glob("*.json"):
            if not _KEY.fullmatch(path.stem):
                continue
            with contextlib.suppress(OSError):
                entry = weight_entry.read_from(path)
                entries.append(entry or Entry(path.stem, "damaged", used=path.lstat().st_mtime))
    return sorted(entries, key=lambda entry: entry.used)


def occupied(folder: Path) -> int:
    """Bytes that the store takes on the disk."""
    total = 0
    for place in (folder, folder / BLOBS):
        with contextlib.suppress(OSError), os.scandir(place) as found:
            for item in found:
                with contextlib.suppress(OSError):
                    if _OURS.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                        total += item.stat(follow_symlinks=False).st_blocks * 512
    return total


def throw_out(
    folder: Path, limit: int, keep: Iterable[str] = (), *, only: str | None = None
) -> tuple[list[Entry], list[Entry]]:
    """Removes entries, the longest unused first, until at most ``limit`` bytes are occupied.

    Returns those removed, and those that would have been but are in use. ``keep``: keys to leave; ``only``:
    the one key that may go.
    """
    removed: list[Entry] = []
    busy: list[Entry] = []
    kept = set(keep)
    if not folder.is_dir():
        return removed, busy
    # The folder may be new, or somebody has removed this one: all of the cache may be deleted at any time.
    (folder / BLOBS).mkdir(mode=0o700, exist_ok=True)
    with locks.folder_lock(folder / BLOBS, fcntl.LOCK_EX) as alone:
        if not alone:
            return removed, busy  # no locks here: another process may be at work
        entries = listing(folder)
        _sweep(folder, entries)
        total = occupied(folder)
        for entry in entries:
            if total <= limit and limit > 0:
                break
            if entry.key in kept or (only is not None and entry.key != only):
                continue
            if not _remove_unused(folder, entry.key):
                busy.append(entry)
                continue
            removed.append(entry)
            gone = {one.key for one in removed}
            _sweep(folder, [one for one in entries if one.key not in gone])
            total = occupied(folder)
    return removed, busy


def _remove_unused(folder: Path, key: str) -> bool:
    try:
        descriptor = weight_entry.opened(folder / f"{key}.json")
    except OSError:
        return True
    if descriptor is None:
        remove(folder, key)
        return True
    try:
        if not locks.lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, folder / f"{key}.json"):
            return False
        remove(folder, key)
    finally:
        os.close(descriptor)
    return True


def _sweep(folder: Path, entries: Iterable[Entry]) -> None:
    """Removes weights that none of ``entries`` refers to, and graphs without an entry."""
    entries = list(entries)
    wanted = {blob.name for entry in entries for blob in entry.blobs}
    keys = {entry.key for entry in entries}
    with contextlib.suppress(OSError):
        unwanted = [path for path in (folder / BLOBS).iterdir() if path.name not in wanted]
        beside = (*folder.glob("*.onnx"), *folder.glob("*.boot"))
        for path in (*unwanted, *(path for path in beside if path.stem not in keys)):
            if not _OURS.fullmatch(path.name):
                continue
            with contextlib.suppress(OSError):
                regular_files.remove(path)


def _known_blobs(folder: Path) -> set[str]:
    """Weights that are whole, as far as is known without reading them."""
    return {
        blob.name
        for entry in listing(folder)
        if durable.is_known(_marker(folder, entry.key), entry.boot)
        and intact.is_known(folder / BLOBS, _files(entry.blobs))
        for blob in entry.blobs
    }


def _marker(folder: Path, key: str) -> Path:
    return folder / f"{key}.boot"


def _files(blobs: Iterable[Blob]) -> intact.Files:
    return {blob.name: (blob.bytes, blob.name) for blob in blobs}


def _place(made: Path, target: Path, blob: Blob, known: Collection[str]) -> None:
    """Moves a weight into place, unless it is there: then what is there stays, for others have mapped it."""
    try:
        os.link(made, target)
        made.unlink()  # now, since it changes the file's times, by which it is known to be whole
    except FileExistsError:
        if not (_has_size(target, blob) and (blob.name in known or _has_name(target, blob))):
            regular_files.replace(made, target)
    except OSError:  # a file system without hard links
        regular_files.replace(made, target)


def _has_size(path: Path, blob: Blob) -> bool:
    return regular_files.size_of(path) == blob.bytes


def _has_name(path: Path, blob: Blob) -> bool:
    """Whether a file has the bytes that a weight's name is the hash of."""
    try:
        return regular_files.sha256_of(path, blob.bytes) == blob.name
    except OSError:
        return False


def _is_whole(folder: Path, entry: Entry) -> bool:
    """Whether all files are there with their sizes: a shorter one would kill a process that maps it."""
    return all(_has_size(folder / BLOBS / blob.name, blob) for blob in entry.blobs)
