"""Parts of shared weights in packets: packed, unpacked, and refused where they do not fit together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ranks.errors import WeightsError
from ranks.weights.shared import protocol


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Descriptors that are closed at the end, those that are still open."""
    made = [os.memfd_create(f"part {number}") for number in range(5)]
    yield made
    for descriptor in made:
        try:
            os.close(descriptor)
        except OSError:  # a test has given it away
            continue


def test_what_is_packed_is_unpacked(files: list[int]) -> None:
    parts = {"a": ({"size": 1}, files[:2]), "b": ({}, []), "c": ({"x": ["y"]}, files[2:3])}
    told, descriptors, made = protocol.pack(parts)
    assert told == [["a", 2], ["b", 0], ["c", 1]] and len(made) == 3 and len(descriptors) == 6
    with pytest.raises(OSError, match="not permitted"):  # who gets it cannot change it
        os.write(made[0], b"x")
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(made[0], 0)
    taken = [*descriptors, files[4]]
    found = protocol.unpack(json.loads(json.dumps(told)), taken)
    assert found == parts and taken == [files[4]]
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)


@pytest.mark.parametrize(
    "told",
    [
        None, {}, "ab", [3], [["a"]], [["a", 0, 0]], [[1, 0]], [["a", True]], [["a", "0"]], [["a", -1]],
        [["a", 2]], [["a", 1], ["b", 0]], [["a", 1 << 40]],
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together(told: Any, files: list[int]) -> None:
    """What was taken until then is closed; the rest is left to who received it."""
    _, descriptors, _ = protocol.pack({"a": ({}, files[:1])})
    rest = list(descriptors)
    with pytest.raises(WeightsError, match="sent parts that do not fit together"):
        protocol.unpack(told, rest)
    assert [is_open(one) for one in descriptors] == [one in rest for one in descriptors]
    for descriptor in rest:
        if descriptor not in files:
            os.close(descriptor)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 100_000])
def test_descriptions_that_are_none(content: bytes, files: list[int]) -> None:
    os.write(files[0], content)
    with pytest.raises(WeightsError, match="do not fit together"):
        protocol.unpack([["a", 0]], files[:1])


def test_a_description_that_is_too_long(monkeypatch: pytest.MonkeyPatch, files: list[int]) -> None:
    os.write(files[0], b"{}")
    monkeypatch.setattr(protocol, "LARGEST_DESCRIPTION", 1)
    with pytest.raises(WeightsError, match="do not fit together"):
        protocol.unpack([["a", 0]], files[:1])
    monkeypatch.setattr(protocol, "LARGEST_DESCRIPTION", 2)
    assert protocol.unpack([["a", 0]], files[:1]) == {"a": ({}, [])}


def test_more_descriptors_than_a_packet_holds(monkeypatch: pytest.MonkeyPatch, files: list[int]) -> None:
    monkeypatch.setattr(protocol, "MOST_DESCRIPTORS", 6)
    made: list[int] = []
    known = protocol._memory_file

    def memory_file(content: bytes) -> int:
        made.append(known(content))
        return made[-1]

    monkeypatch.setattr(protocol, "_memory_file", memory_file)
    with pytest.raises(WeightsError, match="6 descriptors do not fit into one packet"):
        protocol.pack({"a": ({}, files[:2]), "b": ({}, files[2:4])})
    assert len(made) == 2 and not any(map(is_open, made)) and all(map(is_open, files))
    _, descriptors, made = protocol.pack({"a": ({}, files[:2]), "b": ({}, files[2:3])})
    assert len(descriptors) == 5
    for descriptor in made:
        os.close(descriptor)
