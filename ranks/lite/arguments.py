"""What `Model.predict` and `Model.resize` are given, in the forms that they may have."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ranks.lite.options.check import check_elements, check_sequence
from ranks.lite.options.errors import runtime_error
from ranks.lite.tensor import Tensor


def length(dim: int | str | None) -> int:
    """A declared length as scripts see it; -1 where it is open."""
    return dim if isinstance(dim, int) else -1


def one_by_one(inputs: Any, outputs: Any, further: tuple[object, ...]) -> tuple[Any, Any]:
    """Inputs and outputs of ``predict(a, b, ...)``; what ``predict([a, b], outputs)`` was given stays."""
    if not isinstance(inputs, (Tensor, np.ndarray)):
        return inputs, outputs
    if isinstance(outputs, (Tensor, np.ndarray)):
        return [inputs, outputs, *further], None
    return [inputs, *further], outputs


def checked_outputs(outputs: object, expected: int) -> list[Tensor]:
    """The caller's own outputs of a prediction; raises `TypeError`, or `RuntimeError` for another number."""
    check_sequence("outputs", outputs)
    assert isinstance(outputs, (list, tuple))
    check_elements("outputs", outputs, Tensor)
    if len(outputs) != expected:
        raise runtime_error(
            f"predict failed! Error is model output len:{expected} not equal output len:{len(outputs)}!"
        )
    return list(outputs)


def shapes_of(dims: Sequence[object]) -> list[tuple[int, ...]]:
    """The ``dims`` of `Model.resize`; raises `TypeError` for what is no list of lists of integers."""
    shapes = []
    for index, shape in enumerate(dims):
        if not isinstance(shape, (list, tuple)):
            raise TypeError(
                f"dims element must be list or tuple of int, but got {type(shape)} at index {index}."
            )
        lengths = []
        for position, length in enumerate(shape):
            try:
                lengths.append(operator.index(length))
            except TypeError:
                raise TypeError(
                    f"dims element's element must be int, but got {type(length)} at {index}th dims element's "
                    f"{position}th element."
                ) from None
        shapes.append(tuple(lengths))
    return shapes
