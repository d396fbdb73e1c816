"""A MindIR file on disk: what it is, whether it can be read, its message and where its weights lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.encryption import Key, decrypted
from sharding.errors import ModelError
from sharding.importers.mapped import mapped
from sharding.importers.mindir import schema
from sharding.importers.sniff import LITE_IDENTIFIERS
from sharding.onnx_files.protobuf import IN_MODEL_FILE, INLINE_BYTES, MalformedError, field, fields, varint

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from sharding.importers.mindir.messages import Model

VERSIONS = (1, 3)
_BYTES, _VARINT = 2, 0


@dataclass
class Container:
    """A file that was read. ``data``: its bytes, mapped, or those that it was decrypted to."""

    path: Path
    model: Model
    data: memoryview
    encrypted: bool

    @property
    def version(self) -> int:
        return int(self.model.mind_ir_version)


def read(path: Path, key: Key | None = None) -> Container:
    """Reads a file; large weights stay where they lie (`IN_MODEL_FILE`).

    Raises `ModelError`: the file cannot be read, is truncated, encrypted without a key, of version 0 or later
    than 3, or of another format.
    """
    data = mapped(path, "a MindIR file (model.mindir)")
    check_format(bytes(data[:8]), path)
    data, encrypted = decrypted(data, key, path)
    model = schema.empty_model()
    wrong = f"{path} is not a whole MindIR file"
    try:
        model.ParseFromString(without_weights(data))
    except MalformedError as error:
        raise ModelError(f"{wrong}: {error}; it is truncated or another format.") from None
    except Exception as error:  # protobuf's DecodeError, whose module differs between its implementations
        raise ModelError(f"{wrong}: {error}.") from None
    if not _is_text(model):
        raise ModelError(f"{path} is not a valid MindIR file: it holds text that is not UTF-8.")
    _check(model, path)
    return Container(path, model, data, encrypted)


def check_format(head: bytes, path: Path) -> None:
    """Refuses MindSpore Lite's format by the first 8 bytes."""
    if head[4:8] in LITE_IDENTIFIERS:
        raise ModelError(
            f"{path} is a MindSpore Lite file (.ms), whose operators are compiled for devices: convert the "
            "file that it was made from, the .mindir of mindspore.export, or an ONNX file."
        )


def _is_text(message: Message) -> bool:
    """Whether all text in a message is UTF-8: what is not, protobuf gives as bytes."""
    from google.protobuf.message import Message

    waiting = [message]
    try:
        while waiting:
            for field, value in waiting.pop().ListFields():
                if field.type == field.TYPE_STRING:
                    many = (
                        value
                        if isinstance(value, Iterable) and not isinstance(value, (str, bytes))
                        else (value,)
                    )
                    if not all(isinstance(item, str) for item in many):
                        return False
                elif isinstance(value, Message):
                    waiting.append(value)
                elif field.message_type is not None and isinstance(value, Iterable):
                    waiting.extend(value)
    except UnicodeDecodeError:
        return False
    return True


def _check(model: Model, path: Path) -> None:
    version = int(model.mind_ir_version)
    if version == 0:
        made = f" (written by {model.producer_name[:40]} {model.model_version[:40]})".rstrip()
        raise ModelError(
            f"{path} is MindIR of version 0{made if model.model_version else ''}, which MindSpore itself no "
            "longer reads: load the checkpoint in MindSpore 2 and export it again."
        )
    if version not in VERSIONS:
        raise ModelError(
            f"{path} is MindIR of version {version}; versions 1 (MindSpore 2.0) and 3 (MindSpore 2.x) can be "
            "read: export it with one of these."
        )
    if model.HasField("little_endian") and not model.little_endian:
        raise ModelError(f"{path} has big-endian weights: export it on a little-endian machine.")
    if not model.HasField("graph") or not len(model.graph.output):
        raise ModelError(f"{path} is not a whole MindIR file: it has no graph with an output.")
    if len(model.graph.map_parameter):
        raise ModelError(f"{path} holds map parameters (hash tables), which have no conversion.")


def without_weights(data: memoryview) -> bytes:
    """The message with each large weight pointing to its bytes. Raises `MalformedError`."""
    return _rebuild(data, 0, len(data), (schema.MODEL_GRAPH, schema.GRAPH_PARAMETER))


def _rebuild(data: memoryview, start: int, end: int, way: tuple[int, ...]) -> bytes:
    if not way:
        return _strip_tensor(data, start, end)
    parts = []
    for number, wire, first, payload, stop in fields(data, start, end):
        if number == way[0] and wire == _BYTES:
            parts.append(field(number, _rebuild(data, payload, stop, way[1:])))
        else:
            parts.append(bytes(data[first:stop]))
    return b"".join(parts)


def _strip_tensor(data: memoryview, start: int, end: int) -> bytes:
    if end - start <= INLINE_BYTES:
        return bytes(data[start:end])
    parts = []
    for number, wire, first, payload, stop in fields(data, start, end):
        if number == schema.TENSOR_RAW_DATA and wire == _BYTES and stop - payload > INLINE_BYTES:
            entry = field(schema.EXTERNAL_LOCATION, IN_MODEL_FILE.encode())
            entry += varint(schema.EXTERNAL_OFFSET << 3 | _VARINT) + varint(payload)
            entry += varint(schema.EXTERNAL_LENGTH << 3 | _VARINT) + varint(stop - payload)
            parts.append(field(schema.TENSOR_EXTERNAL_DATA, entry))
        else:
            parts.append(bytes(data[first:stop]))
    return b"".join(parts)
