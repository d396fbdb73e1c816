"""How far a long task is, in words."""

from __future__ import annotations

import pytest

from launcher.tasks import pace
from launcher.tasks.pace import Pace, duration
from tests.launcher.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"), (1, "1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (60, "1 min 0 s"), (61, "1 min 1 s"),
        (599, "9 min 59 s"), (600, "10 min"), (629, "10 min"), (631, "11 min"), (3599, "60 min"),
        (3600, "1 h 0 min"), (3660, "1 h 1 min"), (86399, "23 h 59 min"), (86400, "24 h"), (90000, "25 h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_rate_is_that_of_this_run(clock: Clock) -> None:
    counted = Pace("files", 10, quiet=True)
    assert counted.text() == "0 of 10 files"
    counted.step(before=True)
    counted.step(before=True)
    assert (counted.done, counted.before, counted.text()) == (2, 2, "2 of 10 files")
    clock.now += 2
    for _ in range(4):
        counted.step()
    assert (counted.seconds, counted.rate) == (2, 2)
    assert counted.text() == "6 of 10 files, 2 files/s, 2 s left"
    for _ in range(4):
        counted.step()
    assert counted.text() == "10 of 10 files, 4 files/s"


def test_a_task_whose_end_nobody_knows(clock: Clock) -> None:
    counted = Pace("texts", None, quiet=True)
    assert counted.text() == "0 texts"
    counted.step()
    clock.now += 4
    assert counted.text() == "1 texts, 0.25 texts/s"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    counted = Pace("files", None, quiet=quiet)
    said = []
    for passed in (29.5, 0.5, 29.5, 0.5):
        clock.now += passed
        counted.step()
        said.append(capsys.readouterr().err)
    lines = ["", "shardrun: 2 files, 0.0667 files/s\n", "", "shardrun: 4 files, 0.0667 files/s\n"]
    assert said == ([""] * 4 if quiet else lines)
