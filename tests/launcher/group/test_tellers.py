"""Who is told of answers, and of errors: futures, runs, and ranks that could not compute a request."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.group import halted
from launcher.group.answers import PredictError
from launcher.group.serving import alike
from launcher.group.serving.asked import AGAIN, Asked
from launcher.group.serving.runs import RanksRun
from launcher.group.serving.teller import Teller
from ranks.talk import wire
from tests.ranks.threads import until


def asked(**more: Any) -> Asked:
    return Asked(wire.Kind.PREDICT, {}, {"x": np.zeros(1)}, **more)


class FailedJob(SimpleNamespace):
    """Three ranks, of which some could not compute a request."""

    def __init__(self) -> None:
        self.world_size, self.failure = 3, None
        self.changed = threading.Condition()
        self.sent: list[Any] = []
        self.aborted: list[Any] = []

    def send(self, rank: int, kind: wire.Kind, fields: Any) -> None:
        self.sent.append((rank, kind, fields))

    def abort(self, error: Exception) -> None:
        self.aborted.append(error)

    def host(self, rank: int) -> str:
        return f"h{rank}"


def test_a_request_that_no_rank_can_compute_leaves_them_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(alike, "_begin_judging", lambda job, one, rank, said: begun.append(rank))
    job: Any = FailedJob()
    one = asked()
    for rank in (1, 2):
        error, after = alike.heard(job, one, rank, {"message": f"of {rank}", "request": 7})
        assert error is None
        for call in after:
            call()
    assert begun == [1] and job.sent == []  # from the first on the others have little time
    error, after = alike.heard(job, one, 0, {"message": "of 0", "request": 7})
    assert isinstance(error, PredictError) and str(error) == "of 0"
    for call in after:
        call()
    assert job.sent == [(rank, wire.Kind.RESUME, {"request": 7}) for rank in range(3)] and not job.aborted


def test_ranks_that_cannot_have_the_newest_weights_are_of_no_use() -> None:
    job: Any = FailedJob()
    error, [end] = alike.heard(job, Asked(wire.Kind.WEIGHTS, {AGAIN: True}, {}), 1, {"message": "no room"})
    assert error is None
    end()
    [why] = job.aborted
    assert isinstance(why, LaunchError) and "could not be given the newest weights again: no room" in str(why)


@pytest.mark.parametrize(
    ("failure", "over", "aborted"), [(None, False, 1), (None, True, 0), ("gone", False, 0)]
)
def test_a_rank_that_alone_cannot_compute_ends_them(
    monkeypatch: pytest.MonkeyPatch, failure: Any, over: bool, aborted: int
) -> None:
    monkeypatch.setattr(alike, "ALIKE_SECONDS", 0.01)
    job: Any = FailedJob()
    job.failure = failure
    one = asked()
    one.done = over
    alike._judge(job, one, 2, {"message": "odd", "type": "ValueError"})
    assert len(job.aborted) == aborted
    if aborted:
        assert job.aborted[0].rank == 2 and job.aborted[0].host == "h2"


def told(result: Any) -> Asked:
    one = asked(future=Future())
    if isinstance(result, ShardrunError):
        one.error = result
    else:
        one.result = wire.Message(wire.Kind.RESULT, {}, result)
    return one


def test_futures_are_told_in_order_whatever_is_called_then() -> None:
    looks: list[None] = []
    teller = Teller(lambda: looks.append(None))
    order: list[int] = []
    made = [told({"y": number}) for number in range(3)] + [told(ShardrunError("no")), told({"y": 4})]

    def ends(_: object) -> None:
        order.append(0)
        raise SystemExit

    futures: list[Any] = [one.future for one in made]
    futures[0].add_done_callback(ends)
    for number, future in enumerate(futures[1:], 1):
        future.add_done_callback(lambda _, number=number: order.append(number))
    futures[2].cancel()
    for _ in made:
        teller.expect()
    for one in made:
        teller.tell(one)
    assert futures[4].result(20) == {"y": 4} and futures[0].result(20) == {"y": 0}
    assert isinstance(futures[3].exception(20), ShardrunError) and futures[2].cancelled()
    teller.close()
    assert teller._thread is not None
    teller._thread.join(20)
    assert not teller._thread.is_alive() and sorted(order) == [0, 1, 2, 3, 4] and teller._expected == 0


def test_ranks_are_looked_after_while_something_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halted, "LOOK_SECONDS", 0.005)
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        raise KeyError  # who waits is told of it elsewhere

    teller = Teller(look)
    teller.expect()
    until(lambda: len(looks) > 1)
    teller.forget()
    assert teller._expected == 0
    teller.expect()  # it waits again
    count = len(looks)
    until(lambda: len(looks) > count)
    teller.close()
    assert teller._thread is not None
    teller._thread.join(20)
    assert not teller._thread.is_alive()


class RunRequests(SimpleNamespace):
    """What a run of ranks is told."""


def test_tokens_of_a_run_come_until_its_end() -> None:
    told: list[Any] = []

    def wait_for(condition: Any, *_: object) -> None:
        if not condition():
            run.tokens.append(3)
            run.end(5, None)
        assert condition()

    requests: Any = RunRequests(
        extend=lambda run, most: told.append(most), halt=lambda run: told.append("halt")
    )
    job: Any = SimpleNamespace(wait_for=wait_for)
    run = RanksRun(requests, job)
    run.tokens.extend([1, 2])
    run.extend(9)
    assert [run.next() for _ in range(4)] == [1, 2, 3, None]
    run.extend(10)
    assert run.close() == 5 and told == [9]  # it has ended by itself
    other = RanksRun(requests, SimpleNamespace(wait_for=lambda *_: other.end(2, None)))  # type: ignore[arg-type]
    assert other.close() == 2 and told == [9, "halt"]
    failed = RanksRun(requests, job)
    failed.tokens.append(4)
    failed.end(1, ShardrunError("lost"))
    assert failed.next() == 4
    for _ in range(2):
        with pytest.raises(ShardrunError, match="lost"):
            failed.next()

    def gone(run: object) -> None:
        raise RankFailedError("gone")

    late = RanksRun(RunRequests(halt=gone), job)  # type: ignore[arg-type]
    assert late.close() == 0  # which the next request says
