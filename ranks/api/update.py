"""The argument of `Model.update_weights` as new values by weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from ranks.api.tensor import Tensor
from ranks.errors import WeightsError
from ranks.weights.variable_values import Given, Pair

A, B = "@A", "@B"
"""What follows a weight's name in the names of a pair's tensors: the weight becomes its base + A @ B."""


def parse(weights: object, names: frozenset[str] = frozenset()) -> Given:
    """New values from ``[[Tensor, ...]]``; ``names`` are the variable weights (which may end in @A, too).

    Raises `TypeError` for another type, and `WeightsError` for tensors without name or data, for one that
    comes twice, and for half a pair.
    """
    if not isinstance(weights, (list, tuple)):
        raise TypeError(f"weights must be list or tuple of list of Tensor, but got {type(weights)}.")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for index, group in enumerate(weights):
        if not isinstance(group, (list, tuple)):
            raise TypeError(
                f"weights element must be list or tuple of Tensor, but got {type(group)} at index {index}."
            )
        for position, tensor in enumerate(group):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"weights element's element must be Tensor, but got {type(tensor)} at {index}th weights "
                    f"element's {position}th element."
                )
            _add(tensor, f"{index}th weights element's {position}th element", found)
    if len(weights) > 1:
        raise WeightsError(
            f"{len(weights)} lists of tensors were given, but there is one model: give all in one list."
        )
    return _paired(found, names)


def _add(tensor: Tensor, where: str, found: dict[str, np.ndarray[Any, Any]]) -> None:
    if not tensor.name:
        raise WeightsError(f"The {where} has no name: set its name to that of a weight.")
    if tensor.name in found:
        raise WeightsError(f"The weight {tensor.name!r} is given twice.")
    if tensor._array is None and min(tensor.shape, default=0) < 0:
        raise WeightsError(f"The tensor {tensor.name!r} has no data and the open shape {tensor.shape}.")
    found[tensor.name] = tensor.get_data_to_numpy()


def _paired(found: dict[str, np.ndarray[Any, Any]], names: frozenset[str]) -> Given:
    given: dict[str, np.ndarray[Any, Any] | Pair] = {}
    for name, array in found.items():
        if name in names or not name.endswith((A, B)):
            if name in given:
                raise WeightsError(f"The weight {name!r} is given whole and as a pair.")
            given[name] = array
            continue
        weight = name[: -len(A)]
        if weight + A not in found or weight + B not in found:
            raise WeightsError(
                f"The weight {weight!r} is given {name!r} without the other half of the pair: "
                f"{weight + A!r} and {weight + B!r} belong together."
            )
        if weight in found:
            raise WeightsError(f"The weight {weight!r} is given whole and as a pair.")
        given[weight] = Pair(found[weight + A], found[weight + B])
    return given
