"""Whether what ranks would do comes to an end, played through before any of it is done."""

from __future__ import annotations

from typing import Any

import pytest

from ranks.agreement.handshake import stuck

SUM: list[Any] = ["all", ["AllReduce", "a"]]
OTHER: list[Any] = ["all", ["AllReduce", "b"]]


def send(peer: int, announce: int = 0) -> list[Any]:
    return ["Send", peer, announce]


def receive(peer: int, announce: int = 0) -> list[Any]:
    return ["Recv", peer, announce]


CASES: dict[str, tuple[list[list[Any]], list[list[int]], int, str | None]] = {
    "nothing": ([[], []], [[0, 1]], 0, None),
    "alike": ([[SUM, OTHER], [SUM, OTHER]], [[0, 1]], 0, None),
    "unlike": ([[SUM], [OTHER]], [[0, 1]], 0, "rank 0 would wait for ever in AllReduce with ranks 0, 1."),
    "one more": (
        [[SUM], [SUM, SUM]],
        [[0, 1]],
        0,
        "rank 1 would wait for ever in AllReduce with ranks 0, 1.",
    ),
    "one has more on another host": (
        [[], [], [SUM], []],
        [[0, 1], [2, 3]],
        0,
        "rank 2 would wait for ever in AllReduce with ranks 2, 3.",
    ),
    "a message": ([[send(1)], [receive(0)]], [[0], [1]], 0, None),
    "nobody receives": ([[send(1)], []], [[0], [1]], 0, "rank 0 would wait for ever in a send to rank 1."),
    "nobody receives what is kept": (
        [[send(1)], []],
        [[0], [1]],
        1,
        "rank 0 sends to rank 1 what that does not receive.",
    ),
    "nobody sends": (
        [[], [receive(0)]],
        [[0], [1]],
        1,
        "rank 1 would wait for ever in a receive from rank 0.",
    ),
    "both send first": (
        [[send(1), receive(1)], [send(0), receive(0)]],
        [[0], [1]],
        0,
        "rank 0 would wait for ever in a send to rank 1.",
    ),
    "both send first, one message is kept": (
        [[send(1), receive(1)], [send(0), receive(0)]],
        [[0], [1]],
        1,
        None,
    ),
    "both send first, what is announced takes two": (
        [[send(1, 1), receive(1, 1)], [send(0, 1), receive(0, 1)]],
        [[0], [1]],
        1,
        "rank 0 would wait for ever in a send to rank 1.",
    ),
    "only the receiver knows of an announcement": (
        [[send(1)], [receive(0, 1)]],
        [[0], [1]],
        0,
        "rank 0 would wait for ever in a send to rank 1.",
    ),
    "a second message does not overtake the first": (
        [[send(1), send(1, 1)], [receive(0, 1), receive(0)]],
        [[0], [1]],
        1,
        "rank 0 would wait for ever in a send to rank 1.",
    ),
    "who waits for one rank is named before who waits for all": (
        [[SUM], [receive(0), SUM]],
        [[0, 1]],
        0,
        "rank 1 would wait for ever in a receive from rank 0.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_would_wait_for_ever(case: str) -> None:
    events, groups, kept, wanted = CASES[case]
    assert stuck(events, groups, kept=kept) == wanted


def test_all_values_may_be_announced() -> None:
    events = [[send(1), receive(1)], [send(0), receive(0)]]
    for kept, wanted in ((1, "rank 0 would wait for ever in a send to rank 1."), (2, None)):
        assert stuck(events, [[0], [1]], kept=kept, announced=True) == wanted
