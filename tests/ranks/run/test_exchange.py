"""The calls that collectives of rank models take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ranks.collectives.buffers import HostMemory
from ranks.collectives.single import SingleCommunicator
from ranks.errors import ModelError
from ranks.run.exchange import Exchanges
from ranks.sessions.cut import Collective
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

FLOAT = 1


def collective(op: str, **attributes: Any) -> Collective:
    return Collective(op, "x", "y", attributes, 0)  # type: ignore[arg-type]


def exchanges(group: Any, mail: Any = None) -> Exchanges:
    return Exchanges(group, mail, HostMemory(None), {"x": FLOAT, "y": FLOAT})


@pytest.mark.parametrize(
    ("given", "together"),
    [
        (collective("AllReduce"), lambda parts: [sum(parts)] * 3),
        (collective("Broadcast", root=1), lambda parts: [parts[1]] * 3),
        (collective("AllGather", axis=0), lambda parts: [np.concatenate(parts)] * 3),
        (collective("AllGather", axis=1), lambda parts: [np.concatenate(parts, 1)] * 3),
        (collective("AllGather", axis=-1), lambda parts: [np.concatenate(parts, 1)] * 3),
        (
            collective("AllToAll"),
            lambda parts: [np.concatenate([np.split(part, 3)[k] for part in parts]) for k in range(3)],
        ),
    ],
)
def test_a_collective_at_once(given: Collective, together: Any) -> None:
    """What it is given stays as it is."""
    parts = [np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * rank for rank in range(3)]

    def work(rank: FakeCommunicator) -> tuple[np.ndarray, np.ndarray]:
        mine = parts[rank.rank].copy()
        return exchanges(rank).free(given, mine), mine

    for rank, (found, wanted) in enumerate(zip(on_ranks(3, work), together(parts), strict=True)):
        assert found[0].tolist() == wanted.tolist()
        assert found[1].tolist() == parts[rank].tolist()


@pytest.mark.parametrize("op", ["AllReduce", "Broadcast"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_value_is_copied_where_it_is_not_changed_in_place(op: str, in_place: bool) -> None:
    def work(rank: FakeCommunicator) -> tuple[int, list[float], list[float]]:
        mine = np.full(2, rank.rank + 1, np.float32)
        target = mine if in_place else np.zeros(2, np.float32)
        calls = exchanges(rank).calls(collective(op, root=1), mine, target, in_place=in_place)
        for call in calls:
            call()
        return len(calls), mine.tolist(), target.tolist()

    value = [3.0, 3.0] if op == "AllReduce" else [2.0, 2.0]
    for rank, found in enumerate(on_ranks(2, work)):
        assert found == (2 - in_place, value if in_place else [rank + 1.0] * 2, value)


@pytest.mark.parametrize(
    ("given", "shape", "message"),
    [
        (collective("AllGather", axis=2), (2, 3), r"AllGather of 'x' has axis 2, but its shape is \[2, 3\]"),
        (collective("AllGather", axis=-3), (2, 3), "has axis -3"),
        (collective("AllGather", axis=0), (), r"has axis 0, but its shape is \[\]"),
        (collective("AllToAll"), (3, 2), r"axis 0 of its shape \[3, 2\] must be a multiple of 2"),
        (collective("AllToAll"), (), "must be a multiple of 2"),
    ],
)
def test_values_that_do_not_fit_a_collective(given: Collective, shape: tuple[int, ...], message: str) -> None:
    def work(rank: FakeCommunicator) -> None:
        with pytest.raises(ModelError, match=message):
            exchanges(rank).free(given, np.zeros(shape, np.float32))

    on_ranks(2, work)


class Waited(SingleCommunicator):
    """A group that was waited for."""

    def __init__(self, waiting: float, computing: float) -> None:
        super().__init__()
        self.seconds = waiting, computing

    @property
    def waiting_seconds(self) -> float:
        return self.seconds[0]

    @property
    def computing_seconds(self) -> float:
        return self.seconds[1]


def test_seconds_of_both_groups_and_of_one_that_is_both_once() -> None:
    one, other = Waited(1.0, 0.25), Waited(2.0, 0.5)
    for mail, waiting, computing in (
        (None, 1.0, 0.25),
        (SimpleNamespace(group=None), 1.0, 0.25),
        (SimpleNamespace(group=one), 1.0, 0.25),
        (SimpleNamespace(group=other), 3.0, 0.75),
    ):
        made = exchanges(one, mail)
        assert (made.waiting_seconds, made.computing_seconds) == (waiting, computing)
    assert exchanges(None, SimpleNamespace(group=other)).waiting_seconds == 2.0
    assert exchanges(None).computing_seconds == 0.0


def test_one_process_alone() -> None:
    found = exchanges(SingleCommunicator()).free(collective("AllGather", axis=1), np.ones((2, 3), np.float32))
    assert found.tolist() == [[1, 1, 1]] * 2
