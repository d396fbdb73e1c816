"""A failure of one rank, where each has its part of the state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ranks.run.steps.whole_state import WholeState


def test_the_program_is_told_of_a_failure() -> None:
    """Else the other ranks would wait."""
    told: list[str] = []
    state: Any = SimpleNamespace(_program=SimpleNamespace(fail=told.append))
    WholeState.fail(state, "no memory")
    assert told == ["no memory"]
