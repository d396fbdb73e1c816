"""Sliced models, kept between runs: ``shardrun run model.onnx`` slices once.

A slice folder's name is a hash of all that decides its content: the model file and its external data, the
number of ranks, the options, the manifest's version and the slicer's own code. It lies in the cache folder as
``slices/KEY`` (`ranks.cache.cache`), and may be deleted at any time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from launcher.errors import ConfigError, ShardrunError
from ranks.cache.cache import Cache
from ranks.cache.folder import ELSEWHERE, cache_folder, is_hashed, size_of_files
from ranks.cache.intact import Files, still_has
from ranks.cache.keys import beginning, hash_of_code, key_of
from ranks.common.progress import Progress
from ranks.common.waiting import HeldError
from sharding.common.registry import entry_points
from sharding.common.storage import why_unwritable
from sharding.demands.options import SliceOptions
from sharding.errors import RoomError
from sharding.slices.manifest import FILE_NAME, sha256_of


def sliced(
    model: str | Path,
    ranks: int,
    *,
    options: SliceOptions | None = None,
    allow_replicated: bool = False,
    progress: Progress | None = None,
    timeout: float | None = None,
    before: Callable[[], object] | None = None,
) -> Path:
    """The slice folder of ``model`` for ``ranks`` ranks, made now unless the cache has it; it stays there
    as long as this process lives.

    ``allow_replicated`` is a short form of the option of that name. ``timeout``: seconds to wait for another
    process that slices the same (default: ``SHARDRUN_TIMEOUT``). ``before`` is called before anything is
    sliced, or all of the model read. Raises what slicing raises, `HeldError` if that process takes longer,
    and `ConfigError` if the cache cannot be written.
    """
    model = Path(model)
    options = options or SliceOptions()
    if allow_replicated:
        options = replace(options, allow_replicated=True)
    try:
        root = cache_folder()
    except ShardrunError as problem:
        raise ConfigError(str(problem)) from None
    cache = Cache("slices", root)
    try:
        _demand_room(cache.folder, model, ranks)
        if before is not None and not is_hashed(model):  # to hash it is to read it
            before()
            before = None
        return cache.get_or_make(
            _key(model, ranks, options),
            lambda folder: _slice_into(folder, model, ranks, options, progress),
            # What a disk changed shows by nothing else. Ranks read all other files and say which is damaged.
            fits=lambda folder: still_has(folder, FILE_NAME),
            before=before,
            timeout=timeout,
        )
    except HeldError:
        raise
    except RoomError as problem:
        raise ConfigError(
            f"the cache of sliced models at {cache.folder} cannot be used: {problem.lack}: free some space "
            f"there, or {ELSEWHERE}"
        ) from None
    except OSError as problem:
        raise ConfigError(
            f"the cache of sliced models at {problem.filename or cache.folder} cannot be used: "
            f"{why_unwritable(problem, ELSEWHERE)}"
        ) from None


def _demand_room(folder: Path, model: Path, ranks: int) -> None:
    """Raises `RoomError` where slices of a model are not there and have no room: its key is a hash, which
    takes hours of a file that is so long."""
    there = next((one for one in (folder, *folder.absolute().parents) if one.is_dir()), None)
    if there is None:  # whoever makes the folder says so
        return
    disk = shutil.disk_usage(there)
    kept = beginning(model, f"-{ranks}")
    room = disk.total if any(one.name.startswith(kept) for one in _listed(folder)) else disk.free
    needed = size_of_files(model)
    if disk.total and needed > room:  # no size at all: a file system that does not tell
        raise RoomError(folder, needed, disk.free)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _slice_into(
    folder: Path, model: Path, ranks: int, options: SliceOptions, progress: Progress | None
) -> Files:
    from sharding import slice_model

    made = slice_model(model, ranks, folder, options=options, progress=progress)
    # All but the manifest were hashed while they were written.
    return {one.file: (one.bytes, one.sha256) for rank in made.ranks for one in rank.files}


def _key(model: Path, ranks: int, options: SliceOptions) -> str:
    asked = {item.name: _told(getattr(options, item.name)) for item in fields(options)}
    parts = {"ranks": ranks, "options": asked, "slicer": _slicer()}
    return key_of(model, parts, about=f"-{ranks}")


_LARGEST = 1 << 30
"""More bytes than any file that steers slicing may have: one that never ends is not read for its key."""


def _told(value: object) -> object:
    """An option's value for the key. A file counts by its content, wherever it lies."""
    if isinstance(value, Path):
        try:
            if value.is_file() and value.stat().st_size <= _LARGEST:
                return sha256_of(value)
        except OSError:
            pass
        return "unreadable"  # slicing says so
    if isinstance(value, Mapping):
        return sorted(value.items())
    return value if value is None or isinstance(value, bool | int) else str(value)


def _slicer() -> str:
    import sharding

    others = {
        f"{group} {name}": where
        for group in ("shardrun.formats", "shardrun.rules")
        for name, where in sorted(entry_points().get(group, {}).items())
    }
    return hash_of_code(Path(sharding.__file__).parent, others)
