"""Requests without any element: some of ONNX Runtime's operators end a whole process over an empty batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from ranks.errors import ShardrunError
from sharding.onnx_files.walk import nodes_in
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx

_FATAL = {(MICROSOFT, "GroupQueryAttention"), ("", "GRU"), ("", "Einsum")}
"""They divide by the batch's size, or fail an assertion about it (ONNX Runtime 1.31)."""


def fatal_operator(model: onnx.ModelProto) -> str:
    """An operator of a model that an empty batch is fatal for; empty where it has none."""
    return next((n.op_type for n in nodes_in(model.graph) if (n.domain, n.op_type) in _FATAL), "")


def check(arrays: Iterable[object], fatal: Callable[[], str]) -> None:
    """Raises `ShardrunError` where no input of several axes has an element and an operator, which ``fatal``
    finds, would end this process."""
    found = False
    for array in arrays:
        if not isinstance(array, np.ndarray):
            return
        if array.ndim > 1:  # others are numbers that say how to compute
            if array.size:
                return
            found = True
    if found and (operator := fatal()):
        raise ShardrunError(
            f"The inputs hold no element, and ONNX Runtime's {operator} would end the process over an empty "
            "batch: leave this request out."
        )
