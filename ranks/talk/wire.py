"""Framing of the messages between a rank and its launcher: a small JSON header, then raw tensor bytes; no
pickle.

A frame, all integers little-endian:

    magic    4 bytes  b"shrd"
    version  u16      1
    kind     u16      one of `Kind`
    header   u32      bytes of the JSON header
    payload  u64      bytes of all tensors, in the header's order

Between processes of one host, tensors may lie in shared memory instead (`ranks.talk.area`): the payload is
then 0 and the header has "area", the number of the memory that was passed over the socket.

The header is ``{"fields": {...}, "tensors": [{"name", "dtype", "shape", "bytes"}, ...]}``. Tensors are
C-contiguous and little-endian; a string tensor holds, for each element, its length as u32 and its UTF-8
bytes.

Everything read is checked before memory is taken for it, so a broken or hostile peer costs at most the
bytes that it really sends.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ranks.common.tensors import name_of
from ranks.talk import area
from ranks.talk.frame import MAGIC, MAX_HEADER, PREFIX, VERSION, Kind, WireError, head
from sharding.common.arrays import Array, DType

MAX_TENSORS = 4096
MAX_RANK = 32
_LENGTH = struct.Struct("<I")
_HEADERS = {"fields", "tensors"}, {"fields", "tensors", "area"}
_DESCRIBED = {"name", "dtype", "shape", "bytes"}
_KINDS = {int(kind): kind for kind in Kind}
__all__ = [
    "MAGIC", "MAX_HEADER", "PREFIX", "VERSION", "Kind", "Message", "PeerClosed", "WireError", "dtype_named",
    "encode", "parse_header", "read_frame",
]  # fmt: skip

_NATIVE = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
_EXTENDED = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "int4",
    "uint4",
)


class PeerClosed(WireError):  # noqa: N818 - the end of a stream is an event, like StopIteration
    """The other side closed the connection between two messages."""


class UnfinishedError(Exception):
    """Only a part of a message has come, or more of it is to be copied than may be now."""


class Message(NamedTuple):
    """One message: its kind, plain JSON fields, and tensors by name in the order they were sent."""

    kind: Kind
    fields: Mapping[str, object]
    tensors: dict[str, Array]


def dtype_named(name: object) -> DType:
    """The little-endian numpy dtype of a wire name; raises `WireError` for one that is not on the list."""
    if name in _NATIVE:
        # Where little-endian is the machine's own order, the plain type: `newbyteorder` makes another object
        # of it, which code that asks `isbuiltin` takes for no type of numpy's.
        plain = np.dtype(str(name))
        return plain if sys.byteorder == "little" else plain.newbyteorder("<")
    if name in _EXTENDED:
        import ml_dtypes

        extended: DType = np.dtype(getattr(ml_dtypes, str(name)))
        return extended
    if name == "string":
        return np.dtype(object)
    raise WireError(f"a message holds a tensor of the unknown type {_short(name)}")


def encode(
    message: Message, writer: area.Writer | None = None, slot: int = 0
) -> tuple[list[bytes | memoryview], int | None]:
    """The frame as prefix, header and each tensor that is not empty (not copied).

    With a ``writer``, large tensors go to its area ``slot`` instead; the second result is the descriptor of
    its memory, if the peer does not have it yet. Raises `WireError` for a type that cannot travel.
    """
    described: list[dict[str, object]] = []
    buffers: list[bytes | memoryview] = []
    for name, value in message.tensors.items():
        dtype, data = _tensor_bytes(name, value)
        described.append({"name": name, "dtype": dtype, "shape": list(value.shape), "bytes": len(data)})
        if len(data):
            buffers.append(data)
    header: dict[str, object] = {"fields": message.fields, "tensors": described}
    if writer is not None:
        written, descriptor = writer.write(buffers, slot)
        if written:
            return _frame(message.kind, {**header, "area": writer.number(slot)}, []), descriptor
    return _frame(message.kind, header, buffers), None


def _frame(
    kind: Kind, header: dict[str, object], buffers: list[bytes | memoryview]
) -> list[bytes | memoryview]:
    return [*head(kind, header, sum(map(len, buffers))), *buffers]


def _tensor_bytes(name: str, value: Array) -> tuple[str, bytes | memoryview]:
    if not isinstance(value, np.ndarray):  # what a model may give
        raise WireError(f"{name!r} is a sequence or a map, and only tensors can be sent")
    if value.dtype.kind in "OUS":
        return "string", _pack_strings(name, value)
    dtype = name_of(value.dtype)
    if dtype not in _NATIVE and dtype not in _EXTENDED:
        raise WireError(f"tensor {name!r} has the type {value.dtype}, which a message cannot hold")
    if dtype in _NATIVE and not (sys.byteorder == "little" and value.dtype.isnative):
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return dtype, _bytes(np.ascontiguousarray(value))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _pack_strings(name: str, value: Array) -> bytes:
    parts: list[bytes] = []
    for item in value.reshape(-1).tolist():
        if not isinstance(item, str | bytes):
            raise WireError(
                f"tensor {name!r} holds {type(item).__name__} objects; a tensor of objects must hold strings"
            )
        try:
            text = item.encode() if isinstance(item, str) else item
            text.decode()
        except UnicodeError:
            raise WireError(f"tensor {name!r} holds a string that is not valid UTF-8") from None
        parts += (_LENGTH.pack(len(text)), text)
    return b"".join(parts)


def _unpack_strings(name: str, data: memoryview, count: int) -> Array:
    if count * _LENGTH.size > len(data):
        raise WireError(f"string tensor {name!r} says {count} elements but has only {len(data)} bytes")
    items = np.empty(count, object)
    at = 0
    for index in range(count):
        if at + _LENGTH.size > len(data):
            raise WireError(f"string tensor {name!r} ends in the middle of element {index}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise WireError(f"string tensor {name!r} ends in the middle of element {index}")
        try:
            items[index] = str(data[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise WireError(f"element {index} of string tensor {name!r} is not valid UTF-8") from None
        at += length
    if at != len(data):
        raise WireError(f"string tensor {name!r} has {len(data) - at} bytes too many")
    return items


class _Described(NamedTuple):
    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int

    @property
    def is_string(self) -> bool:
        return self.dtype.hasobject

    def allocate(self) -> Array:
        try:
            return np.empty(
                self.nbytes if self.is_string else self.shape, np.uint8 if self.is_string else self.dtype
            )
        except (MemoryError, ValueError):
            raise WireError(
                f"tensor {self.name!r} of {self.nbytes} bytes does not fit this process's memory"
            ) from None

    def finish(self, stored: Array) -> Array:
        if not self.is_string:
            return stored
        return _unpack_strings(self.name, _bytes(stored), math.prod(self.shape)).reshape(self.shape)


def parse_header(
    data: bytes | bytearray, payload: int
) -> tuple[dict[str, object], list[_Described], int | None]:
    """A frame's JSON header, checked: fields, tensors, and the area in which they lie, if they do.

    Raises `WireError` for whatever does not fit.
    """
    try:
        header = json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError):
        raise WireError("a message's header is not valid JSON") from None
    if not isinstance(header, dict) or header.keys() not in _HEADERS:
        raise WireError('a message\'s header must be an object of "fields" and "tensors"')
    fields, tensors = header["fields"], header["tensors"]
    if not isinstance(fields, dict) or not isinstance(tensors, list) or len(tensors) > MAX_TENSORS:
        raise WireError(
            f"a message's header must hold an object of fields and a list of at most {MAX_TENSORS} tensors"
        )
    described = [_described(item) for item in tensors]
    if len(described) > 1 and len({item.name for item in described}) != len(described):
        raise WireError("a message names the same tensor twice")
    place = header.get("area")
    if place is not None and not _is_size(place):
        raise WireError(f"a message names its shared memory {_short(place)}")
    total = sum([item.nbytes for item in described]) if place is None else 0
    if total != payload:
        raise WireError(f"a message's tensors have {total} bytes but its frame says {payload}")
    return fields, described, place


def _described(item: object) -> _Described:
    if not isinstance(item, dict) or item.keys() != _DESCRIBED:
        raise WireError(f"a message describes a tensor as {_short(item)}")
    name, shape, nbytes = item["name"], item["shape"], item["bytes"]
    if not isinstance(name, str):
        raise WireError(f"a message names a tensor {_short(name)}; a name must be text")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        raise WireError(f"tensor {_short(name)} has the impossible shape {_short(shape)}")
    dtype = dtype_named(item["dtype"])
    # An empty tensor may have any other dimensions, but numpy refuses shapes whose other dimensions overflow.
    if math.prod([size for size in shape if size]) * dtype.itemsize >= 1 << 62 or not _is_size(nbytes):
        raise WireError(f"tensor {_short(name)} of shape {_short(shape)} is too large")
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != nbytes:
        raise WireError(
            f"tensor {_short(name)} of shape {_short(shape)} and type {dtype.name} cannot have {nbytes} bytes"
        )
    return _Described(name, dtype, tuple(shape), nbytes)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def length(data: memoryview) -> int:
    """How many bytes the frame has that begins so, at least; `read_frame` says what is wrong with it."""
    if len(data) < PREFIX.size:
        return PREFIX.size
    *_, header, payload = PREFIX.unpack(data[: PREFIX.size])
    return PREFIX.size + int(header) + int(payload)


class Fill(Protocol):
    """Overwrites a whole buffer with the next bytes of a frame; ``first``: they are a frame's first."""

    def __call__(self, target: memoryview, first: bool = False) -> None: ...


def read_frame(
    fill: Fill,
    max_header: int = MAX_HEADER,
    max_payload: int = 1 << 62,
    reader: area.Reader | None = None,
    borrow: bool = False,
    *,
    most_copied: int | None = None,
) -> Message:
    """The message that ``fill`` brings, piece by piece: prefix, header, each tensor that is not empty.

    Tensors in shared memory are found with ``reader``; with ``borrow`` they are not copied from there and
    hold good until the next message. Raises `UnfinishedError` for more than ``most_copied`` bytes of them.
    """
    prefix = bytearray(PREFIX.size)
    fill(memoryview(prefix), first=True)
    magic, version, kind, header_bytes, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise WireError("what came is not a shardrun message")
    if version != VERSION:
        raise WireError(
            f"a message has version {version}; this shardrun speaks version {VERSION}: use one version"
        )
    if (known := _KINDS.get(kind)) is None:
        raise WireError(f"a message has the unknown kind {kind}")
    if header_bytes > max_header or payload > max_payload:
        raise WireError(
            f"a message announces {header_bytes} + {payload} bytes; at most {max_header} + "
            f"{max_payload} are allowed"
        )
    header = bytearray(header_bytes)
    fill(memoryview(header))
    fields, described, place = parse_header(header, payload)
    if place is not None:
        if most_copied is not None and sum(item.nbytes for item in described) > most_copied:
            raise UnfinishedError
        return Message(known, fields, _from_area(described, place, reader, borrow))
    tensors = {}
    for item in described:
        stored = item.allocate()
        if stored.nbytes:
            fill(_bytes(stored))
        tensors[item.name] = item.finish(stored)
    return Message(known, fields, tensors)


def _from_area(
    described: Sequence[_Described], place: int, reader: area.Reader | None, borrow: bool
) -> dict[str, Array]:
    if reader is None:
        raise WireError("a message refers to shared memory on a connection that has none")
    try:
        views = iter(reader.views(place, [item.nbytes for item in described if item.nbytes]))
    except ValueError as error:
        raise WireError(f"a message refers to shared memory, but {error}") from None
    tensors = {}
    for item in described:
        if item.is_string or not item.nbytes:
            stored = item.allocate()
            if item.nbytes:
                _bytes(stored)[:] = next(views)
        else:
            stored = np.frombuffer(next(views), np.uint8).view(item.dtype).reshape(item.shape)
            stored = stored if borrow else stored.copy()
        tensors[item.name] = item.finish(stored)
    return tensors
