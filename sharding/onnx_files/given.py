"""A model given as bytes, as an `onnx.ModelProto` or as an `onnx_ir.Model`: a file while it is used.

What is read later maps the weights from files, so that a model of any size is held once.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from sharding.common.storage import PAGE, why_unwritable
from sharding.errors import ModelError

if TYPE_CHECKING:
    from typing import BinaryIO

    import onnx
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

LARGEST_MESSAGE = 1 << 30
"""Bytes of weights that are written into the model's own file: protobuf takes no message of 2 GiB."""
_LEAST_EXTERNAL = 4096
_WHOLE_BYTES = frozenset({1, 6, 7, 11})
"""ONNX's numbers of float32, int32, int64 and float64: their typed data are as their raw data."""
_NAME, _DATA = "model.onnx", "model.onnx.data"


class GivenModel:
    """The file of a given model, there until `close` or the end of this object or its process."""

    def __init__(self, model: object) -> None:
        """Writes the model into a folder of this user alone.

        Raises `TypeError` for what is no model, `ModelError` for one whose weights lie in files that nothing
        says where to find, and where it cannot be written.
        """
        from sharding.common.plain_folder import plain_folder

        stack = contextlib.ExitStack()
        try:
            folder = stack.enter_context(plain_folder())
            self.path = folder / _NAME
            _write(model, self.path)
        except OSError as error:
            stack.close()
            raise ModelError(
                "the given model is written to a temporary file first, which cannot be done: "
                f"{why_unwritable(error, 'set TMPDIR to a folder that can be written')}."
            ) from None
        except BaseException:
            stack.close()
            raise
        self._closer = weakref.finalize(self, stack.close)

    def close(self) -> None:
        """Removes the file. Safe to call twice."""
        self._closer()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def is_path(model: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a model is given as a path."""
    return isinstance(model, str | os.PathLike)


def _write(model: object, path: Path) -> None:
    if isinstance(model, bytes | bytearray | memoryview):
        if not len(model):
            raise ModelError("the given model is empty: it has 0 bytes.")
        path.write_bytes(model)
        _check_bytes(path)
        return
    kind = type(model)
    if kind.__name__ == "ModelProto" and hasattr(model, "graph"):
        message = cast("onnx.ModelProto", model)
        _refuse_external(message)
        _write_message(message, path)
        return
    if kind.__module__.partition(".")[0] == "onnx_ir" and kind.__name__ == "Model":
        import onnx_ir as ir

        ir.save(cast("ir.Model", model), path, external_data=_DATA)
        return
    if is_path(model):  # where only a content may be given
        raise TypeError(
            f"model must be bytes, an onnx.ModelProto or an onnx_ir.Model, but got {kind}: a path is for "
            "build_from_file."
        )
    raise TypeError(f"model must be a path, bytes, an onnx.ModelProto or an onnx_ir.Model, but got {kind}.")


def _check_bytes(path: Path) -> None:
    """Refuses the bytes of a model whose weights lie in other files."""
    from sharding.onnx_files.protobuf import read_message

    try:
        message = read_message(path)
    except Exception:  # whoever reads the model says what is wrong with it
        return
    _refuse_external(message)


def _refuse_external(message: onnx.ModelProto) -> None:
    from sharding.onnx_files.external import locations

    found = locations(message)
    if found:
        raise ModelError(
            f"the given model has weights in other files ({', '.join(found[:3])}), and nothing says in which "
            "folder: give the model's path, or load its weights first (onnx.load does unless told otherwise)."
        )


def _write_message(model: onnx.ModelProto, path: Path) -> None:
    """The message, its large weights in a file beside it where they are more than one message holds."""
    weights = model.graph.initializer
    if sum(tensor.ByteSize() for tensor in weights) <= LARGEST_MESSAGE:
        path.write_bytes(_serialized(model))
        return
    import onnx

    light = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(field, value, light)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy(field, value, light.graph)
    with path.with_name(_DATA).open("wb") as file:
        for tensor in weights:
            typed = not tensor.raw_data and tensor.data_type not in _WHOLE_BYTES
            if tensor.ByteSize() < _LEAST_EXTERNAL or typed:
                light.graph.initializer.append(tensor)
            else:
                light.graph.initializer.append(_moved(tensor, file))
    path.write_bytes(_serialized(light))


def _copy(field: FieldDescriptor, value: object, target: Message) -> None:
    if hasattr(value, "extend") or hasattr(value, "add"):
        getattr(target, field.name).extend(value)
    elif field.message_type is not None:
        getattr(target, field.name).CopyFrom(value)
    else:
        setattr(target, field.name, value)


def _moved(tensor: onnx.TensorProto, file: BinaryIO) -> onnx.TensorProto:
    """The tensor with its data at the end of the file."""
    import onnx

    from sharding.onnx_files.external import put_place

    data = tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()
    start = -(-file.tell() // PAGE) * PAGE
    file.seek(start)
    file.write(data)
    moved = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    put_place(moved, _DATA, start, len(data))
    return moved


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        found: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own types differ between its implementations
        raise ModelError(f"the given model cannot be written: {error}.") from None
    return found
