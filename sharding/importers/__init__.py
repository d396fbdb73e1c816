"""Formats other than ONNX: each is turned into an ONNX model, and all that follows is the same.

An importer takes a path and gives a model whose large weights stay where they lie: external data with the
location `sharding.onnx_files.protobuf.IN_MODEL_FILE` (the imported file itself) or a file in its folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import ModelError
from sharding.importers.padded_pooling import keep_zeros
from sharding.importers.sniff import OPSETS, RUN_OPSET, Format, format_of, is_imported

if TYPE_CHECKING:
    import onnx

    from sharding.importers.mindir.encryption import Key

IMPORTERS: dict[Format, str] = {
    "mindir": "sharding.importers.mindir.convert",
    "mindir_old": "sharding.importers.mindir.convert",
    "mindir_encrypted": "sharding.importers.mindir.convert",
    "mindir_lite": "sharding.importers.mindir.convert",
    "foreign": "sharding.importers.foreign",
}
"""Format -> the module whose ``import_model(path, key=..., opset=...)`` reads it."""


def import_model(path: str | Path, *, key: Key | None = None, opset: int = RUN_OPSET) -> onnx.ModelProto:
    """Reads a model file of another format than ONNX as ONNX; ``key`` is that of an encrypted one.

    Raises `ModelError`: no importer for its content, or what the importer raises.
    """
    import importlib

    if opset not in OPSETS:
        raise ModelError(f"opset {opset} cannot be written; expected {OPSETS[0]} to {OPSETS[-1]}.")
    found = format_of(path)
    if found == "onnx":
        raise ModelError(f"{path} is an ONNX file already.")
    if found not in IMPORTERS:
        raise ModelError(f"{path} is of no format that can be turned into ONNX; expected a MindIR file.")
    model: onnx.ModelProto = importlib.import_module(IMPORTERS[found]).import_model(
        path, key=key, opset=opset
    )
    keep_zeros(model)
    return model


__all__ = ["IMPORTERS", "OPSETS", "Format", "format_of", "import_model", "is_imported"]
