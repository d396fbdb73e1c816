"""Whether inputs have the lengths that their symbols say."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec, unlike


@pytest.mark.parametrize("symbol", ["-1", "4", "2 * 2"])
def test_a_number_as_symbol_is_a_name(symbol: str) -> None:
    """Exporters write what they were given: it says nothing of the length, but that two are one."""
    x, y = (TensorSpec(name, np.dtype(np.float32), (symbol,)) for name in "xy")
    assert unlike([x, y], [(3,), (3,)]) == ""
    assert unlike([x, y], [(3,), (2,)]) == f"{symbol!r} has length 2 in input 'y', but 3 in input 'x'"


def test_a_symbol_that_names_others_is_what_they_make() -> None:
    x, y = (
        TensorSpec(name, np.dtype(np.float32), (dim,)) for name, dim in (("x", "past"), ("y", "past + 1"))
    )
    assert unlike([x, y], [(3,), (4,)]) == ""
    assert "would be 4" in unlike([x, y], [(3,), (5,)])
