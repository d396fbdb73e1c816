"""The cache folder: where it is, locks in it, and the hashes of model files that it remembers.

    $SHARDRUN_CACHE, else $XDG_CACHE_HOME/shardrun, else ~/.cache/shardrun
        slices/    sliced models (`launcher.cache`)        weights/  prepared weights (`ranks.weights.store`)
        converted/ models of other formats as ONNX (`ranks.imported`)
        device/    models optimised for a GPU, whose weights processes share (`ranks.weights.on_device`)
        hashes/NAME.json  the hash of a model file, good while the files' size, time and inode stay the same

Everything in it may be deleted at any time; `ranks.cache_limit` does so to keep it small.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranks import regular
from ranks.errors import ModelError, ShardrunError
from ranks.pins import is_at
from sharding.manifest import sha256_of
from sharding.nearby import hint

if TYPE_CHECKING:
    import onnx

_MOST_MEMO = 64 << 20  # bytes of a remembered hash: a model may have external data files by the thousand

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where shardrun keeps what it can make again. Raises `ShardrunError` where nothing says where."""
    if own := os.environ.get("SHARDRUN_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG base directory specification says that a relative path there is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "shardrun"
    try:
        return Path.home() / ".cache" / "shardrun"
    except RuntimeError:
        raise ShardrunError(
            "cannot tell the home folder; set SHARDRUN_CACHE to a folder for what is kept between runs"
        ) from None


def is_cached(path: Path, kind: str) -> bool:
    """Whether a path lies in the cache as a thing of this kind, such as ``slices``."""
    try:
        return path.absolute().parent == cache_folder() / kind
    except ShardrunError:
        return False


@contextlib.contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Holds the lock file ``path``, made if need be; waits for whoever holds it, at most ``seconds``.

    Raises `OSError`, `TimeoutError` among them.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    descriptor = _open_lock(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
            except BlockingIOError:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"locked for {seconds} seconds", str(path)) from None
                time.sleep(0.02)
                continue
            except OSError as problem:  # some network file systems have no locks: then two may work at once
                log.info("cannot lock %s: %s", path, problem)
            if is_at(descriptor, path):
                break
            there = _open_lock(path)  # whoever held it has removed it
            os.close(descriptor)
            descriptor = there
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    # O_NONBLOCK: a pipe in its place fails at once, for nobody reads from it.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def fingerprint(model: Path) -> str:
    """SHA-256 over a model file and its external data files, remembered as long as they are unchanged.

    Raises `ModelError` where the model cannot be read.
    """
    absolute = Path(os.path.abspath(model))  # noqa: PTH100 - a link stays a link: external data lie beside it
    remembered = _read_memo(absolute, "model")
    if remembered is not None:
        return remembered
    names = [absolute.name, *_external_files(absolute)]
    before = [_stamp(absolute.parent / name) for name in names]
    digest = hashlib.sha256()
    for name, found in zip(names, before, strict=True):
        # What is missing is left to the reader, whose message says which weight needs it.
        content = hash_file(absolute.parent / name) if found else "missing"
        # The model may have any name; those of its external data stand in it.
        shown = "" if name == absolute.name else name
        digest.update(f"{content} {shown}\n".encode(errors="surrogateescape"))
    _write_memo(absolute, "model", names, before, digest.hexdigest())
    return digest.hexdigest()


def remembered_hash(path: Path) -> str:
    """SHA-256 of one file's bytes, remembered as long as it is unchanged. Raises `OSError`."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - as above
    found = _read_memo(absolute, "file")
    if found is None:
        before = [_stamp(absolute)]
        found = hash_file(absolute)
        _write_memo(absolute, "file", [absolute.name], before, found)
    return found


def size_of_files(model: Path) -> int:
    """Bytes of a model file, and of its external data if its `fingerprint` is remembered."""
    absolute = Path(os.path.abspath(model))  # noqa: PTH100 - as above
    try:
        files = json.loads(regular.read(_memo(absolute, "model"), _MOST_MEMO))["files"]
        return sum(int(found[0]) for _, found in files)
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError, ShardrunError):
        found = _stamp(absolute)
        return found[0] if found else 0


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes. Raises `OSError`."""
    return sha256_of(path)


def hashes_folder() -> Path:
    """Where remembered hashes lie."""
    return cache_folder() / "hashes"


def external_locations(message: onnx.ModelProto) -> list[str]:
    """The names of a model's external data files that lie in its folder, sorted."""
    from sharding.protobuf import IN_MODEL_FILE

    # A hostile model could name any file, even one without end; its reader refuses what is not in the folder.
    found = (text for key, text in _external_entries(message) if key == "location")
    names = {name for name in found if name != IN_MODEL_FILE}
    return sorted(name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts)


def external_lengths(message: onnx.ModelProto) -> list[int]:
    """The bytes that each tensor of a model has in external data, where it says."""
    found = (text for key, text in _external_entries(message) if key == "length")
    return [int(text) for text in found if text.isascii() and text.isdigit()]


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file by way of a temporary one beside it. Raises `OSError`."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _memo(path: Path, kind: str) -> Path:
    text = os.fsencode(path) if kind == "model" else os.fsencode(path) + b"\0" + kind.encode()
    return hashes_folder() / f"{hashlib.sha256(text).hexdigest()[:24]}.json"


def _read_memo(path: Path, kind: str) -> str | None:
    try:
        data: Any = json.loads(regular.read(_memo(path, kind), _MOST_MEMO))
        if data["files"] and all(_stamp(path.parent / name) == found for name, found in data["files"]):
            return str(data["sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, ShardrunError):
        pass
    return None


def _write_memo(
    path: Path, kind: str, names: Sequence[str], before: Sequence[list[int] | None], found: str
) -> None:
    if None in before or list(before) != [_stamp(path.parent / name) for name in names]:
        return  # changed meanwhile: the hash may be of neither state
    data = {"files": list(zip(names, before, strict=True)), "sha256": found}
    with contextlib.suppress(OSError, ShardrunError):  # only a shortcut: without it the next run hashes again
        memo = _memo(path, kind)
        memo.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(memo, json.dumps(data).encode())


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    # Who copies or unpacks a file may set the time of its last change, but not that of its status.
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns]


def _external_files(model: Path) -> list[str]:
    """The external data files that a model names, relative to its folder; none if it cannot be parsed."""
    from google.protobuf.message import DecodeError

    from sharding.protobuf import MalformedError, parse_without_weights

    try:
        if not model.is_file():
            raise ModelError(f"{model} does not exist or is not a file{hint(model)}; expected an ONNX file.")
        proto = parse_without_weights(model)
    except OSError as problem:
        raise ModelError(f"{model} cannot be read: {problem.strerror or problem}.") from None
    except (MalformedError, DecodeError, ValueError):
        return []  # the reader says what is wrong with it
    return external_locations(proto)


def _external_entries(message: Any) -> Iterator[tuple[str, str]]:
    """The entries of every tensor with external data anywhere in a protobuf message."""
    for field, value in message.ListFields():
        if field.name == "external_data":
            yield from ((entry.key, entry.value) for entry in value)
        elif field.message_type is not None:
            for item in value if hasattr(value, "add") else [value]:
                yield from _external_entries(item)
