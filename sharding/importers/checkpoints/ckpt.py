"""MindSpore's ``.ckpt``: a protobuf message ``Checkpoint``, one value per parameter.

    Checkpoint {repeated Value value = 1}
    Value {string tag = 1; Tensor tensor = 2; MapTensor maptensor = 3}
    Tensor {repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3}

as in MindSpore's ``checkpoint.proto``. A tensor of more than 512 MiB is several values of one tag, to be
joined. A file that was saved with ``crc_check=True`` ends with ``crc_num`` and the CRC-32 of what is before
it, 10 bytes, big-endian.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from sharding.common.encryption import Key, decrypted, encryption_of
from sharding.errors import ModelError
from sharding.importers.checkpoints.base import Checkpoint, Entry, check_entry, shown_name, special_dtype
from sharding.importers.mapped import mapped
from sharding.onnx_files.protobuf import MalformedError, fields

_BYTES, _VARINT = 2, 0
_CRC_MARK, _CRC_BYTES = b"crc_num", 10
_TYPES = {
    "Bool": "bool", "Int8": "int8", "Int16": "int16", "Int32": "int32", "Int64": "int64",
    "UInt8": "uint8", "UInt16": "uint16", "UInt32": "uint32", "UInt64": "uint64", "Uint8": "uint8",
    "Uint16": "uint16", "Uint32": "uint32", "Uint64": "uint64", "Float16": "float16", "Float32": "float32",
    "Float64": "float64", "Complex64": "complex64", "Complex128": "complex128",
}  # fmt: skip
_NO_TENSORS = frozenset({"str"})
"""Types of values that ``append_dict`` adds beside the weights."""
Part = tuple[str, tuple[int, ...], memoryview]
"""Element type, shape and bytes of a tensor, or of the next part of one."""


def looks_like(path: Path, head: bytes) -> bool:
    """Whether a file that begins so (some hundred bytes) is a `Checkpoint`: a value with a tag and a tensor.

    Of an encrypted one the name says it. A MindIR file begins with field 1 too, but there it is a short text
    that is no message.
    """
    if encryption_of(head) is not None:
        return path.suffix == ".ckpt"
    data = memoryview(head)
    try:
        number, wire, _, start, _ = next(fields(data, 0, 1 << 62))
        tag_number, tag_wire, _, _, end = next(fields(data, start, 1 << 62))
        inner, inner_wire, *_ = next(fields(data, end, 1 << 62))
    except (MalformedError, IndexError, StopIteration):
        return False
    return (number, wire, tag_number, tag_wire, inner_wire) == (1, _BYTES, 1, _BYTES, _BYTES) and inner in {
        2,
        3,
    }


def read(path: Path, key: Key | None = None) -> Checkpoint:
    """Opens a file, encrypted or not. Raises `ModelError`: truncated, damaged, another format, no key."""
    data = mapped(path, "a MindSpore checkpoint (.ckpt)")
    data = _without_crc(decrypted(data, key, path)[0], path)
    found: dict[str, list[Part]] = {}
    try:
        for number, wire, _, start, end in fields(data, 0, len(data)):
            if number == 1 and wire == _BYTES:
                _value(data, start, end, path, found)
    except MalformedError as error:
        raise ModelError(
            f"{path} is not a whole MindSpore checkpoint: {error}; it is truncated or another format."
        ) from None
    if not found:
        raise ModelError(f"{path} is not a MindSpore checkpoint: it holds no parameter.")
    return Checkpoint(
        path, "MindSpore checkpoint", {name: _entry(name, p, path) for name, p in found.items()}, [path]
    )


def _without_crc(data: memoryview, path: Path) -> memoryview:
    end = len(data) - _CRC_BYTES
    start = end - len(_CRC_MARK)
    if start < 0 or data[start:end] != _CRC_MARK:
        return data
    if zlib.crc32(data[:start]) != int.from_bytes(data[end:], "big"):
        raise ModelError(f"{path} is damaged: its content does not have the CRC-32 that stands at its end.")
    return data[:start]


def _value(data: memoryview, start: int, end: int, path: Path, found: dict[str, list[Part]]) -> None:
    tag, tensor = "", None
    for number, wire, _, first, stop in fields(data, start, end):
        if number == 1 and wire == _BYTES:
            tag = _text(data[first:stop], path)
        elif number == 2 and wire == _BYTES:
            tensor = _tensor(data, first, stop, path)
        elif number == 3:
            raise ModelError(
                f"{path} holds the map parameter {shown_name(tag)} (a hash table): not supported."
            )
    if not tag or tensor is None:
        raise ModelError(f"{path} is not a MindSpore checkpoint: a value in it has no name or no tensor.")
    if tensor[0] not in _NO_TENSORS:
        found.setdefault(tag, []).append(tensor)


def _tensor(data: memoryview, start: int, end: int, path: Path) -> Part:
    dims: list[int] = []
    kind, content = "", data[start:start]
    for number, wire, first, payload, stop in fields(data, start, end):
        if number == 1 and wire == _VARINT:
            dims.append(_number(data[first + 1 : stop]))
        elif number == 1 and wire == _BYTES:  # packed
            at = payload
            while at < stop:
                last = at
                while last < stop - 1 and data[last] & 0x80:
                    last += 1
                dims.append(_number(data[at : last + 1]))
                at = last + 1
        elif number == 2 and wire == _BYTES:
            kind = _text(data[payload:stop], path)
        elif number == 3 and wire == _BYTES:
            content = data[payload:stop]
    return kind, tuple(dims), content


def _number(data: memoryview) -> int:
    value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[:10])) & (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _text(data: memoryview, path: Path) -> str:
    if len(data) > 65536:
        raise ModelError(f"{path} is not a MindSpore checkpoint: a name in it has {len(data)} bytes.")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not a MindSpore checkpoint: a name in it is not UTF-8.") from None


def _entry(name: str, values: list[Part], path: Path) -> Entry:
    what = f"{path}: the parameter {shown_name(name)}"
    kind, shape, _ = values[0]
    if any(value[:2] != (kind, shape) for value in values):
        raise ModelError(f"{what} is there several times, with different types or shapes.")
    if kind == "BFloat16":
        dtype = special_dtype("bfloat16")
    elif kind in _TYPES:
        dtype = np.dtype(_TYPES[kind])
    else:
        raise ModelError(f"{what} has the type {shown_name(kind)}; expected {', '.join(_TYPES)} or BFloat16.")
    parts = tuple(value[2] for value in values)
    if shape == (0,) and sum(map(len, parts)) == dtype.itemsize:
        shape = ()  # how MindSpore writes the shape of a scalar
    return check_entry(Entry(name, dtype, shape, parts), what)
