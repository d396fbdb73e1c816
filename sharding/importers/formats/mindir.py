"""MindIR, a protobuf message as ONNX is: `sharding.importers.sniff` tells its kinds apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharding.importers.format import ModelFormat

if TYPE_CHECKING:
    import onnx


def _never(path: Path, head: bytes) -> bool:
    return False


def _import(path: str | Path, **options: Any) -> onnx.ModelProto:
    from sharding.importers.mindir.convert import import_model

    return import_model(path, **options)


FORMAT = ModelFormat(_never, _import)
