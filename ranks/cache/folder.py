"""The cache folder: where it is, locks in it, and the hashes of model files that it remembers.

    $SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else ~/.cache/shardrun
        slices/    sliced models (`launcher.job.cache`)
        weights/   prepared weights (`ranks.weights.prepared.store`)
        converted/ models of other formats as ONNX (`ranks.models.imported`)
        device/    models optimised for a GPU with shared weights (`ranks.weights.device.on_device`)
        hashes/NAME.json  the hash of a model file, good while the files' size, time and inode stay the same

Everything of ours in it (`ranks.cache.place`) may be deleted at any time; `ranks.cache.limit` does so to keep
it small.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ranks.cache import locks, place, regular_files
from ranks.common import settings
from ranks.errors import ModelError, ShardrunError
from sharding.common.nearby import hint
from sharding.onnx_files.external import Extent, extents, target_of
from sharding.onnx_files.protobuf import MalformedError, not_a_model
from sharding.slices.manifest import sha256_of

_MOST_MEMO = 64 << 20  # bytes of a remembered hash: a model may have external data files by the thousand

_LONG = 1 << 30
"""Bytes of a file that are not hashed where no reader would take it."""
WHOLE: Sequence[Extent] = [(0, None)]
"""All of a file."""

_IN_THE_WAY = {errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.ELOOP, errno.ENOENT}
"""What opening a lock ends with where something else lies in its place: a folder, a pipe or a socket that
nobody reads, a device, a file without the rights that we gave it, a link that leads nowhere."""

ELSEWHERE = "set SHARDRUN_CACHE to a folder to which you and nobody else may write"
"""What helps wherever the cache cannot be used."""

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where shardrun keeps what it can make again. Raises `ShardrunError` where nothing says where."""
    own = settings.CACHE.text()
    # No shell has looked at what stands in a unit's or a container's file: a folder named ~ is never meant.
    at_home = own == "~" or own.startswith("~/")
    if own and not at_home:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG base directory specification says that a relative path there is to be ignored.
    if base and Path(base).is_absolute() and not own:
        return Path(base) / "shardrun"
    try:
        return Path.home() / (own[2:] if own else ".cache/shardrun")
    except RuntimeError:
        raise ShardrunError(
            "cannot tell the home folder; set SHARDRUN_CACHE to a folder for what is kept between runs"
        ) from None


def is_cached(path: Path, kind: str) -> bool:
    """Whether a path lies in the cache as a thing of this kind, such as ``slices``."""
    try:
        return path.absolute().parent == place.place_of(cache_folder(), kind)
    except ShardrunError:
        return False


@contextlib.contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[bool]:
    """Holds the lock file ``path``, made if need be; waits aloud for who holds it, at most ``seconds``, by
    default ``SHARDRUN_TIMEOUT`` (`ranks.common.waiting`). Gives whether it is held: some file systems have no
    locks, and there two may work at once.

    Raises `OSError`, `HeldError` among them.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    descriptor = _open_lock(path)
    try:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            held = locks.lock(descriptor, fcntl.LOCK_EX, path, left)
            if locks.is_at(descriptor, path):
                break
            there = _open_lock(path)  # whoever held it has removed it
            os.close(descriptor)
            descriptor = there
        yield held
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    # O_NONBLOCK: a pipe in its place fails at once, for nobody reads from it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o600)
    except OSError as problem:
        if problem.errno not in _IN_THE_WAY or not os.path.lexists(path):
            raise
    regular_files.remove(path)
    return os.open(path, flags, 0o600)


def fingerprint(model: Path) -> str:
    """SHA-256 over a model file and what it uses of its external data files, remembered as long as they are
    unchanged.

    Raises `ModelError` where the model cannot be read.
    """
    absolute = Path(os.path.abspath(model))  # noqa: PTH100 - a link stays a link: external data lie beside it
    remembered = recall(absolute, "model")
    if remembered is not None:
        return remembered
    model_before = _stamp(absolute)  # before it is read: another one that comes meanwhile is not this one
    parts = {absolute.name: WHOLE, **_external_files(absolute)}
    names = list(parts)
    before = [model_before, *(_stamp(absolute.parent / name) for name in names[1:])]
    digest = hashlib.sha256()
    for name, found in zip(names, before, strict=True):
        # What is missing is left to the reader, whose message says which weight needs it.
        content = hash_of(absolute.parent / name, parts[name]) if found else "missing"
        # The model may have any name; those of its external data stand in it.
        shown = "" if name == absolute.name else name
        digest.update(f"{content} {shown}\n".encode(errors="surrogateescape"))
    remember(absolute, "model", names, digest.hexdigest(), before)
    return digest.hexdigest()


def is_hashed(model: Path) -> bool:
    """Whether the `fingerprint` of a model is remembered, and so takes no time."""
    return recall(Path(os.path.abspath(model)), "model") is not None  # noqa: PTH100 - as above


def remembered_hash(path: Path, parts: Sequence[Extent] = WHOLE) -> str:
    """SHA-256 of one file's bytes, or of these parts of them, remembered as long as it is unchanged. Raises
    `OSError`."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - as above
    kind = "file" if parts == WHOLE else f"file {parts}"
    found = recall(absolute, kind)
    if found is None:
        before = [_stamp(absolute)]
        found = hash_of(absolute, parts)
        remember(absolute, kind, [absolute.name], found, before)
    return found


def hash_of(path: Path, parts: Sequence[Extent]) -> str:
    """A hash of parts of a file, which may be far longer than they are."""
    if parts == WHOLE:
        return sha256_of(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start, end in parts:
            file.seek(min(start, size))
            left = math.inf if end is None else end - start
            while left > 0 and (block := file.read(int(min(left, 1 << 20)))):
                digest.update(block)
                left -= len(block)
    return digest.hexdigest()


def size_of_files(model: Path) -> int:
    """Bytes of a model file, and of what it uses of its external data; 0 where it cannot be read."""
    absolute = Path(os.path.abspath(model))  # noqa: PTH100 - as above
    try:
        parts = _external_files(absolute)
    except (ShardrunError, RecursionError):
        parts = {}
    total = 0
    for name, used in {absolute.name: WHOLE, **parts}.items():
        size = (_stamp(absolute.parent / name) or [0])[0]
        total += sum(max(0, (size if end is None else min(end, size)) - start) for start, end in used)
    return total


def hashes_folder() -> Path:
    """Where remembered hashes lie. Raises `OSError` where other users could have put them there."""
    root = cache_folder()
    return place.ours(root, "hashes") or place.place_of(root, "hashes")


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file by way of a temporary one beside it. Raises `OSError`."""
    import tempfile

    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        regular_files.replace(Path(temporary), path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _memo(path: Path, kind: str) -> Path:
    text = os.fsencode(path) if kind == "model" else os.fsencode(path) + b"\0" + kind.encode()
    return hashes_folder() / f"{hashlib.sha256(text).hexdigest()[:24]}.json"


def recall(path: Path, kind: str) -> str | None:
    """What `remember` noted of a path; None where a file has changed since, or the note is damaged."""
    try:
        data = json.loads(regular_files.read(_memo(path, kind), _MOST_MEMO))
        if data["check"] != _check(data["files"], data["sha256"]) or not data["files"]:
            return None
        if all(_stamp(path.parent / name) == found for name, found in data["files"]):
            return str(data["sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, ShardrunError):
        pass
    return None


def remember(
    path: Path, kind: str, names: Sequence[str], found: str, before: Sequence[list[int] | None] | None = None
) -> None:
    """Notes ``found``, a hash of a path, for as long as the files ``names`` beside it stay unchanged.

    ``before``: what they were before they were read; where one is not so any more, nothing is noted.
    """
    now = [_stamp(path.parent / name) for name in names]
    if None in now or before not in (None, now):
        return  # changed meanwhile: the hash may be of neither state
    files = [list(item) for item in zip(names, now, strict=True)]
    data = {"files": files, "sha256": found, "check": _check(files, found)}
    with contextlib.suppress(OSError, ShardrunError):  # only a shortcut: without it the next run hashes again
        place.prepare(cache_folder(), "hashes")
        memo = _memo(path, kind)
        write_whole(memo, json.dumps(data).encode())


def _check(files: object, found: object) -> str:
    return hashlib.sha256(json.dumps([files, found]).encode()).hexdigest()


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    # Who copies or unpacks a file may set the time of its last change, but not that of its status.
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns]


def _external_files(model: Path) -> dict[str, list[Extent]]:
    """The external data files that a model names, relative to its folder where they lie in it, and what it
    uses of each; none of a file of another format that cannot be parsed."""
    from google.protobuf.message import DecodeError

    from sharding.importers import is_imported
    from sharding.importers.message import parse_without_weights

    try:
        if not model.is_file():
            raise ModelError(f"{model} does not exist or is not a file{hint(model)}; expected an ONNX file.")
        size = model.stat().st_size
        proto = parse_without_weights(model)
    except OSError as problem:
        raise ModelError(f"{model} cannot be read: {problem.strerror or problem}.") from None
    except (MalformedError, DecodeError, ValueError) as problem:
        if size > _LONG and not is_imported(model):
            raise not_a_model(model, problem) from None
        return {}  # the reader says what is wrong with it
    found = {}
    # A hostile model could name any file, even one without end; its reader refuses what is not in the folder.
    for location, parts in extents(proto).items():
        beside = (model.parent / location).exists()
        found[location if beside else str(target_of(model).parent / location)] = parts
    return found
