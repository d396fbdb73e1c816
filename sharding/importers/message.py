"""The ONNX message of a model file of any format, without its large weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.importers import import_model, is_imported
from sharding.onnx_files.protobuf import read_message

if TYPE_CHECKING:
    import onnx

    from sharding.common.encryption import Key


def parse_without_weights(path: Path, key: Key | None = None) -> onnx.ModelProto:
    """The message of a model file that is not empty, as `without_weights` leaves it; nothing is checked.

    A file of another format than ONNX is imported; ``key`` is that of an encrypted one.

    Raises `OSError`, `ModelError` (`MalformedError` where the framing is broken), and protobuf's own error
    (which has another module in each of its implementations).
    """
    if is_imported(path):
        return import_model(path, key=key)
    return read_message(path)
