"""Models of other formats than ONNX, converted into the cache folder: what a rank loads is always ONNX.

    converted/KEY/NAME.onnx  the model, NAME.onnx.data its weights if they are many; sealed (`cache.intact`)
    converted/KEY.lock       held while KEY is being made (`cache.entries`)

KEY is a hash of the model's content, its data files' and the importer's code. Everything in it may be deleted
at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.errors import ModelError, ShardrunError
from sharding.common.storage import why_unwritable
from sharding.importers.sniff import is_imported

if TYPE_CHECKING:
    from sharding.importers.mindir.encryption import Key


def as_onnx(path: str | Path, timeout: float | None = None) -> Path:
    """The model as an ONNX file: the path itself, or of another format a conversion in the cache.

    ``timeout``: seconds to wait for another process that converts the same (default: ``SHARDRUN_TIMEOUT``).
    Raises `ModelError` where it cannot be converted, or the cache folder not be written; `HeldError` where
    that process takes longer.
    """
    path = Path(path)
    if not is_imported(path):
        return path
    from ranks.cache.folder import ELSEWHERE, cache_folder, locked
    from ranks.cache.intact import is_sealed, say_damaged
    from ranks.cache.limit import bound, limit_of
    from ranks.cache.locks import hold
    from ranks.cache.place import place_of, prepare
    from ranks.common.waiting import HeldError

    folder = place_of(cache_folder(), "converted")
    try:
        prepare(cache_folder(), "converted")
        place = folder / _key(path)
        limit = limit_of(folder)
        with locked(place.with_suffix(".lock"), timeout):
            if is_sealed(place) and (place / _name(path)).is_file() and hold(place):
                return place / _name(path)
            if os.path.lexists(place):
                say_damaged(place)
            found = _convert(path, place)
            hold(place)
        bound(folder.parent, limit)
        return found
    except HeldError:
        raise
    except OSError as problem:
        raise ModelError(
            f"{path} is converted to ONNX first, but {problem.filename or folder} cannot be used: "
            f"{why_unwritable(problem, ELSEWHERE)}."
        ) from None


@contextlib.contextmanager
def naming(file: Path, given: Path | str) -> Iterator[None]:
    """Errors raised inside name the model that the user gave, where they would name the ``file`` made of it.

    They come from many places, ONNX Runtime among them, whose sentences hold paths too.
    """
    try:
        yield
    except ShardrunError as error:
        if str(file) != str(given) or file.is_symlink():
            error.made_of(file, str(given))
        raise


@contextlib.contextmanager
def folder_to_decrypt(path: Path) -> Iterator[Path]:
    """A folder for what a model is decrypted to, which is there inside only (`plain_folder`).

    Raises `ModelError` where none can be made.
    """
    from sharding.common.plain_folder import plain_folder

    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(plain_folder())
        except OSError as problem:
            raise ModelError(
                f"No temporary folder can be made to decrypt {path} into: "
                f"{why_unwritable(problem, 'set TMPDIR to a folder that can be written')}."
            ) from None
        yield folder


@contextlib.contextmanager
def decrypted(path: str | Path, key: Key) -> Iterator[Path]:
    """An encrypted model as an ONNX file that is there inside only, for its owner alone to read."""
    from sharding.importers import import_model
    from sharding.importers.write import write_onnx

    model = import_model(path, key=key)
    with folder_to_decrypt(Path(path)) as folder:
        output = folder / _name(Path(path))
        write_onnx(model, Path(path), output)
        yield output


def _key(path: Path) -> str:
    from ranks.cache.folder import fingerprint

    parts = {"model": fingerprint(path), "importer": _importer()}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in path.stem)[:40]
    return f"{stem}-{digest}"


def _importer() -> str:
    """A hash of the importers' code: another version of it may convert otherwise."""
    import sharding.importers

    digest = hashlib.sha256()
    root = Path(sharding.importers.__file__).parent
    for file in sorted(root.rglob("*.py")):
        status = file.stat()
        digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _name(path: Path) -> str:
    return f"{path.stem or 'model'}.onnx"


def _convert(path: Path, place: Path) -> Path:
    from ranks.cache.durable import flush
    from ranks.cache.intact import note, seal
    from ranks.cache.place import FORMS, discard
    from sharding.importers import import_model
    from sharding.importers.write import write_onnx

    model = import_model(path)
    work = Path(tempfile.mkdtemp(prefix=f"{place.name}.tmp", dir=place.parent))
    try:
        files = write_onnx(model, path, work / _name(path))
        for file in files:  # a crash of the machine must not leave it whole by its size alone
            flush(file)
        sealed = seal(work)
        if os.path.lexists(place):
            discard(place, FORMS["converted"])
        work.rename(place)
        note(place, sealed)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place / _name(path)
