"""`mindspore_lite.tensor`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.api.tensor import Tensor, TensorMeta
from ranks.api.types import DataType, Format

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]
