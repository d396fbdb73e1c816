"""What a model consists of: a hash of its bytes with its external data, and how many there are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.cache.folder import fingerprint, remembered_hash, size_of_files
from ranks.errors import ModelError
from sharding.common.text import parse_whole
from sharding.onnx_files.external import entries, extents
from sharding.onnx_files.protobuf import MalformedError, without_weights

if TYPE_CHECKING:
    import onnx


def content_hash(model: bytes | Path, folder: Path | None, hashes: Mapping[str, str]) -> str:
    """A hash of a model and its external data. ``folder`` is where those of a model in memory lie, ``hashes``
    are their SHA-256 by name, as far as they are known. Raises `ModelError` where they cannot be read."""
    try:
        if isinstance(model, Path):
            return fingerprint(model)
        digest = hashlib.sha256(model)
        for name, parts in extents(_parsed(model)).items():
            if folder is None:
                raise ModelError(f"a model's weight lies in {name!r}, but nothing says in which folder.")
            known = hashes.get(name) or remembered_hash(folder / name, parts)
            digest.update(f"{name} {known}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()
    except OSError as problem:
        raise ModelError(f"{problem.filename} cannot be read: {problem.strerror or problem}.") from None


def size_of(model: bytes | Path) -> int:
    """Bytes of a model's weights, as far as that is known without reading them; 0 where it cannot be read."""
    if isinstance(model, Path):
        return size_of_files(model)
    try:
        lengths = (text for key, text in entries(_parsed(model)) if key == "length")
        return len(model) + sum(parse_whole(text) or 0 for text in lengths)
    except ModelError:
        return 0


def _parsed(model: bytes) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError

    from sharding.onnx_files.messages import ModelProto

    message = ModelProto()
    try:
        message.ParseFromString(without_weights(memoryview(model)))
    except (MalformedError, DecodeError) as problem:
        raise ModelError(f"not a whole ONNX model: {problem}.") from None
    return message
