"""An entry of the prepared-weights store as its file ``KEY.json`` says it, read and written.

Whatever the file holds, reading it ends in an entry or in none: others may have written to the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ranks.cache import regular_files

FORMAT = 2
"""The version of the store's files; files of other versions are not looked at."""
_MOST_BYTES = 64 << 20  # of an entry's JSON: half a million weights


@dataclass(frozen=True)
class Blob:
    """A weight's file: its raw bytes, then its packed forms. ``name`` is the SHA-256 of all of it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Prepared:
    """``graph`` is a serialized model that refers to ``blobs``, which lie in the work folder."""

    graph: bytes
    blobs: tuple[Blob, ...]


@dataclass(frozen=True)
class Entry:
    """One model's prepared form, as far as ``KEY.json`` says it. ``refused``: why there is none, and never
    will be while the key stays the same."""

    key: str
    what: str
    graph_bytes: int = 0
    graph_sha256: str = ""
    blobs: tuple[Blob, ...] = ()
    refused: str = ""
    boot: str = ""
    """When it was written, as `ranks.cache.durable` tells it."""
    used: float = 0.0
    """When it was last opened, in seconds since 1970."""

    @property
    def bytes(self) -> int:
        """The bytes of the graph and all its weights, whether other entries share them or not."""
        return self.graph_bytes + sum(blob.bytes for blob in self.blobs)


def write(folder: Path, entry: Entry, work: Path) -> None:
    content: Mapping[str, object] = {
        "format": FORMAT,
        "what": entry.what,
        "graph": [entry.graph_bytes, entry.graph_sha256],
        "blobs": [[blob.name, blob.bytes] for blob in entry.blobs],
        "refused": entry.refused,
        "boot": entry.boot,
    }
    replace(folder / f"{entry.key}.json", json.dumps(content).encode(), work)


def replace(target: Path, content: bytes, work: Path) -> None:
    """Writes a file whole or not at all; half of one is left in ``work``, which somebody empties."""
    temporary = work / "file"
    with temporary.open("wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o400)
    regular_files.replace(temporary, target)


def opened(path: Path) -> int | None:
    """A descriptor of an entry's file; None where there is none, or something else in its place: ours may
    always be read.

    Raises `OSError` where it cannot be read.
    """
    try:
        return regular_files.open_regular(path)
    except PermissionError:
        return None
    except OSError:
        if not regular_files.is_regular(path):
            return None
        raise


def read_from(path: Path) -> Entry | None:
    """An entry's file; None for a damaged one. Raises `OSError` where it cannot be read."""
    descriptor = opened(path)
    if descriptor is None:
        return None
    try:
        return read(descriptor, path.stem)
    finally:
        os.close(descriptor)


def read(descriptor: int, key: str) -> Entry | None:
    status = os.fstat(descriptor)
    if status.st_size > _MOST_BYTES:
        return None
    try:
        content = json.loads(os.pread(descriptor, status.st_size, 0))
        if content["format"] != FORMAT:
            return None
        blobs = tuple(Blob(str(name), int(size)) for name, size in content["blobs"])
        if any(set(blob.name) - set("0123456789abcdef") or blob.bytes < 0 for blob in blobs):
            return None
        size, digest = content["graph"]
        return Entry(
            key,
            str(content["what"]),
            int(size),
            str(digest),
            blobs,
            str(content["refused"]),
            str(content["boot"]),
            status.st_mtime,
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
