"""The texts of a request as they come, and the limits under which an engine works."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.generation.streams import EngineLimits, Stream


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        *((name, 1, True) for name in ("sequences", "positions", "waiting", "prefixes")),
        *((name, 0, name == "prefixes") for name in ("sequences", "positions", "waiting", "prefixes")),
        *((name, True, False) for name in ("sequences", "positions", "waiting", "prefixes")),
        *((name, None, name == "positions") for name in ("sequences", "positions", "waiting", "prefixes")),
        *(("sequences", value, False) for value in (-1, 2.0, "3")),
        ("prefixes", -1, False),
    ],
)
def test_limits_under_which_nothing_could_be_done(name: str, value: Any, fits: bool) -> None:
    if fits:
        assert getattr(EngineLimits(**{name: value}), name) == value
        return
    least = int(name != "prefixes")
    with pytest.raises(ConfigError, match=f"limit '{name}': expected a whole number from {least} up, found"):
        EngineLimits(**{name: value})


def stream(cancelled: Any = lambda: None, before: str = "") -> tuple[Stream, Any]:
    prepared: Any = SimpleNamespace(options="options", prompt=[3, 4], limits=SimpleNamespace(before=before))
    return Stream(prepared, cancelled, has_text=True, client="me", priority=1), prepared


def event(number: int) -> Any:
    return SimpleNamespace(number=number)


def test_what_came_is_read_in_order_and_then_nothing() -> None:
    made, _ = stream()
    assert made.waits and (made.pace.first, made.pace.last) == (0.0, 0.0)
    for number in range(3):
        made.put(event(number))
        first, last = made.pace.first, made.pace.last
        assert made.pace.submitted <= first <= last
        if number == 0:
            begun = first
        assert first == begun
    assert not made.waits
    made.end()
    assert [made._next().number for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            made._next()
        assert not made.waits  # nothing more comes
    assert (made.client, made.priority, made.prompt, made.options) == ("me", 1, [3, 4], "options")
    assert not made.goes_on and stream(before="a")[0].goes_on


def test_an_error_comes_behind_what_was_there_and_once() -> None:
    made, _ = stream()
    made.put(event(0))
    made.end(ValueError("broken"))
    assert made._next().number == 0
    with pytest.raises(ValueError, match="broken"):
        made._next()
    with pytest.raises(StopIteration):
        made._next()


def test_once_it_is_cancelled_nothing_more_is_read() -> None:
    told: list[int] = []
    made, _ = stream(lambda: told.append(1))
    made.put(event(0))
    with made:
        assert not made.cancelled and not told
    assert told == [1] and made.cancelled and not made.waits
    made.cancel()
    assert told == [1]
    with pytest.raises(StopIteration):
        made._next()
    made.end(ValueError("too late"))
    with pytest.raises(StopIteration):
        made._next()


@pytest.mark.timeout(60)
def test_who_waits_goes_on_when_it_is_cancelled() -> None:
    made, _ = stream()
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(StopIteration):
            made._next()
        ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    made.cancel()
    assert ended.wait(30)
    reader.join()


def test_who_follows_is_told_of_everything() -> None:
    made, _ = stream()
    told: list[bool] = []
    made.follow(lambda: told.append(made.waits))
    assert told == [True]
    made.put(event(0))
    made.end()
    made.cancel()
    assert told == [True, False, False, False]
