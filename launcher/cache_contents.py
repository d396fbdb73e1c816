"""What the cache holds, and emptying it: sliced models, hashes of model files, prepared weights."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from ranks.cache_folder import cache_folder, hashes_folder

KINDS = ("slices", "hashes", "weights")


@dataclass(frozen=True)
class Item:
    """A part of the cache: a sliced model, a model's prepared weights, or all hashes together."""

    kind: str
    name: str
    what: str
    bytes: int
    """Weights that several models share count for each of them."""
    used: float
    """When it was last used, in seconds since 1970."""


@dataclass(frozen=True)
class Contents:
    """All items, the longest unused first within a kind, and the bytes on the disk by kind."""

    folder: Path
    items: list[Item]
    occupied: dict[str, int]
    weights_limit: int


def contents() -> Contents:
    """What is in the cache now. Raises `ShardrunError` where its limit is malformed."""
    from ranks.weights import entries
    from ranks.weights.store import limit_of

    folder = cache_folder()
    slices = _slices(folder / "slices")
    hashes = _hashes()
    weights = [
        Item(
            "weights",
            entry.key,
            f"none: {entry.refused}" if entry.refused else entry.what,
            entry.bytes,
            entry.used,
        )
        for entry in entries.listing(folder / "weights")
    ]
    occupied = {
        "slices": sum(item.bytes for item in slices),
        "hashes": sum(item.bytes for item in hashes),
        "weights": entries.occupied(folder / "weights"),
    }
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return Contents(folder, [*slices, *hashes, *weights], occupied, limit_of(there))


def clear(kinds: Sequence[str] = KINDS) -> tuple[list[Item], list[Item]]:
    """Removes all of these kinds. Returns what was removed, and what was left because it is in use.

    Raises `ConfigError` where something cannot be removed.
    """
    from ranks.weights import entries

    before = {item.name: item for item in contents().items}
    removed: list[Item] = []
    busy: list[Item] = []
    try:
        if "slices" in kinds:
            _clear_slices(cache_folder() / "slices", removed, busy)
        if "hashes" in kinds:
            removed += _hashes()
            for path in _files(hashes_folder()):
                path.unlink(missing_ok=True)
        if "weights" in kinds:
            gone, used = entries.throw_out(cache_folder() / "weights", 0)
            removed += [before[entry.key] for entry in gone if entry.key in before]
            busy += [before[entry.key] for entry in used if entry.key in before]
    except OSError as problem:
        raise ConfigError(
            f"the cache at {cache_folder()} cannot be cleared: {problem.strerror or problem}"
        ) from None
    return removed, busy


def _slices(folder: Path) -> list[Item]:
    found = []
    for path in _children(folder):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                what = "not finished" if ".tmp" in path.name else _source(path)
                size = sum(_size(file) for file in path.rglob("*"))
                found.append(Item("slices", path.name, what, size, path.stat().st_mtime))
    return sorted(found, key=lambda item: item.used)


def _source(place: Path) -> str:
    from launcher.errors import ShardrunError
    from sharding.manifest import read_manifest
    from sharding.text import counted

    try:
        manifest = read_manifest(place)
    except ShardrunError:
        return "damaged"
    return f"{manifest.source.file} on {counted(manifest.world_size, 'rank')}"


def _hashes() -> list[Item]:
    files = [path for path in _files(hashes_folder()) if path.suffix == ".json"]
    if not files:
        return []
    times = [path.stat().st_mtime for path in files if path.exists()]
    size = sum(map(_size, files))
    return [Item("hashes", "hashes", f"of {len(files)} model files", size, max(times, default=0.0))]


def _clear_slices(folder: Path, removed: list[Item], busy: list[Item]) -> None:
    mapped = _mapped(folder)
    for item in _slices(folder):
        place = folder / item.name
        lock = folder / f"{item.name.split('.tmp')[0]}.lock"
        with _alone(lock) as alone:
            if not alone or any(Path(name).is_relative_to(place) for name in mapped):
                busy.append(item)
                continue
            # Whoever finds the folder without its manifest makes it again.
            (place / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(place)
            removed.append(item)
    for lock in _files(folder):
        if lock.suffix == ".lock" and not lock.with_suffix("").exists():
            with _alone(lock) as alone:
                if alone:
                    lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Whether nobody else holds a lock; held meanwhile."""
    try:
        descriptor = os.open(lock, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
            return
        yield False
    finally:
        os.close(descriptor)


def _mapped(folder: Path) -> set[str]:
    """Files in ``folder`` that processes of this user have mapped, as sessions do with a model's weights."""
    found: set[str] = set()
    inside = f"{folder.resolve()}/"
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError), maps.open(encoding="utf-8", errors="surrogateescape") as lines:
            found.update(line[line.index(inside) :].rstrip("\n") for line in lines if inside in line)
    return {str(folder / Path(name).relative_to(inside)) for name in found}


def _children(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _files(folder: Path) -> list[Path]:
    return [path for path in _children(folder) if path.is_file()]


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_blocks * 512 if path.is_file() else 0
    return 0
