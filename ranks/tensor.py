"""`mindspore_lite.tensor`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.lite.options.types import DataType, Format
from ranks.lite.tensor import Tensor, TensorMeta

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]
