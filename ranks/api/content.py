"""What kind of model a path holds, by its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal

from ranks.errors import ModelError

Content = Literal["onnx", "mindir", "mindir_lite", "slices", "unknown"]

# FlatBuffers' file identifier, bytes 4 to 7 of a .ms file, by version of its schema.
LITE_IDENTIFIERS = (b"MSL0", b"MSL1", b"MSL2")


def content_of(path: str | Path) -> Content:
    """Decides by content: a folder with a manifest, a FlatBuffers identifier, or the model's protobuf fields.

    ONNX and MindIR are both protobuf messages and both have ``ir_version`` as field 1: a number in ONNX
    (onnx.proto), a string in MindIR (mind_ir.proto). Raises `ModelError` for a file that cannot be read.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return "slices"
        with path.open("rb") as file:
            head = file.read(8)
            if head[4:8] in LITE_IDENTIFIERS:
                return "mindir_lite"
            file.seek(0)
            return _protobuf(file)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def _protobuf(file: BinaryIO) -> Content:
    """Walks the top-level fields without reading their contents (protobuf's wire format) to field 1."""
    size = os.fstat(file.fileno()).st_size
    for _ in range(10_000):
        tag = _varint(file)
        if tag is None:
            return "unknown"
        number, wire = tag >> 3, tag & 7
        if number == 1:
            return "onnx" if wire == 0 else "mindir" if wire == 2 else "unknown"
        if wire == 0:
            _varint(file)
        elif wire == 2:
            length = _varint(file)
            if length is None or length > size - file.tell():
                return "unknown"
            file.seek(length, os.SEEK_CUR)
        elif wire in {1, 5}:
            file.seek(8 if wire == 1 else 4, os.SEEK_CUR)
        else:
            return "unknown"
    return "unknown"


def _varint(file: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
