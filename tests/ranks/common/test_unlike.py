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


@pytest.mark.parametrize("symbol", ["past + 1", "past+new", "past-new", "past/2", "past*2"])
def test_a_symbol_that_names_others_is_what_they_make_only_where_that_is_asked(symbol: str) -> None:
    """Others call their axes so and mean nothing by it."""
    lengths = {"x": ("past", 6), "y": ("new", 1), "z": (symbol, 3)}
    specs = [TensorSpec(name, np.dtype(np.float32), (dim,)) for name, (dim, _) in lengths.items()]
    shapes = [(length,) for _, length in lengths.values()]
    assert unlike(specs, shapes) == ""
    odd = unlike(specs, shapes, {symbol: symbol})
    assert odd == (
        "" if symbol == "past/2" else f"{symbol!r} has length 3 in input 'z', but would be {odd[-2:].strip()}"
    )
