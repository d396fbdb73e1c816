"""The forms in which a model may be given, each made of a file, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

X = np.random.default_rng(5).standard_normal((3, 8), np.float32)
FORMS: dict[str, Callable[[str], Any]] = {
    "path": str,
    "bytes": lambda path: Path(path).read_bytes(),
    "bytearray": lambda path: bytearray(Path(path).read_bytes()),
    "memoryview": lambda path: memoryview(Path(path).read_bytes()),
    "ModelProto": onnx.load,
}
"""Those of which all are the same model."""


def given(kind: str, path: str) -> Any:
    return ir.load(path) if kind == "onnx_ir.Model" else FORMS[kind](path)
