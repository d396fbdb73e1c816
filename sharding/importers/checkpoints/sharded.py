"""Checkpoints in several files, with an index beside them: JSON, ``{"weight_map": {tensor: file}}``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sharding.common.text import one_line, shortened
from sharding.errors import ModelError
from sharding.importers.checkpoints.base import Checkpoint, Entry, unique

MOST_BYTES = 100_000_000
MOST_FILES = 10_000


def read(path: Path, open_file: Callable[[Path], Checkpoint]) -> Checkpoint:
    """Opens all files of an index (``*.index.json``) by ``open_file``.

    Raises `ModelError`: it is no index, names files that are not beside it, or tensors that these lack.
    """
    weight_map = _weight_map(path)
    names = sorted(set(weight_map.values()))
    if len(names) > MOST_FILES:
        raise ModelError(f"{path} names {len(names)} files; at most {MOST_FILES} are read.")
    # All names are looked at before any file is opened.
    places = {name: _place(path, name) for name in names}
    parts = {name: open_file(place) for name, place in places.items()}
    entries: dict[str, Entry] = {}
    for tensor, name in weight_map.items():
        if tensor not in parts[name].entries:
            raise ModelError(
                f"{path} says that {shortened(one_line(tensor), 100)!r} is in {name}, but it is not there."
            )
        entries[tensor] = parts[name].entries[tensor]
    formats = sorted({part.format for part in parts.values()})
    files = [path, *(file for part in parts.values() for file in part.files)]
    return Checkpoint(path, f"{' and '.join(formats)} in {len(names)} files", entries, files)


def _weight_map(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelError(f"{path} is too large for an index; at most {MOST_BYTES} bytes are read.")
        document: object = json.loads(path.read_bytes(), object_pairs_hook=unique)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        reason = one_line(str(error))[:120]
        raise ModelError(f"{path} is not an index of a checkpoint: it is no JSON ({reason}).") from None
    found = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(v, str) for v in found.values()):
        raise ModelError(f"{path} is not an index of a checkpoint: it has no weight_map from names to files.")
    return found


def _place(index: Path, name: str) -> Path:
    """Where a file is. Links are followed: download caches consist of them."""
    if name in {"", ".", ".."} or "\0" in name or Path(name).name != name or "\\" in name:
        raise ModelError(
            f"{index} names {shortened(one_line(name), 100)!r}; expected the name of a file beside it."
        )
    return index.parent / name
