"""The weights that a group was given since it was started: ranks that come later get them, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from launcher.group.serving.asked import AGAIN, Asked
from ranks.errors import WeightsError
from ranks.talk import wire
from sharding.common.text import did_you_mean

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array


class Renewal:
    """What ranks were given in place of their file's weights. Guarded by the lock of its `Requests`."""

    def __init__(self) -> None:
        self._given: dict[str, Array] = {}

    def note(self, asked: Asked) -> None:
        """A request was answered: if it replaced weights, these are what later ranks need."""
        if asked.kind is wire.Kind.WEIGHTS:
            self._given.update(asked.tensors)

    def again(self) -> Asked | None:
        """The first request to ranks that were started again; None where nothing was replaced."""
        return Asked(wire.Kind.WEIGHTS, {AGAIN: True}, dict(self._given)) if self._given else None


def checked(weights: Mapping[str, Array], known: Sequence[TensorSpec]) -> dict[str, Array]:
    """Copies of the new values. Raises `WeightsError` for what is no variable weight, or of another type or
    shape; float32 is taken for types that numpy lacks, and rounded."""
    from ranks.weights.updated.values import Spec, check_value, number_of

    if not isinstance(weights, Mapping) or not weights:
        raise WeightsError("New weights are a mapping of names to arrays, with at least one.")
    specs = {spec.name: spec for spec in known}
    if not specs:
        raise WeightsError(
            "No weight of this model can be replaced: name those that may be in variable_weights when it is "
            "started."
        )
    for name, value in weights.items():
        spec = specs.get(name)
        if spec is None:
            hint = did_you_mean(str(name), specs) or " among those named in variable_weights."
            raise WeightsError(f"There is no weight {str(name)[:200]!r}{hint}")
        shape = tuple(axis for axis in spec.shape if isinstance(axis, int))
        check_value(name, Spec(number_of(spec.dtype), shape), np.asarray(value))
    return {name: np.array(value, order="C") for name, value in weights.items()}
