"""What a serving rank says that it spent its time on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.run.steps import spent


@pytest.mark.parametrize(("exchanging", "computing"), [(0.5, 2.5), (3.0, 0.0), (9.0, 0.0)])
def test_seconds_are_told_apart(monkeypatch: pytest.MonkeyPatch, exchanging: float, computing: float) -> None:
    """Collectives are within a request; that its inputs come to a rank is before it."""
    now = 0.0
    monkeypatch.setattr(spent.time, "perf_counter", lambda: now)
    model: Any = SimpleNamespace(stats=SimpleNamespace(communication_seconds=exchanging), state_bytes=7)
    work = spent.Spent(model)
    for began, passed, ended in ((1.0, 1.25, 2.25), (4.0, 4.5, 6.5)):
        now = began
        work.waited(began - 0.75)
        now = ended
        work.add(began, passed)
    told = work.told()
    assert (told["computing"], told["communicating"], told["waiting"]) == (computing, 0.75 + exchanging, 1.5)
    assert told["state_bytes"] == 7 and told["memory_bytes"] > 1 << 20
