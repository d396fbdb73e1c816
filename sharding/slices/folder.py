"""The output folder: it appears complete or not at all, and nothing that is not ours is overwritten."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sharding.common.storage import is_place, probe, why_unwritable
from sharding.errors import OutputError, RoomError, ShardError, SliceError
from sharding.slices import manifest as manifests
from sharding.slices.cut_short import WHOLE_FILES

_SUFFIX = ".partial"
_LOCK_SECONDS = 5.0
"""How long the parent folder's lock is waited for: ours is held for a moment, another's may be for ever."""
_STALE_SECONDS = 10
"""Between making its folder and locking it, a slicing that runs beside this one looks stale."""

_OURS = re.compile(manifests.SLICE_FILE)


@contextmanager
def new_folder(output: Path, needed: int, *, merge: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``output`` that takes its place at the end, and vanishes on failure.

    With ``merge`` its files join those of an ``output`` that was written for other ranks of the same plan.
    """
    check_output(output)
    target = _target(output)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(target.parent)
        if disk.total and disk.free < needed:  # no size at all: /proc, or a file system that does not tell
            raise RoomError(output, needed, disk.free)
        _remove_stale(target)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), suffix=_SUFFIX, dir=target.parent))
    except OSError as error:
        raise _unwritable(output, error) from None
    try:
        with _locked(temporary):
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o777 & ~mask)
            yield temporary
            WHOLE_FILES.check()
            with _parent_locked(target):
                _check(target)  # again: slicing may have taken minutes
                if not (merge and _merge(temporary, target)):
                    _replace(temporary, target)
    except OSError as error:
        raise _unwritable(output, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unwritable(output: Path, error: OSError) -> SliceError:
    kind = OutputError if is_place(error) else SliceError
    return kind(f"{output} cannot be written: {why_unwritable(error)}.")


def _target(output: Path) -> Path:
    return output.resolve() if output.is_symlink() else output.absolute()


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}-"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which the system lets go when this process ends, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: then nothing here is ever taken for stale
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _parent_locked(target: Path) -> Iterator[None]:
    """Slicings to one output look at it and replace it one after the other."""
    try:
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # not there, or may not be read: then there is nothing to lock
        yield
        return
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)


def _remove_stale(target: Path) -> None:
    """Removes what a killed slicing to this output left beside it: temporary folders whose lock is free, and
    that hold nothing but what slicing writes."""
    name = re.compile(rf"{re.escape(_prefix(target))}[a-z0-9_]{{8}}(-old)?{re.escape(_SUFFIX)}")
    for path in target.parent.iterdir():
        if not name.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another slicing ended meanwhile
        young = time.time() - os.fstat(descriptor).st_mtime < _STALE_SECONDS
        try:
            if young or os.fstat(descriptor).st_uid != os.geteuid() or not _is_slicing(path):
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def _is_slicing(folder: Path) -> bool:
    """Whether all in a folder has the name of something that slicing writes, whole or half."""
    names = re.compile(rf"({_OURS.pattern}|{re.escape(manifests.FILE_NAME)})|\..*\.[0-9a-f]{{8}}")
    return all(names.fullmatch(path.name) and not path.is_dir() for path in folder.iterdir())


def _replace(temporary: Path, target: Path) -> None:
    old = temporary.with_name(temporary.name.removesuffix(_SUFFIX) + "-old" + _SUFFIX)
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _merge(temporary: Path, target: Path) -> bool:
    """Moves the new files into ``target``, the manifest of all last; whether both are of one plan."""
    try:
        there, here = manifests.read_manifest(target), manifests.read_manifest(temporary)
    except ShardError:
        return False
    if _without_files(there) != _without_files(here):
        return False
    ranks = tuple(new if new.files else old for new, old in zip(here.ranks, there.ranks, strict=True))
    manifests.write_manifest(temporary, replace(here, ranks=ranks))
    names = sorted({item.file for entry in here.ranks for item in entry.files})
    for name in [*names, manifests.FILE_NAME]:
        (temporary / name).replace(target / name)
    return True


def _without_files(manifest: manifests.Manifest) -> manifests.Manifest:
    return replace(manifest, ranks=tuple(replace(entry, files=()) for entry in manifest.ranks))


def check_output(output: Path) -> None:
    """Raises `OutputError` unless ``output`` may be written: absent, empty, or an earlier slice folder."""
    try:
        probe(output.absolute())
        target = _target(output)
    except OSError as error:
        raise _unwritable(output, error) from None
    except RuntimeError as error:  # links in a circle
        raise OutputError(f"{output} cannot be read: {error}.") from None
    with _parent_locked(target):
        _check(output)


def _check(output: Path) -> None:
    try:
        if not output.exists():
            return
        if not output.is_dir():
            raise OutputError(f"{output} is a file; choose another --output folder.")
        if not any(output.iterdir()):
            return
    except OSError as error:
        raise OutputError(f"{output} cannot be read: {error.strerror or error}.") from None
    try:
        known = manifests.read_manifest(output)
    except ShardError:
        raise OutputError(
            f"{output} holds other files than a slice; choose another --output folder, or empty this one."
        ) from None
    ours = {manifests.FILE_NAME, *(item.file for entry in known.ranks for item in entry.files)}
    unfinished = any(not entry.files for entry in known.ranks)  # of which a writer may have been stopped
    others = sorted(
        path.name
        for path in output.iterdir()
        if not (path.name in ours or (unfinished and _OURS.fullmatch(path.name)))
    )
    if others:
        shown = ", ".join(others[:3])
        raise OutputError(
            f"{output} holds other files than its slice ({shown}); choose another --output folder."
        )


Fill = Callable[[BinaryIO], None]


def replace_file(path: Path, fill: Fill) -> None:
    """Writes a file whole or not at all, in the place of a file of its name. Raises `OSError`, also where a
    device, a pipe or a folder has the name."""
    replace_files([(path, fill)])


def replace_files(files: Sequence[tuple[Path, Fill]]) -> None:
    """Writes files that belong together, in this order; none takes its place before all are written."""
    made: list[Path] = []
    try:
        for path, fill in files:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "a device or pipe is there, which would be replaced", str(path))
            made.append(path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}"))
            with made[-1].open("xb") as target:
                fill(target)
        WHOLE_FILES.check()
        for work, (path, _) in zip(made, files, strict=True):
            work.replace(path)
    except BaseException:
        for work in made:
            with suppress(OSError):
                work.unlink()
        raise
