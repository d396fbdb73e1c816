"""Whose turn it is among those that wait, when some give up."""

from __future__ import annotations

import pytest

from launcher.common.turns import Turns


def taken(turns: Turns[str]) -> list[str]:
    found = []
    while (item := turns.take()) is not None:
        found.append(item)
    return found


def test_clients_take_turns_within_a_priority() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "a3", "b1", "c1"):
        turns.put(item, item[0])
    turns.put("d1", "d", 1)
    turns.put("e1", "e", -1)
    assert len(turns) == len(list(turns)) == 7
    assert taken(turns) == ["e1", "a1", "b1", "c1", "a2", "a3", "d1"]
    assert len(turns) == len(list(turns)) == 0


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ("a1", ["a2", "b1", "c1"]),
        ("a2", ["a1", "b1", "c1"]),
        ("b1", ["a1", "a2", "c1"]),
        ("c1", ["a1", "b1", "a2"]),
    ],
)
def test_who_gives_up_leaves_no_turn_behind(gone: str, left: list[str]) -> None:
    """Also where it was a client's only request, or the last one of its priority."""
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "b1", "c1"):
        turns.put(item, item[0], priority=item == "c1")
    for _ in range(2):  # who is not here any more is not taken out again
        turns.remove(gone, gone[0], priority=gone == "c1")
        assert len(turns) == 3
    assert taken(turns) == left
    assert len(turns) == 0


def test_who_says_nothing_of_priority_is_put_and_removed_alike() -> None:
    turns: Turns[str] = Turns()
    turns.put("later", "a", 1)
    turns.put("first", "a")
    assert list(turns) and taken(turns)[0] == "first"
    turns.put("gone")
    turns.remove("gone")
    turns.remove("gone")
    assert len(turns) == 0 and turns.take() is None


def test_who_does_not_fit_keeps_its_place_and_lets_nobody_by() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "b1", "a2"):
        turns.put(item, item[0])
    turns.put("c1", "c", 1)
    assert turns.take_if(lambda item: item != "a1") is None and len(turns) == 4
    assert turns.take_if(lambda item: item == "a1") == "a1"
    assert taken(turns) == ["b1", "a2", "c1"]
