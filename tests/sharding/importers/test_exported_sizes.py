"""How large the weights of an exported program may be, given the size of its file; without torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.errors import ModelError
from sharding.importers.networks.program import _SPARE, _UNFOLDED_MOST, _check_weights


def _tensor(elements: int, size: int) -> Any:
    return SimpleNamespace(numel=lambda: elements, element_size=lambda: size)


@pytest.mark.parametrize("more", [0, 1])
def test_weights_may_be_some_times_as_large_as_their_file(more: int, tmp_path: Path) -> None:
    """One that has two names counts once; what else a program holds (scripted objects) has no size."""
    path = tmp_path / "m.pt2"
    path.write_bytes(bytes(1000))
    most = _UNFOLDED_MOST * 1000 + _SPARE
    twice, last = _tensor(most // 8, 4), _tensor(most // 2 + more, 1)
    program = SimpleNamespace(state_dict={"a": twice, "b": twice}, constants={"c": last, "d": object()})
    if not more:
        _check_weights(program, path)
        return
    with pytest.raises(ModelError, match=r"describes weights of 1.05 MB, but has 1 kB: it is damaged"):
        _check_weights(program, path)
