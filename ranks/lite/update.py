"""The argument of `Model.update_weights` as new values by weight."""

from __future__ import annotations

from collections.abc import Sequence

from ranks.errors import WeightsError
from ranks.lite.tensor import Tensor
from ranks.weights.updated.values import Given, Pair
from sharding.common.arrays import Array

_FORM = "Give a list that holds one list (or tuple) of Tensor."
_LISTED = 8  # names that an error shows
A, B = "@A", "@B"
"""What follows a weight's name in the names of a pair's tensors: the weight becomes its base + A @ B."""


def parse(weights: object, names: frozenset[str] = frozenset()) -> Given:
    """New values from ``[[Tensor, ...]]``; ``names`` are the variable weights (which may end in @A, too).

    A tensor without a name is the one weight that is variable. Raises `TypeError` for another type, and
    `WeightsError` for tensors without data, without name where several weights are variable, for one that
    comes twice, and for half a pair.
    """
    groups = checked(weights)
    found: dict[str, Array] = {}
    for index, group in enumerate(groups):
        for position, tensor in enumerate(group):
            name = tensor.name or _only(names, f"{index}th weights element's {position}th element")
            if name in found:
                raise WeightsError(f"The weight {name!r} is given twice.")
            if tensor._array is None and min(tensor.shape, default=0) < 0:
                raise WeightsError(f"The tensor {name!r} has no data and the open shape {tensor.shape}.")
            found[name] = tensor.get_data_to_numpy()
    if len(groups) > 1:
        raise WeightsError(
            f"{len(groups)} lists of tensors were given, but there is one model: give all in one list."
        )
    return _paired(found, names)


def checked(weights: object) -> Sequence[Sequence[Tensor]]:
    """``weights``, which must be ``[[Tensor, ...]]``. Raises `TypeError`, with mindspore_lite's words."""
    if not isinstance(weights, (list, tuple)):
        raise TypeError(f"weights must be list, but got {type(weights)}. {_FORM}")
    for index, group in enumerate(weights):
        if not isinstance(group, (list, tuple)):
            raise TypeError(f"weight must be list, but got {type(group)} at index {index}. {_FORM}")
        for position, tensor in enumerate(group):
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"weights element must be Tensor, but got {type(tensor)} as index {index}{position}. "
                    f"{_FORM}"
                )
    return weights


def _only(names: frozenset[str], where: str) -> str:
    """The name of a tensor that has none."""
    if len(names) == 1:
        return next(iter(names))
    if not names:
        raise WeightsError(f"The {where} has no name, and no weight of this model is variable.")
    listed = sorted(names)
    shown = ", ".join(repr(name[:100]) for name in listed[:_LISTED])
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    raise WeightsError(
        f"The {where} has no name: say which weight it is, tensor.name = {listed[0][:100]!r}. The variable "
        f"weights are {shown}{more}."
    )


def _paired(found: dict[str, Array], names: frozenset[str]) -> Given:
    given: dict[str, Array | Pair] = {}
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
