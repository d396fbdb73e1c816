"""What `Model.predict` and `Model.resize` are given, in the forms that they may have."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from ranks.lite.options.check import check_elements, check_isinstance, check_sequence, of_bits
from ranks.lite.options.errors import runtime_error
from ranks.lite.tensor import Tensor, TensorMeta
from sharding.common.arrays import Array


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


def in_shape(array: Array, shape: Sequence[int]) -> Array:
    """``array`` in an input's ``shape``, where it has as many elements and their order leaves no doubt: it is
    flat, or has axes of length 1 more or fewer. Else as it is, for the model to say what does not fit."""
    if min(shape, default=0) < 0 or array.size != prod(shape):
        return array
    alike = [length for length in array.shape if length != 1] == [length for length in shape if length != 1]
    return array.reshape(shape) if array.ndim == 1 or alike else array


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
                number = operator.index(length)
            except TypeError:
                raise TypeError(
                    f"dims element's element must be int, but got {type(length)} at {index}th dims element's "
                    f"{position}th element."
                ) from None
            where = f" at {index}th dims element's {position}th element"
            lengths.append(of_bits("dims element's element", number, 64, where))
        shapes.append(tuple(lengths))
    return shapes


_Tensor = TypeVar("_Tensor", Tensor, TensorMeta)


def named(tensors: Iterable[_Tensor], what: str, name: str) -> _Tensor:
    """The one of this name among a model's ``what``s."""
    check_isinstance("tensor_name", name, str)
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise runtime_error(f"get_{what}_by_tensor_name failed! The model has no {what} {name!r}.")
