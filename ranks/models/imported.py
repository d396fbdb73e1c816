"""Models of other formats than ONNX, converted into the cache folder: what a rank loads is always ONNX.

    converted/KEY/NAME.onnx  the model, NAME.onnx.data its weights if they are many (`ranks.cache.cache`)

KEY is a hash of the model's content, its data files' and the importer's code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ranks.errors import ModelError, ShardrunError
from sharding.common.encryption import Key
from sharding.common.storage import why_unwritable
from sharding.importers import import_model
from sharding.importers.sniff import format_of, is_imported


def as_onnx(path: str | Path, timeout: float | None = None) -> Path:
    """The model as an ONNX file: the path itself, or of another format a conversion in the cache.

    ``timeout``: seconds to wait for another process that converts the same (default: ``SHARDRUN_TIMEOUT``).
    Raises `ModelError` where it cannot be converted, or the cache folder not be written; `HeldError` where
    that process takes longer.
    """
    path = Path(path)
    if not is_imported(path):
        return path
    from ranks.cache.cache import Cache
    from ranks.cache.folder import ELSEWHERE, cache_folder
    from ranks.common.waiting import HeldError

    cache, name = Cache("converted", cache_folder()), _name(path)
    try:
        place = cache.get_or_make(
            _key(path),
            lambda folder: _convert(path, folder / name),
            fits=lambda folder: (folder / name).is_file(),
            timeout=timeout,
        )
        return place / name
    except HeldError:
        raise
    except OSError as problem:
        raise ModelError(
            f"{path} is converted to ONNX first, but {problem.filename or cache.folder} cannot be used: "
            f"{why_unwritable(problem, ELSEWHERE)}."
        ) from None


@contextlib.contextmanager
def naming(file: Path, given: Path | str) -> Iterator[None]:
    """Errors raised inside name the model that the user gave, where they would name the ``file`` made of it.

    Errors come from many places, also from ONNX Runtime, and their sentences hold paths.
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
    from sharding.importers.write import write_onnx

    model = import_model(path, key=key)
    with folder_to_decrypt(Path(path)) as folder:
        output = folder / _name(Path(path))
        write_onnx(model, Path(path), output)
        yield output


def _key(path: Path) -> str:
    from ranks.cache.keys import key_of

    return key_of(path, {"importer": _importer(format_of(path))})


def _importer(name: str) -> str:
    """What tells versions of the code that importers use apart."""
    import sharding.importers
    from ranks.cache.keys import hash_of_code

    others = sharding.importers.FORMATS.names.others
    root = Path(sharding.importers.__file__).parents[1]
    return hash_of_code(root, {name: others[name]} if name in others else {})


def _name(path: Path) -> str:
    return f"{path.stem or 'model'}.onnx"


def _convert(path: Path, output: Path) -> None:
    from ranks.cache.durable import flush
    from sharding.importers.write import write_onnx

    model = import_model(path)
    output.parent.mkdir()
    for file in write_onnx(model, path, output):
        flush(file)  # a crash of the machine must not leave it whole by its size alone
