"""ONNX's messages, without the rest of the package `onnx`.

Who only reads and cuts a model needs no checker, no converter and no versions of what is installed, which
`import onnx` loads. What protobuf's compiler made of ONNX's schema is a module of that package which imports
protobuf alone, and here it alone is executed. In a process protobuf has one class for each message, so that a
later `import onnx` finds the same ones.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sharding.onnx_files.placeholders import refuse_devices
from sharding.onnx_files.protobuf import MESSAGE_BYTES, not_a_model

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )

__all__ = [
    "AttributeProto",
    "FunctionProto",
    "ModelProto",
    "NodeProto",
    "TensorProto",
    "TypeProto",
    "ValueInfoProto",
    "read_message",
    "tensor_type",
]

_PACKAGE, _GENERATED = "onnx", "onnx.onnx_ml_pb2"


def _messages() -> ModuleType:
    """A module that has the classes of the messages: the whole package where it is there already, or where
    its generated module is not found alone."""
    spec = None if _PACKAGE in sys.modules else _generated()
    if spec is None or spec.loader is None:
        return importlib.import_module(_PACKAGE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _generated() -> ModuleSpec | None:
    package = PathFinder.find_spec(_PACKAGE)
    places = None if package is None else package.submodule_search_locations
    return None if places is None else PathFinder.find_spec(_GENERATED, places)


if not TYPE_CHECKING:
    _found = _messages()
    AttributeProto = _found.AttributeProto
    FunctionProto = _found.FunctionProto
    ModelProto = _found.ModelProto
    NodeProto = _found.NodeProto
    TensorProto = _found.TensorProto
    TypeProto = _found.TypeProto
    ValueInfoProto = _found.ValueInfoProto


def read_message(path: Path) -> ModelProto:
    """A model's message without its external data, as ``onnx.load`` reads it.

    Raises `OSError`, `ModelError` for a pipe or a device, which might never end, and for a file that is too
    long for protobuf, and protobuf's own errors.
    """
    refuse_devices(path)
    if path.stat().st_size >= MESSAGE_BYTES:
        raise not_a_model(path)
    if path.suffix != ".onnx":  # by the name it may be of a form of text
        import onnx

        return onnx.load(str(path), load_external_data=False)
    return ModelProto.FromString(path.read_bytes())


def tensor_type(element: int, shape: Sequence[int | str | None]) -> TypeProto:
    """The type of a tensor: the number of its element type, and an axis for each length, symbol or None."""
    result = TypeProto()
    tensor = result.tensor_type
    tensor.elem_type = element
    tensor.shape.SetInParent()  # also without axes
    for length in shape:
        axis = tensor.shape.dim.add()
        if isinstance(length, str):
            axis.dim_param = length
        elif length is not None:
            axis.dim_value = length
    return result
