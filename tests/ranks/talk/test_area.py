"""Large tensors in shared memory beside a socket."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ranks.talk import area
from ranks.talk.area import MINIMUM, SLOTS, Reader, Writer


def block(size: int, start: int = 0) -> bytes:
    return (bytes(range(251)) * (size // 251 + 2))[start : start + size]


@pytest.mark.parametrize("sizes", [(MINIMUM,), (MINIMUM - 63,), (3, MINIMUM, 0, 65), (0, 1 << 20)])
def test_what_is_written_is_there(sizes: tuple[int, ...]) -> None:
    writer, reader = Writer(), Reader()
    buffers = [block(size, number) for number, size in enumerate(sizes)]
    written, descriptor = writer.write(buffers)
    assert written and descriptor is not None
    reader.take([descriptor])
    views = reader.views(writer.number(0), sizes)
    assert [bytes(view) for view in views] == buffers
    with pytest.raises(OSError, match="Bad file"):  # it is mapped, and not needed any more
        os.fstat(descriptor)


@pytest.mark.parametrize("size", [0, 1, MINIMUM - 64])
def test_what_is_small_takes_the_socket(size: int) -> None:
    assert Writer().write([block(size)]) == (False, None)


def test_what_is_too_large_takes_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(area, "MAXIMUM", 1 << 20)
    written, descriptor = Writer().write([bytes(1 << 20)])
    assert written and descriptor is not None
    os.close(descriptor)
    assert Writer().write([bytes(1 << 20), b"x"]) == (False, None)


def test_an_area_is_used_again_as_long_as_it_is_large_enough() -> None:
    """It is made twice as large as needed."""
    writer, reader = Writer(), Reader()
    numbers = []
    for size, new in ((1 << 20, True), (2 << 20, False), ((2 << 20) + 1, True), (1 << 20, False)):
        buffer = block(size, size % 7)
        written, descriptor = writer.write([buffer])
        assert written and (descriptor is not None) == new
        if descriptor is not None:
            reader.take([descriptor])
        numbers.append(writer.number(0))
        assert bytes(reader.views(numbers[-1], [size])[0]) == buffer
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert len(reader._current) == 1  # the first area is let go


def test_slots_do_not_meet() -> None:
    writer, reader = Writer(), Reader()
    views = {}
    for slot in range(SLOTS):
        written, descriptor = writer.write([block(MINIMUM, slot)], slot)
        assert written and descriptor is not None
        reader.take([descriptor])
        views[slot] = reader.views(writer.number(slot), [MINIMUM])[0]
    assert [writer.number(slot) % SLOTS for slot in range(SLOTS)] == list(range(SLOTS))
    for slot, view in views.items():
        assert bytes(view) == block(MINIMUM, slot)


def test_areas_that_are_not_what_a_peer_says() -> None:
    writer, reader = Writer(), Reader()
    _, descriptor = writer.write([block(MINIMUM)])
    assert descriptor is not None
    number = writer.number(0)
    with pytest.raises(ValueError, match="has not come"):
        reader.views(number, [MINIMUM])
    reader.take([descriptor])
    room = 1 << 20
    with pytest.raises(ValueError, match=f"its area has {room} bytes, but the message needs {room + 64}"):
        reader.views(number, [room, 1])
    assert len(reader.views(number, [room])[0]) == room
    with pytest.raises(ValueError, match="has not come"):
        reader.views(number + SLOTS, [MINIMUM])


def test_an_area_that_could_shrink() -> None:
    """To read what is not there any more would end the process."""
    reader, descriptor = Reader(), os.memfd_create("area", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 20)
    reader.take([descriptor])
    with pytest.raises(ValueError, match="could shrink"):
        reader.views(SLOTS, [1])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_no_descriptors_pile_up() -> None:
    """Neither those that a peer sends and never uses, nor those that come after the end."""
    reader = Reader()
    sent = [os.memfd_create(f"{number}") for number in range(2 * SLOTS + 2)]
    for descriptor in sent:
        reader.take([descriptor])
    for descriptor in sent[:2]:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)
    for descriptor in sent[2:]:
        os.fstat(descriptor)
    reader.close()
    late = os.memfd_create("late")
    reader.take([late])
    for descriptor in (*sent[2:], late):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)


def test_no_memory_or_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    made: list[int] = []
    known = os.memfd_create

    def make(*given: Any) -> int:
        made.append(known(*given))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", make)
        patch.setattr(os, "posix_fallocate", refuse)
        assert Writer().write([bytes(MINIMUM)]) == (False, None)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(made[0])
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert Writer().write([bytes(MINIMUM)]) == (False, None)
