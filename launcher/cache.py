"""Sliced models, kept between runs: ``shardrun run model.onnx`` slices once.

A slice folder's name is a hash of all that decides its content: the model file and its external data, the
number of ranks, the options, the manifest's version and the slicer's own code. It is built beside its place
and renamed whole, so a folder under its final name is complete, whoever else was slicing or crashed.

    $SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else ~/.cache/shardrun
        slices/KEY/      a slice folder             slices/KEY.lock   held while KEY is being made
        hashes/NAME.json the hash of a model file, good while the files' size, time and inode stay the same

Everything in it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, ShardrunError
from launcher.files import write_file
from sharding.options import SliceOptions

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def cache_folder() -> Path:
    """Where sliced models are kept."""
    if own := os.environ.get("SHARDRUN_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG base directory specification says that a relative path there is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "shardrun"
    try:
        return Path.home() / ".cache" / "shardrun"
    except RuntimeError:
        raise ConfigError(
            "cannot tell the home folder; set SHARDRUN_CACHE to a folder for sliced models"
        ) from None


def sliced(
    model: str | Path,
    ranks: int,
    *,
    options: SliceOptions | None = None,
    allow_replicated: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The slice folder of ``model`` for ``ranks`` ranks, made now unless the cache has it.

    ``allow_replicated`` is a short form of the option of that name. Raises what slicing raises, and
    `ConfigError` if the cache cannot be written.
    """
    model = Path(model)
    options = options or SliceOptions()
    if allow_replicated:
        options = replace(options, allow_replicated=True)
    folder = cache_folder() / "slices"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = folder / _key(model, ranks, options)
        if _is_complete(place):
            return place
        with _locked(place.with_suffix(".lock")):
            # Whoever held the lock before may have made it.
            if not _is_complete(place):
                _slice_into(place, model, ranks, options, progress)
        return place
    except OSError as problem:
        raise ConfigError(
            f"the cache of sliced models at {folder} cannot be used: {problem.strerror or problem}; "
            "free some space, or set SHARDRUN_CACHE to a folder that can be written"
        ) from None


def _slice_into(
    place: Path, model: Path, ranks: int, options: SliceOptions, progress: Progress | None
) -> None:
    from sharding import slice_model

    # Whatever a crash left of earlier tries; the lock says that nobody is at work there.
    for stale in place.parent.glob(f"{place.name}.tmp*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{place.name}.tmp", dir=place.parent))
    try:
        slice_model(model, ranks, work / "slices", options=options, progress=progress)
        if place.exists():  # else we would not be here
            log.warning("%s was damaged and is made again", place)
            shutil.rmtree(place)
        try:
            (work / "slices").rename(place)
        except OSError:
            # On file systems without locks another process may have been faster.
            if not _is_complete(place):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_complete(place: Path) -> bool:
    """Whether a slice folder is there with all its files at their sizes (ranks check their hashes)."""
    from sharding.manifest import read_manifest

    if not place.is_dir():
        return False
    try:
        manifest = read_manifest(place)
        for rank in manifest.ranks:
            for entry in rank.files:
                if (place / entry.file).stat().st_size != entry.bytes:
                    return False
    except (ShardrunError, OSError) as problem:
        log.info("%s is damaged: %s", place, problem)
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as problem:  # some network file systems have no locks: then two may slice at once
            log.info("cannot lock %s: %s", path, problem)
        yield


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
            return _hash_file(value)
        except OSError:
            return "missing"  # slicing says so
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
    return digest.hexdigest()


def fingerprint(model: Path) -> str:
    """SHA-256 over a model file and its external data files, remembered as long as they are unchanged."""
    absolute = Path(os.path.abspath(model))  # noqa: PTH100 - a link stays a link: external data lie beside it
    memo = cache_folder() / "hashes" / f"{hashlib.sha256(os.fsencode(absolute)).hexdigest()[:24]}.json"
    remembered = _read_memo(memo, absolute.parent)
    if remembered is not None:
        return remembered
    names = [absolute.name, *_external_files(absolute)]
    before = [_stamp(absolute.parent / name) for name in names]
    digest = hashlib.sha256()
    for name, stamp in zip(names, before, strict=True):
        # What is missing is left to the slicer, whose message says which weight needs it.
        content = _hash_file(absolute.parent / name) if stamp else "missing"
        digest.update(f"{content} {name}\n".encode(errors="surrogateescape"))
    if None not in before and before == [_stamp(absolute.parent / name) for name in names]:
        _write_memo(memo, {"files": list(zip(names, before, strict=True)), "sha256": digest.hexdigest()})
    return digest.hexdigest()


def _read_memo(path: Path, folder: Path) -> str | None:
    try:
        data: Any = json.loads(path.read_bytes())
        if all(_stamp(folder / name) == stamp for name, stamp in data["files"]):
            return str(data["sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


def _write_memo(path: Path, data: Any) -> None:
    with contextlib.suppress(OSError, ConfigError):  # only a shortcut: without it the next run hashes again
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(path, json.dumps(data).encode(), "hash")


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev]


def _hash_file(path: Path) -> str:
    from sharding.manifest import sha256_of

    return sha256_of(path)


def _external_files(model: Path) -> list[str]:
    """The external data files that a model names, relative to its folder; none if it cannot be parsed."""

    from google.protobuf.message import DecodeError

    from sharding.errors import ModelError
    from sharding.protobuf import IN_MODEL_FILE, MalformedError, parse_without_weights

    try:
        if not model.is_file():
            raise ModelError(f"{model} does not exist or is not a file; expected an ONNX file.")
        proto = parse_without_weights(model)
    except OSError as problem:
        raise ModelError(f"{model} cannot be read: {problem.strerror or problem}.") from None
    except (MalformedError, DecodeError, ValueError):
        return []  # the slicer says what is wrong with it
    # A hostile model could name any file, even one without end; the slicer refuses what is not in the folder.
    names = {name for name in _locations(proto) if name != IN_MODEL_FILE}
    return sorted(name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts)


def _locations(message: Any) -> Iterator[str]:
    """``location`` of every tensor with external data anywhere in a protobuf message."""
    for field, value in message.ListFields():
        if field.name == "external_data":
            yield from (entry.value for entry in value if entry.key == "location")
        elif field.message_type is not None:
            for item in value if hasattr(value, "add") else [value]:
                yield from _locations(item)
