"""What the cache holds, and emptying it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError, ShardrunError
from ranks.cache import entries as cache_entries
from ranks.cache import place as cache_place
from ranks.cache.folder import ELSEWHERE, cache_folder
from ranks.cache.limit import limit_of, memos, occupied
from sharding.common.storage import why_unwritable
from sharding.common.text import counted

KINDS = tuple(cache_place.FORMS)


@dataclass(frozen=True)
class Item:
    """A part of the cache: one folder of it, a model's prepared weights, or all hashes together."""

    kind: str
    name: str
    what: str
    bytes: int
    """Weights that several models share count for each of them."""
    used: float
    """When it was last used, in seconds since 1970."""


@dataclass(frozen=True)
class Contents:
    """All items, the longest unused first within a kind, and the bytes on the disk by kind.

    ``limit``: the most bytes of all together, after something was added."""

    folder: Path
    items: list[Item]
    occupied: dict[str, int]
    limit: int


def contents(kinds: Sequence[str] = KINDS) -> Contents:
    """What is in the cache now, of these kinds.

    Raises `ShardrunError` where its limit is malformed, `ConfigError` where it is no folder, or one that
    others may write to.
    """
    folder = cache_folder()
    there = _existing(folder)
    chosen = [kind for kind in KINDS if kind in kinds]
    try:
        sizes = occupied(folder)
        items = [item for kind in chosen for item in _items(folder, kind)]
    except OSError as problem:
        raise ConfigError(
            f"the cache at {problem.filename or folder} cannot be used: {why_unwritable(problem, ELSEWHERE)}"
        ) from None
    return Contents(folder, items, {kind: sizes[kind] for kind in chosen}, limit_of(there))


def _existing(folder: Path) -> Path:
    """The cache folder, or the nearest folder above it that there is."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"the cache cannot be at {folder}: {there} is no folder; set SHARDRUN_CACHE to one")
    return there


def clear(kinds: Sequence[str] = KINDS) -> tuple[list[Item], list[Item]]:
    """Removes all of these kinds. Returns what was removed, and what was left because it is in use.

    Raises `ConfigError` where something cannot be removed.
    """
    removed: list[Item] = []
    busy: list[Item] = []
    root = cache_folder()
    _existing(root)
    try:
        for kind in KINDS:
            if kind not in kinds:
                continue
            if kind == "hashes":
                removed += _hashes(root)
                for path in memos(root):
                    path.unlink(missing_ok=True)
            elif kind == "weights":
                _clear_weights(root, removed, busy)
            else:
                _clear_folders(root, kind, removed, busy)
    except OSError as problem:
        raise ConfigError(
            f"the cache at {problem.filename or root} cannot be cleared: {why_unwritable(problem)}"
        ) from None
    return removed, busy


def _items(root: Path, kind: str) -> list[Item]:
    from ranks.cache import weight_entries

    if kind == "hashes":
        return _hashes(root)
    if kind == "weights":
        folder = cache_place.ours(root, kind)
        return [
            Item(kind, one.key, f"none: {one.refused}" if one.refused else one.what, one.bytes, one.used)
            for one in (weight_entries.listing(folder) if folder else ())
        ]
    return [_folder(found) for found in cache_entries.listing(root, kind)]


def _folder(found: cache_entries.Folder) -> Item:
    what = _SOURCES[found.kind](found.path) if found.finished else "not finished"
    return Item(found.kind, found.path.name, what, found.bytes, found.used)


def _clear_weights(root: Path, removed: list[Item], busy: list[Item]) -> None:
    from ranks.cache import weight_entries

    before = {item.name: item for item in _items(root, "weights")}
    folder = cache_place.ours(root, "weights")
    gone, used = weight_entries.throw_out(folder, 0) if folder else ([], [])
    removed += [before[entry.key] for entry in gone if entry.key in before]
    busy += [before[entry.key] for entry in used if entry.key in before]


def _clear_folders(root: Path, kind: str, removed: list[Item], busy: list[Item]) -> None:
    found = cache_entries.listing(root, kind)
    mapped = cache_entries.mapped_files([cache_place.place_of(root, kind)] if found else [])
    for one in found:
        item = _folder(one)
        (removed if cache_entries.remove(one, mapped) else busy).append(item)


def _hashes(root: Path) -> list[Item]:
    files = memos(root)
    if not files:
        return []
    times = [path.stat().st_mtime for path in files if path.exists()]
    size = sum(map(cache_entries.size, files))
    return [Item("hashes", "hashes", f"of {len(files)} files and folders", size, max(times, default=0.0))]


def _sliced(place: Path) -> str:
    from sharding.slices.manifest import read_manifest

    try:
        manifest = read_manifest(place)
    except ShardrunError:
        return "damaged"
    return f"{manifest.source.file} on {counted(manifest.world_size, 'rank')}"


def _model(place: Path, made: str, otherwise: str) -> str:
    """The model in a folder, and how it was ``made``."""
    models = [path.name for path in cache_entries.children(place) if path.suffix == ".onnx"]
    return f"{models[0]}, {made}" if models else otherwise


_converted = functools.partial(_model, made="from another format", otherwise="damaged")
_exported = functools.partial(_model, made="exported", otherwise="not finished")
_copied = functools.partial(_model, made="a copy for a rank", otherwise="a copy for a rank")


def _on_device(place: Path) -> str:
    try:
        return f"{(place / 'model.txt').read_bytes()[:4096].decode(errors='replace')} for a GPU"
    except OSError:
        return "damaged"


_SOURCES: dict[str, Callable[[Path], str]] = {
    "slices": _sliced, "converted": _converted, "device": _on_device, "minilm": _exported,
    "benchmarks": _exported, "staged": _copied,
}  # fmt: skip
