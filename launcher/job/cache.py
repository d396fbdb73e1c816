"""Sliced models, kept between runs: ``shardrun run model.onnx`` slices once.

A slice folder's name is a hash of all that decides its content: the model file and its external data, the
number of ranks, the options, the manifest's version and the slicer's own code. It is built beside its place
and renamed whole, so a folder under its final name is complete, whoever else was slicing or crashed.

    slices/KEY/  a slice folder, in the cache folder (`ranks.cache.folder`)
    slices/KEY.lock  held while KEY is being made (`ranks.cache.entries`)

Everything in it may be deleted at any time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, ShardrunError
from ranks.cache.folder import ELSEWHERE, cache_folder, fingerprint, hash_file, locked
from ranks.cache.intact import is_sealed, note, say_damaged, seal
from ranks.cache.limit import bound, limit_of
from ranks.cache.locks import hold
from ranks.cache.place import FORMS, discard, place_of, prepare
from ranks.common.waiting import HeldError
from sharding.common.registry import code_of, entry_points
from sharding.common.storage import why_unwritable
from sharding.demands.options import SliceOptions
from sharding.errors import RoomError

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


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
    sliced. Raises what slicing raises, `HeldError` if that process takes longer, and `ConfigError` if the
    cache cannot be written.
    """
    model = Path(model)
    options = options or SliceOptions()
    if allow_replicated:
        options = replace(options, allow_replicated=True)
    try:
        root = cache_folder()
    except ShardrunError as problem:
        raise ConfigError(str(problem)) from None
    folder = place_of(root, "slices")
    try:
        prepare(root, "slices")
        place = folder / _key(model, ranks, options)
        if hold(place, timeout) and is_sealed(place):
            return place
        limit = limit_of(folder)
        with locked(place.with_suffix(".lock"), timeout):
            # Whoever held the lock before may have made it.
            if hold(place, timeout) and is_sealed(place):
                return place
            if before is not None:
                before()
            _slice_into(place, model, ranks, options, progress)
            hold(place, timeout)
        bound(folder.parent, limit)
        return place
    except HeldError:
        raise
    except RoomError as problem:
        raise ConfigError(
            f"the cache of sliced models at {folder} cannot be used: {problem.lack}: free some space there, "
            f"or {ELSEWHERE}"
        ) from None
    except OSError as problem:
        raise ConfigError(
            f"the cache of sliced models at {problem.filename or folder} cannot be used: "
            f"{why_unwritable(problem, ELSEWHERE)}"
        ) from None


def _slice_into(
    place: Path, model: Path, ranks: int, options: SliceOptions, progress: Progress | None
) -> None:
    from sharding import slice_model

    # Whatever a crash left of earlier tries; the lock says that nobody is at work there.
    for stale in place.parent.glob(f"{place.name}.tmp*"):
        if stale.is_dir():  # else it is not ours; and to open a pipe, as rmtree does, waits for a writer
            shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{place.name}.tmp", dir=place.parent))
    try:
        made = slice_model(model, ranks, work / "slices", options=options, progress=progress)
        # All but the manifest were hashed while they were written.
        files = seal(
            work / "slices", {one.file: (one.bytes, one.sha256) for rank in made.ranks for one in rank.files}
        )
        if os.path.lexists(place):  # else we would not be here
            say_damaged(place)
            discard(place, FORMS["slices"])
        try:
            (work / "slices").chmod(0o700)
            (work / "slices").rename(place)
            note(place, files)
        except OSError:
            # On file systems without locks another process may have been faster.
            if not is_sealed(place):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _key(model: Path, ranks: int, options: SliceOptions) -> str:
    asked = {item.name: _told(getattr(options, item.name)) for item in fields(options)}
    parts = {"model": fingerprint(model), "ranks": ranks, "options": asked, "slicer": _slicer()}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
    # A readable start, for a person who looks into the folder.
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in model.stem)[:40]
    return f"{stem}-{ranks}-{digest}"


def _told(value: Any) -> Any:
    """An option's value for the key: of a file its content, wherever it lies."""
    if isinstance(value, Path):
        try:
            return hash_file(value)
        except OSError:
            return "missing"  # slicing says so
    if isinstance(value, Mapping):
        return sorted(value.items())
    return value if value is None or isinstance(value, bool | int) else str(value)


@functools.cache
def _slicer() -> str:
    """A hash of the slicer's code: another version of it, or one being worked on, may cut otherwise."""
    import sharding

    digest = hashlib.sha256()
    root = Path(sharding.__file__).parent
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    for group in ("shardrun.formats", "shardrun.rules"):
        for name, where in sorted(entry_points().get(group, {}).items()):
            digest.update(f"{group} {name} {where} {code_of(where)}\n".encode())
    return digest.hexdigest()
