"""Following a job: what is asked, how often, and what is said; the clock is the test's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import LaunchError, RankFailedError
from launcher.submission import follow, tails
from launcher.submission.base import Status
from launcher.submission.follow import Follower
from launcher.submission.tails import FileTail, Tail

RUNNING, WAITING = Status("running"), Status("waiting")
DONE = Status("done", code=3)


class Clock:
    """Seconds that pass where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(round(seconds, 3))


class Scripted(Tail):
    """A log of which each question gets the next part."""

    def __init__(self, parts: Sequence[list[str]]) -> None:
        self._parts = iter(parts)

    def lines(self) -> list[str]:
        return next(self._parts, [])

    def rest(self) -> list[str]:
        return [*self.lines(), "rest"]


class System:
    """A job system that gives these answers, and the last one for ever."""

    name = "test"

    def __init__(self, *answers: Status | LaunchError, log: Sequence[list[str]] = ()) -> None:
        self._answers, self._log = list(answers), log
        self.cancelled: list[str] = []
        self.finished: list[str] = []

    def tails(self, submission: object, number: str) -> Tail:
        return Scripted(self._log)

    def status(self, number: str) -> Status:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, LaunchError):
            raise answer
        return answer

    def cancel(self, number: str) -> None:
        self.cancelled.append(number)

    def finish(self, number: str) -> None:
        self.finished.append(number)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


def follower(system: Any) -> tuple[Follower, list[str], list[str]]:
    shown: list[str] = []
    told: list[str] = []
    return Follower(system, None, "7", shown.append, told.append), shown, told  # type: ignore[arg-type]


def test_a_job_that_waits_is_asked_for_less_and_less_often(clock: Clock) -> None:
    one, _, _ = follower(System(*[WAITING] * 14, RUNNING, WAITING, RUNNING, DONE))
    assert one.follow() == 3
    waited, after = clock.pauses[:14], clock.pauses[14:17]
    assert waited[:3] == [0.2, 0.26, 0.338] and waited[11:] == [3.0, 3.0, 3.0]
    assert waited == sorted(waited) and after == [3.0, 0.4, 0.52]


def test_why_a_job_waits_is_said_once(clock: Clock) -> None:
    reasons = ["no room", "no room", "", "no room", "not yet", "no room"]
    system = System(*(Status("waiting", why=why) for why in reasons), DONE)
    one, _, told = follower(system)
    assert one.follow() == 3 and system.finished == ["7"]
    assert told == [f"job 7 waits: {why}" for why in ("no room", "not yet", "no room")]


def test_what_the_log_gets_late_is_shown(clock: Clock) -> None:
    """Each line once, in order, until it has not grown for half a second."""
    one, shown, _ = follower(System(RUNNING, DONE, log=[["a"], ["b", "c"], [], [], [], ["d"], [], []]))
    assert one.follow() == 3
    assert shown == ["a", "b", "c", "d", "rest"]
    assert clock.pauses[1:] == [0.1] * 9  # four until the last line came, five without any


def test_a_job_system_that_is_silent_for_long(clock: Clock) -> None:
    silent = LaunchError("no answer")
    one, _, told = follower(System(RUNNING, silent))
    with pytest.raises(LaunchError, match="no answer"):
        one.follow()
    assert told == ["test does not answer and is asked again: no answer"]
    assert follow.SILENT_SECONDS - 4 < clock.now <= follow.SILENT_SECONDS
    later, _, _ = follower(System(*[silent] * 80, RUNNING, *[silent] * 80, DONE))
    assert later.follow() == 3  # an answer between lets it be silent as long again


def test_how_a_job_ended(clock: Clock) -> None:
    killed, _, _ = follower(System(Status("done", why="was killed")))
    with pytest.raises(RankFailedError, match="was killed"):
        killed.follow()
    with pytest.raises(LaunchError, match="job 7"):
        follower(System(Status("unknown")))[0].follow()


def test_a_job_that_is_cancelled(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    system = System(RUNNING, RUNNING, DONE, log=[["a"], ["b"]])
    one, shown, told = follower(system)
    one.cancel()
    assert (system.cancelled, shown, told) == (["7"], ["a", "b", "rest"], ["cancelling job 7"])
    assert clock.pauses == [0.2, 0.2] and not caplog.records
    one, _, _ = follower(System(RUNNING))
    one.cancel()
    assert [record.getMessage() for record in caplog.records] == ["job 7 still ends"]
    assert clock.now > follow.CANCEL_SECONDS
    one, _, _ = follower(System(LaunchError("gone")))
    one.cancel()
    assert caplog.records[-1].getMessage() == "job 7 may still run: gone"


def test_lines_of_files_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines as they come; one without end at last, or where it is too long; a file may begin anew."""
    monkeypatch.setattr(tails, "_CHUNK", 4)
    monkeypatch.setattr(tails, "_LONGEST_LINE", 8)
    tail = FileTail(
        f"{tmp_path}/*.log", lambda path: lambda line: None if line == "hide" else f"{path.stem}: {line}"
    )
    assert tail.lines() == [] and not tail.found
    one = tmp_path / "1.log"
    one.write_bytes(b"a\nhide\nb\xc3")
    assert tail.lines() == ["1: a"] and tail.found
    with one.open("ab") as file:
        file.write(b"\xa9\n")
    (tmp_path / "2.log").write_text("12345678")
    assert tail.lines() == ["1: bé"]
    with (tmp_path / "2.log").open("a") as file:
        file.write("9")
    assert tail.lines() == ["2: 123456789"]
    one.write_text("new\nx")
    assert tail.lines() == ["1: new"]
    assert tail.rest() == ["1: x"] and tail.rest() == []
