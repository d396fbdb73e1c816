"""An ONNX message without its large weights: the same model, its large tensors pointing into the file.

A model file may hold gigabytes of weights in its protobuf message. Parsing it would copy them all, so the
message's framing is walked first (https://protobuf.dev/programming-guides/encoding/) and each large
``raw_data`` of an initializer is replaced by a reference: the field numbers are those of onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.text import human_bytes, one_line
from sharding.errors import ModelError
from sharding.onnx_files.placeholders import refuse_devices, refuse_placeholder

if TYPE_CHECKING:
    import onnx


IN_MODEL_FILE = ":model:"
"""The ``location`` of a tensor whose bytes lie in the model file itself. A hostile file may
use it too: offset and length are checked against the model file like any other's."""
INLINE_BYTES = 4096
"""Initializers up to this size stay in the message."""

_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_RAW_DATA, _TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 9, 13, 14
MESSAGE_BYTES = 1 << 31
"""As long is no message that protobuf reads."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


_Strip = Callable[[memoryview, int, int], bytes]


class MalformedError(ModelError):
    """The bytes are not a protobuf message: truncated, or another format."""


def not_a_model(what: str | Path, why: object = "") -> ModelError:
    """That ``what``, a file or what stands for one, is no model; ``why``: the error that said so, whose own
    words are shown if they are ours, or those of a reader of text."""
    long = 0 if isinstance(why, MalformedError) else _bytes_of(what)
    if long >= MESSAGE_BYTES:
        return ModelError(
            f"{what} has {human_bytes(long)}, and protobuf reads no file of 2 GiB or more (nor does ONNX "
            "Runtime, which uses it): `shardrun convert MODEL OUTPUT.onnx` puts the weights into a file "
            "beside it (external data), and slicing it (`shardrun slice`) reads them where they are."
        )
    kind = "a MindIR file" if str(what).endswith(".mindir") else "an ONNX file"
    of_text = type(why).__name__ == "ParseError"  # protobuf's two and onnx's, of three modules
    place = f": {one_line(str(why))}" if of_text or isinstance(why, MalformedError) else ""
    return ModelError(f"{what} is not {kind}, or it is truncated{place}.")


def _bytes_of(what: str | Path) -> int:
    try:
        return Path(what).stat().st_size
    except (OSError, ValueError):
        return 0


def without_weights(data: memoryview) -> bytes:
    """The ONNX message in ``data`` with each large initializer pointing to its bytes (`IN_MODEL_FILE`).

    Raises `MalformedError` where the framing is broken, as in a truncated file.
    """
    return _rebuild(data, 0, len(data), _MODEL_GRAPH, _strip_graph)


def read_message(path: Path) -> onnx.ModelProto:
    """The message of an ONNX file that is not empty, as `without_weights` leaves it; nothing is checked.

    Raises `OSError`, `ModelError` (`MalformedError` where the framing is broken), and protobuf's own error
    (which has another module in each of its implementations).
    """
    import onnx

    refuse_devices(path)
    refuse_placeholder(path)
    model = onnx.ModelProto()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        model.ParseFromString(without_weights(data))
    return model


def _strip_graph(data: memoryview, start: int, end: int) -> bytes:
    return _rebuild(data, start, end, _GRAPH_INITIALIZER, _strip_tensor)


def _strip_tensor(data: memoryview, start: int, end: int) -> bytes:
    if end - start <= INLINE_BYTES:
        return bytes(data[start:end])
    parts, raw = [], None
    for number, wire, first, payload, stop in fields(data, start, end):
        if number == _TENSOR_RAW_DATA and wire == _BYTES and stop - payload > INLINE_BYTES:
            raw = (payload, stop - payload)
        else:
            parts.append(bytes(data[first:stop]))
    if raw is not None:
        for key, value in (("location", IN_MODEL_FILE), ("offset", str(raw[0])), ("length", str(raw[1]))):
            entry = field(1, key.encode()) + field(2, value.encode())
            parts.append(field(_TENSOR_EXTERNAL_DATA, entry))
        parts.append(varint(_TENSOR_DATA_LOCATION << 3 | _VARINT) + varint(1))
    return b"".join(parts)


def _rebuild(data: memoryview, start: int, end: int, inner: int, strip: _Strip) -> bytes:
    parts = []
    for number, wire, first, payload, stop in fields(data, start, end):
        if number == inner and wire == _BYTES:
            parts.append(field(inner, strip(data, payload, stop)))
        elif stop - first >= MESSAGE_BYTES:
            raise MalformedError(f"a field at byte {first} has {stop - first} bytes, none of them weights")
        else:
            parts.append(bytes(data[first:stop]))
    return b"".join(parts)


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, offset of the field, of its payload, of its end) of each field."""
    position = start
    while position < end:
        first = position
        tag, position = _read_varint(data, position, end)
        wire, number = tag & 7, tag >> 3
        payload = position
        if wire == _VARINT:
            _, position = _read_varint(data, position, end)
        elif wire == _BYTES:
            length, payload = _read_varint(data, position, end)
            position = payload + length
        elif wire in {_FIXED32, _FIXED64}:
            position += 4 if wire == _FIXED32 else 8
        else:
            raise MalformedError(f"wire type {wire} at byte {first}")
        if number == 0 or position > end:
            raise MalformedError(f"a field at byte {first} reaches to byte {position} of {end}")
        yield number, wire, first, payload, position


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedError(f"a number breaks off at byte {position}")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(payload)) + payload
