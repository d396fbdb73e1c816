"""What kind of model a file holds, by its first bytes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from sharding.common.encryption import ENCRYPTED, encryption_of
from sharding.errors import ModelError
from sharding.importers.format import HEAD, told
from sharding.onnx_files.placeholders import refuse_devices, refuse_placeholder

Format = str
"""``onnx``, ``unknown``, or the name of one of `sharding.importers.format.FORMATS`."""

LITE_IDENTIFIERS = (b"MSL0", b"MSL1", b"MSL2")
"""Bytes 4 to 7 of a MindSpore Lite file (.ms), by version of its schema (FlatBuffers' file identifier)."""
OPSETS = range(18, 23)
"""Versions of ONNX's operators that importers can write."""
RUN_OPSET = 20
"""The version that models are written in to be run here."""
_LONGEST_VERSION = 32
_ONNX_OPSET_IMPORT, _PRODUCER, _MINDSPORE = 8, 2, b"MindSpore"


def format_of(path: str | Path) -> Format:
    """Decides by content: a magic number, or the first field of a protobuf message; "foreign" are models of
    other runtimes, which have their own sentence (`sharding.importers.foreign`), some by their name only.

    ONNX and MindIR are both protobuf messages and both have ``ir_version`` as field 1: a number in ONNX
    (onnx.proto), a string in MindIR (mind_ir.proto). In version 0 of MindIR it was a number, too; such a
    file is by MindSpore and has no ``opset_import``, which ONNX demands. Raises `ModelError` for a file that
    cannot be read, or only stands for another one.
    """
    path = Path(path)
    try:
        refuse_devices(path)
        refuse_placeholder(path)
        with path.open("rb") as file:
            head = file.read(HEAD)
            if head[4:8] in LITE_IDENTIFIERS:
                return "mindir_lite"
            if encryption_of(head) is not None:
                return ENCRYPTED
            file.seek(0)
            found = _protobuf(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if found == "unknown" and head:
        return told(path, head) or found
    return found


def is_imported(path: str | Path) -> bool:
    """Whether a file is of a format that is turned into ONNX first; False where it cannot be read."""
    try:
        return Path(path).is_file() and format_of(path) not in {"onnx", "unknown"}
    except (ModelError, OSError, ValueError):
        return False


def _protobuf(file: BinaryIO) -> Format:
    """Walks the top-level fields without reading their contents (protobuf's wire format) to field 1."""
    size = os.fstat(file.fileno()).st_size
    found: Format = "unknown"
    for _ in range(10_000):
        tag = _varint(file)
        if tag is None:
            break
        number, wire = tag >> 3, tag & 7
        if number == 1 and found == "unknown":
            if wire != 0:
                return "mindir" if wire == 2 and _is_version(file) else "unknown"
            found = "onnx"
        if number == _ONNX_OPSET_IMPORT:
            return "unknown" if found == "unknown" else "onnx"
        if wire == 0:
            _varint(file)
        elif wire == 2:
            length = _varint(file)
            if length is None or length > size - file.tell():
                break
            text = file.read(length) if number == _PRODUCER and length == len(_MINDSPORE) else b""
            if text == _MINDSPORE and found == "onnx":
                found = "mindir_old"
            file.seek(length - len(text), os.SEEK_CUR)
        elif wire in {1, 5}:
            file.seek(8 if wire == 1 else 4, os.SEEK_CUR)
        else:
            break
    return found


def _is_version(file: BinaryIO) -> bool:
    """Whether a string such as 0.1.0 follows. A line end in any text looks like the string's tag."""
    length = _varint(file)
    if length is None or length > _LONGEST_VERSION:
        return False
    return re.fullmatch(rb"\d[\w.+-]*", file.read(length)) is not None


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
