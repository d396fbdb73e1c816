"""What the whole model takes in place of a rank's part of its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.state.parts import whole_specs
from sharding.slices.state import StatePair


@pytest.mark.parametrize(
    ("placement", "shape", "whole"),
    [
        ("split:1", ("b", 2, "p", 8), ("b", 8, "p", 8)),
        ("split:1*2", ("b", 2, "p", 8), ("b", 4, "p", 8)),
        ("split:1*4", ("b", 2, "p", 8), ("b", 2, "p", 8)),
        ("split:1/3", ("b", 6), ("b", 24)),
        ("split:1", ("b",), ("b",)),
        ("split:0", ("b", 2), ("b", 2)),
        ("replicated", ("b", 2, "p", 8), ("b", 2, "p", 8)),
    ],
)
def test_lengths_of_the_whole_state(placement: str, shape: tuple[Any, ...], whole: tuple[Any, ...]) -> None:
    """Of four ranks; a length that is open stays open, and what is no state is as it was."""
    pair = StatePair("k", "k+", placement=placement)
    mine = [TensorSpec(name, np.dtype(np.float16), shape) for name in ("x", "k")]
    found = whole_specs(mine, {"k": pair}, 4)
    assert [(one.name, one.shape) for one in found] == [("x", shape), ("k", whole)]
    assert found[1].dtype == np.float16
