"""What a model format says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sharding.common.registry import Names, Registry

if TYPE_CHECKING:
    import onnx

HEAD = 16
"""Bytes at a file's begin by which formats are told apart."""


class ModelFormat(NamedTuple):
    """One format that is turned into ONNX: a module of `sharding.importers.formats` holds one, and has its
    name."""

    is_it: Callable[[Path, bytes], bool]
    """Whether a file that is neither ONNX nor MindIR is of it, by its path and its first `HEAD` bytes."""
    import_model: Callable[..., onnx.ModelProto]
    """``import_model(path, key=..., opset=...)``: the model as ONNX; ``key`` is that of an encrypted one."""
    last: bool = False
    """Whether others are asked before: it goes by a file's name, too."""


FORMATS: Registry[ModelFormat] = Registry(
    Names("sharding/importers/formats", "shardrun.formats"), ModelFormat
)


def told(path: Path, head: bytes) -> str | None:
    """The name of the format of a file that is neither ONNX nor MindIR."""
    for name, item in sorted(FORMATS.all().items(), key=lambda pair: pair[1].last):
        if item.is_it(path, head):
            return name
    return None
