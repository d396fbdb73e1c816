"""Versions of variable weights, as runs take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ranks.weights.updated.bound import BoundWeights


def test_weights_of_another_shape_are_seen_as_such() -> None:
    """Of as many elements too: buffers of the old shape do not fit."""
    weights: Any = SimpleNamespace()

    def version(*shapes: tuple[int, ...]) -> None:
        arrays = {str(place): np.zeros(shape) for place, shape in enumerate(shapes)}
        present = SimpleNamespace(arrays=arrays)
        weights.snapshot = lambda: present

    version((4,), (2, 3))
    bound = BoundWeights(weights)
    assert not bound.reshaped and not bound.renew()
    version((4,), (3, 2))
    assert bound.renew() and bound.reshaped
    assert not bound.renew() and bound.reshaped
    version((4,), (3, 2))
    assert bound.renew() and not bound.reshaped
