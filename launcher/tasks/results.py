"""Files of outputs that ``shardrun run --outputs`` writes: each says which input and model it is of."""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sharding.common.arrays import Array

_FIELD = 0x5368  # of nobody else, in the list of PKWARE and Info-ZIP
_NAME = b"shardrun result 1:"
_DIGEST = 16
_BEGIN = b"PK\3\4"
_HEADER = struct.Struct("<HH")
_LOCAL = 30  # bytes of a local header, before name and extra fields
_LONGEST = 1 << 17

State = Literal["none", "done", "other", "broken", "strange"]
"""What is in the place of a result: nothing, the result, that of another input or model, the beginning of
one, or something of somebody else."""


class Marks:
    """What results are marked with: a digest of what they were made of."""

    def __init__(self, model: str, files: Iterable[str]) -> None:
        """``model``: which one it is; ``files``: those that go with every input. Raises `OSError`."""
        self._common = "\n".join([model, *(f"{name} {_said(name)}" for name in files)])

    def of(self, path: str) -> bytes:
        """The mark of the outputs for a file. Raises `OSError`."""
        made_of = f"{self._common}\n{_said(path)}"
        digest = hashlib.sha256(made_of.encode("utf-8", "surrogateescape")).digest()[:_DIGEST]
        data = _NAME + digest
        return _HEADER.pack(_FIELD, len(data)) + data


def _said(path: str) -> str:
    """A file's length and time: what changes with its content."""
    found = os.stat(path)  # noqa: PTH116 - many texts
    return f"{found.st_size} {found.st_mtime_ns}"


def state(target: Path, mark: bytes) -> State:
    """What is in the place of a result. Raises `OSError` where it cannot be read."""
    if not os.path.lexists(target):
        return "none"
    if target.is_symlink() or not target.is_file():
        return "strange"
    try:
        with target.open("rb") as file, zipfile.ZipFile(file) as archive:
            first = archive.infolist()[0].extra if archive.infolist() else b""
            file.seek(0)
            if file.read(len(_BEGIN)) != _BEGIN:
                return "strange"
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        # Of a power failure: our files are written whole, but the disk may not have got all of one.
        return "broken" if _begun(target) else "strange"
    if mark in first:
        return "done"
    return "other" if _NAME in first else "strange"


def _begun(target: Path) -> bool:
    with target.open("rb") as file:
        head = file.read(_LONGEST)
    return not head.strip(b"\0") or (head.startswith(_BEGIN) and _NAME in head)


def save(target: Path, outputs: Mapping[str, Array], mark: bytes) -> None:
    """Writes a result, whole or not at all, with its folder. Raises `ConfigError`, or `OSError` of the
    folder."""
    from launcher.job.inputs import save_outputs

    target.parent.mkdir(parents=True, exist_ok=True)
    save_outputs(target, outputs, mark)
