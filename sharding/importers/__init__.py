"""Formats other than ONNX: each is turned into an ONNX model, and all that follows is the same.

An importer takes a path and gives a model whose large weights stay where they lie: external data with the
location `sharding.onnx_files.protobuf.IN_MODEL_FILE` (the imported file itself) or a file in its folder. A
new format is one module in `sharding.importers.formats`, or an entry point of the group ``shardrun.formats``
that another package brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import ModelError
from sharding.importers.format import FORMATS
from sharding.importers.padded_pooling import keep_zeros
from sharding.importers.sniff import OPSETS, RUN_OPSET, Format, format_of, is_imported

if TYPE_CHECKING:
    import onnx

    from sharding.common.encryption import Key


def import_model(path: str | Path, *, key: Key | None = None, opset: int = RUN_OPSET) -> onnx.ModelProto:
    """Reads a model file of another format than ONNX as ONNX; ``key`` is that of an encrypted one.

    Raises `ModelError`: no importer for its content, or what the importer raises.
    """
    if opset not in OPSETS:
        raise ModelError(f"opset {opset} cannot be written; expected {OPSETS[0]} to {OPSETS[-1]}.")
    found = format_of(path)
    if found == "onnx":
        raise ModelError(f"{path} is an ONNX file already.")
    if found not in FORMATS:
        raise ModelError(f"{path} is of no format that can be turned into ONNX; expected a MindIR file.")
    model = FORMATS[found].import_model(path, key=key, opset=opset)
    keep_zeros(model)
    return model


__all__ = ["FORMATS", "OPSETS", "Format", "format_of", "import_model", "is_imported"]
