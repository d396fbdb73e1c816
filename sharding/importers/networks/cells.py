"""A ``mindspore.nn.Cell``: given weights, exported as MindIR by MindSpore, and read like any MindIR file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.errors import ModelError, OptionError
from sharding.importers import import_model
from sharding.importers.checkpoints.base import Checkpoint, cast, special_dtype
from sharding.importers.checkpoints.match import Match, Target, match
from sharding.importers.checkpoints.rename import Rule
from sharding.importers.networks.arguments import in_order
from sharding.importers.networks.factory import Network, described
from sharding.importers.networks.inputs import Input, name_axes
from sharding.importers.networks.packages import need

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import DType


def load(network: Network, checkpoint: Checkpoint, rules: Sequence[Rule], **allowed: bool) -> Match:
    """Copies the weights into the cell and returns what fitted. Raises `ModelError` (`Match.check`)."""
    mindspore = need("mindspore", "The network is a mindspore.nn.Cell")
    parameters = dict(network.module.parameters_and_names())
    targets = {name: Target(_dtype(item), tuple(item.shape), id(item)) for name, item in parameters.items()}
    result = match(checkpoint, targets, rules)
    result.check(checkpoint, **allowed)
    for name, entry in result.found.items():
        array = cast(entry.array(), targets[name].dtype, f"The weight {name!r}")
        parameters[name].set_data(
            mindspore.Tensor(array.astype(np.float32), parameters[name].dtype)
            if array.dtype.isbuiltin != 1
            else mindspore.Tensor(array)
        )
    return result


def export_cell(
    cell: Any, inputs: Sequence[Input], folder: Path, opset: int, what: str
) -> tuple[onnx.ModelProto, Path]:
    """Exports a cell into ``folder``; returns its ONNX model and the MindIR file, where its weights lie.

    Raises `OptionError` without inputs, `ModelError` where MindSpore cannot export it or what it exports has
    no form in ONNX.
    """
    mindspore = need("mindspore", f"{what} is a mindspore.nn.Cell")
    if not inputs:
        raise OptionError(f"{what}: give its inputs with --input NAME:SHAPE[:DTYPE].")
    inputs = in_order(cell, inputs, what)
    path = folder / "network.mindir"
    cell.set_train(False)
    try:
        tensors = [
            mindspore.Tensor(
                shape=[None if isinstance(n, str) else n for n in item.shape],
                dtype=getattr(mindspore, "bool_" if item.dtype == "bool" else item.dtype),
            )
            if any(isinstance(n, str) for n in item.shape)
            else mindspore.Tensor(np.ones([int(n) for n in item.shape], np.dtype(item.dtype)))
            for item in inputs
        ]
        mindspore.export(cell, *tensors, file_name=str(path), file_format="MINDIR")
    except Exception as error:  # the network's own code runs in here
        raise ModelError(f"{what} cannot be exported by MindSpore: {described(error)}.") from error
    model = import_model(path, opset=opset)
    name_axes(model, inputs)
    return model, path


def _dtype(parameter: Any) -> DType:
    text = str(parameter.dtype).lower()
    return special_dtype("bfloat16") if text == "bfloat16" else np.dtype(text.rstrip("_"))
