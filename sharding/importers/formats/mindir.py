"""MindIR, a protobuf message as ONNX is: `sharding.importers.sniff` tells its kinds apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.importers.format import ModelFormat

if TYPE_CHECKING:
    import onnx


def _never(path: Path, head: bytes) -> bool:
    return False


def _import(path: str | Path, **how: object) -> onnx.ModelProto:
    from sharding.importers.mindir.convert import import_model

    read: Callable[..., onnx.ModelProto] = import_model
    return read(path, **how)


FORMAT = ModelFormat(_never, _import)
