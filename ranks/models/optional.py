"""Inputs that need not be fed: a model's initializers that it lists as inputs, too.

ONNX calls them default values. Up to IR version 3 every initializer had to be listed, and exporters kept to
that later: where a model that nothing was sliced from lists all of them, they are weights, which nobody
feeds. A rank model made by `sharding` lists only what its source gives a default, and holds it whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ranks.common.tensors import element_dtype
from ranks.errors import ModelError

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import Array

FIRST_IR_VERSION = 4
"""ONNX Runtime takes no other value for an initializer of an older model."""
RANK_KEY = "shardrun.rank"


def take(model: onnx.ModelProto, file: Path) -> dict[str, Array]:
    """Makes ordinary inputs of a model's optional ones, listed last; returns their default values by name.

    Raises `ModelError` for a default that cannot be read.
    """
    graph = model.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name in held]
    listed_all = len(names) == len(held) and not made_here(model)
    if not names or model.ir_version < FIRST_IR_VERSION or listed_all:
        return {}
    defaults = {name: _value(held[name], file) for name in names}
    kept = [tensor for tensor in graph.initializer if tensor.name not in defaults]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    inputs = sorted(graph.input, key=lambda value: value.name in defaults)
    del graph.input[:]
    graph.input.extend(inputs)
    return defaults


def made_here(model: onnx.ModelProto) -> bool:
    """Whether slicing wrote this rank model."""
    return any(item.key == RANK_KEY for item in model.metadata_props)


def _value(tensor: onnx.TensorProto, file: Path) -> Array:
    import onnx

    dtype = element_dtype(tensor.data_type)
    try:
        array = onnx.numpy_helper.to_array(tensor, str(file.parent))
    except Exception as error:  # data that are missing, of the wrong length, outside the folder, ...
        raise ModelError(f"{file}: the default of input {tensor.name!r} cannot be read: {error}.") from None
    if array.dtype == dtype or dtype.hasobject:
        return array
    # Some releases of onnx give the bits of types that numpy lacks, others their values as float32.
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array.astype(dtype)
