"""Requests on their way: numbers, room, and whose answer is whose; runs of steps that ranks make."""

from __future__ import annotations

import io
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, cast

import numpy as np
import pytest

from launcher.common.restarts import HIGHEST, MOST, PAUSES, parse_restart, pause
from launcher.errors import ConfigError, LaunchError, RankFailedError
from launcher.group.answers import NoAnswers
from launcher.group.requests import PredictError, Requests
from launcher.group.serving.asked import Asked
from launcher.group.serving.crew import Crew
from launcher.group.serving.flight import MOST_BYTES
from launcher.group.serving.runs import RanksRun
from launcher.starters import cause
from ranks.errors import QueueFullError
from ranks.run.rank_model import Stats
from ranks.talk import area, wire
from tests.launcher.processes import wait_until

STATS = Stats(1, 0, 0, 0.0)._asdict()
SECONDS = 20.0


class _Interrupting(threading.Condition):
    """Whoever takes it once it is armed is interrupted by a Ctrl-C."""

    armed = False

    def __enter__(self) -> bool:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGINT)
        return super().__enter__()


class _Ranks:
    """A job of some ranks, which end a run as soon as they are told to, and answer else when told to."""

    patience = hang = seen = None

    def __init__(self, world_size: int = 1) -> None:
        self.world_size, self.ready = world_size, dict.fromkeys(range(world_size))
        self.failure: Any = None
        self.answers: Any = NoAnswers()
        self.changed = _Interrupting()
        self.sent: list[tuple[int, wire.Kind, dict[str, Any]]] = []
        self.given: list[dict[str, Any]] = []

    def check_owner(self) -> None:
        pass

    def look(self, watch: object) -> None:
        pass

    def host(self, rank: int) -> str:
        return "h"

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        assert condition()

    def send_frame(self, rank: int, frame: bytes) -> None:
        left = io.BytesIO(frame)
        kind, fields, tensors = wire.read_frame(lambda target, first=False: left.readinto(target))
        self.send(rank, kind, fields, tensors)

    def send(
        self, rank: int, kind: wire.Kind, fields: dict[str, Any], tensors: Any = None, slot: int = 0
    ) -> None:
        self.sent.append((rank, kind, dict(fields)))
        if kind is wire.Kind.PREDICT and rank == 0:
            self.given.append({name: array.copy() for name, array in tensors.items()})
        if kind is wire.Kind.LIMIT:
            self.tell(0, wire.Kind.RESULT, fields["request"], stats=STATS, seconds=0.0)

    def tell(self, rank: int, kind: wire.Kind, number: int, tensors: Any = None, **fields: Any) -> None:
        """What a rank says."""
        with self.changed:
            unlike = self.answers.take(rank, wire.Message(kind, {"request": number, **fields}, tensors or {}))
            if unlike is not None:  # as `Job` does
                self.fail(cause.error_of(cause.Trouble(unlike[0], "h", cause.unlike(unlike[1])), ()))
        self.answers.took()

    def result(self, number: int, value: int = 0) -> None:
        tensors = {"y": np.array([value])}
        self.tell(0, wire.Kind.RESULT, number, tensors, stats=STATS, seconds=0.0)

    def fail(self, error: RankFailedError | LaunchError) -> None:
        with self.changed:
            if self.failure is None:
                self.failure = error
                self.answers.lost(self, error)

    abort = fail

    def close(self) -> None:
        self.fail(LaunchError("closed"))

    def requests(self, kind: wire.Kind = wire.Kind.PREDICT) -> list[int]:
        """The numbers of the requests that rank 0 was sent."""
        return [fields["request"] for rank, said, fields in self.sent if rank == 0 and said is kind]


@pytest.fixture
def ranks() -> _Ranks:
    return _Ranks()


@pytest.fixture
def requests(ranks: _Ranks) -> Iterator[Requests]:
    made = Requests(cast(Any, ranks))
    yield made
    made.close()
    ranks.fail(LaunchError("over"))
    made.closed()


def value(future: Future[Any]) -> int:
    return int(future.result(SECONDS)["y"][0])


def test_a_few_are_on_their_way_and_the_others_wait_in_order(ranks: _Ranks, requests: Requests) -> None:
    futures = [requests.submit({"x": np.array([place])}) for place in range(10)]
    assert ranks.requests() == [1, 2, 3, 4] == list(range(1, area.SLOTS + 1))
    assert [future.running() for future in futures] == [True] * 4 + [False] * 6
    ranks.result(1, 10)
    assert value(futures[0]) == 10 and ranks.requests() == [1, 2, 3, 4, 5]
    for number in range(2, 11):
        ranks.result(number, 10 * number)
    assert [value(future) for future in futures] == [10 * number for number in range(1, 11)]
    assert [int(given["x"][0]) for given in ranks.given] == list(range(10))
    slots = [fields["slot"] for _, _, fields in ranks.sent]
    assert slots[:5] == [0, 1, 2, 3, 0]  # the one that was given back


def test_one_after_another_uses_one_slot(ranks: _Ranks, requests: Requests) -> None:
    for number in range(1, 5):
        future = requests.submit({"x": np.zeros(1)})
        ranks.result(number, number)
        assert value(future) == number
    assert {fields["slot"] for _, _, fields in ranks.sent} == {0}


def test_an_answer_to_nothing_is_dropped(ranks: _Ranks, requests: Requests) -> None:
    future = requests.submit({"x": np.zeros(1)})
    ranks.result(7)  # to one that was never asked
    ranks.tell(1, wire.Kind.RESULT, 1)  # rank 0 answers for all
    ranks.tell(0, wire.Kind.TOKENS, 1, tokens=[1])
    ranks.tell(0, wire.Kind.RESULT, cast(int, "1"))
    assert not future.done()
    ranks.result(1, 5)
    ranks.result(1, 6)
    assert value(future) == 5


def test_large_requests_go_one_by_one(ranks: _Ranks, requests: Requests) -> None:
    """What lies in shared memory is held once for each request on its way."""
    large = np.zeros(MOST_BYTES // 2 + 1, np.uint8)
    futures = [requests.submit({"x": large}) for _ in range(3)]
    assert ranks.requests() == [1]
    ranks.result(1)
    assert value(futures[0]) == 0 and ranks.requests() == [1, 2]


def test_a_request_that_waits_can_be_cancelled(ranks: _Ranks, requests: Requests) -> None:
    futures = [requests.submit({"x": np.zeros(1)}) for _ in range(6)]
    assert not futures[0].cancel()  # ranks are at work on it
    assert futures[4].cancel() and futures[4].cancelled()
    assert len(requests._waiting) == 1
    with pytest.raises(CancelledError):
        futures[4].result(SECONDS)
    for number in range(1, 6):
        ranks.result(number, number)
    assert value(futures[5]) == 5 and ranks.requests() == [1, 2, 3, 4, 5]


def test_arrays_may_change_once_they_are_given(ranks: _Ranks, requests: Requests) -> None:
    array = np.zeros(1)
    for place in range(8):
        array[0] = place
        requests.submit({"x": array})
    for number in range(1, 9):
        ranks.result(number)
    assert [given["x"][0] for given in ranks.given] == list(range(8))


def test_a_full_queue_refuses_or_waits(ranks: _Ranks, requests: Requests) -> None:
    requests.most_waiting = 2
    futures = [requests.submit({"x": np.zeros(1)}) for _ in range(6)]
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        requests.submit({"x": np.zeros(1)}, block=False)
    futures.append(requests.submit({"x": np.zeros(1)}, bounded=False))
    done = threading.Event()

    def ask() -> None:
        futures.append(requests.submit({"x": np.zeros(1)}))
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    assert not done.wait(0.2)
    for number in range(1, 4):
        ranks.result(number)
    assert done.wait(SECONDS)
    for number in range(4, 9):
        ranks.result(number, number)
    assert value(futures[-1]) == 8


def test_whoever_waits_for_room_hears_of_the_end(ranks: _Ranks, requests: Requests) -> None:
    requests.most_waiting = 1
    for _ in range(5):
        requests.submit({"x": np.zeros(1)})
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            requests.submit({"x": np.zeros(1)})
        except LaunchError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    ranks.fail(LaunchError("gone"))
    thread.join(SECONDS)
    assert [str(error) for error in errors] == ["gone"]


def test_each_gets_an_error_of_its_own(ranks: _Ranks, requests: Requests) -> None:
    futures = [requests.submit({"x": np.zeros(1)}) for _ in range(6)]
    ranks.fail(RankFailedError("rank 1 was killed", rank=1, host="h", code=-9))
    errors = [future.exception(SECONDS) for future in futures]
    assert len({id(error) for error in errors}) == 6
    assert {(str(error), cast(Any, error).rank, cast(Any, error).code) for error in errors} == {
        ("rank 1 was killed", 1, -9)
    }
    with pytest.raises(RankFailedError, match="rank 1 was killed"):
        requests.predict({}, {})


def test_ranks_that_fail_alike_go_on_when_all_have(ranks: _Ranks) -> None:
    ranks = _Ranks(2)
    requests = Requests(cast(Any, ranks))
    futures = [requests.submit({"x": np.zeros(1)}) for _ in range(2)]
    ranks.tell(1, wire.Kind.FAILED, 1, message="too long")
    assert not futures[0].done() and not ranks.requests(wire.Kind.RESUME)
    ranks.tell(0, wire.Kind.FAILED, 1, message="too long")
    with pytest.raises(PredictError, match="too long"):
        futures[0].result(SECONDS)
    assert [(rank, fields) for rank, kind, fields in ranks.sent if kind is wire.Kind.RESUME] == [
        (0, {"request": 1}), (1, {"request": 1}),
    ]  # fmt: skip
    ranks.result(2, 2)
    assert value(futures[1]) == 2
    ranks.tell(1, wire.Kind.FAILED, 2, message="after all")  # rank 0 has answered
    with pytest.raises(
        RankFailedError, match=r"rank 1 on host h: after all\. Other ranks did not fail alike"
    ):
        requests.predict({}, {})


def test_ranks_that_do_not_fail_alike_end(ranks: _Ranks) -> None:
    ranks = _Ranks(2)
    requests = Requests(cast(Any, ranks))
    future = requests.submit({"x": np.zeros(1)})
    ranks.tell(1, wire.Kind.FAILED, 1, message="too long")
    ranks.result(1)
    with pytest.raises(RankFailedError, match=r"rank 1 on host h: too long\. Other ranks did not fail alike"):
        future.result(SECONDS)


def test_a_callback_may_ask_again(ranks: _Ranks, requests: Requests) -> None:
    """It runs in the thread that tells futures, and needs none of the locks."""
    again: list[Future[Any]] = []
    first = requests.submit({"x": np.zeros(1)})
    first.add_done_callback(lambda _: again.append(requests.submit({"x": np.zeros(1)})))
    first.add_done_callback(lambda _: exec("raise SystemExit"))  # ends no thread
    ranks.result(1)
    assert wait_until(lambda: ranks.requests() == [1, 2], SECONDS)
    ranks.result(2, 2)
    assert value(again[0]) == 2


def test_what_cannot_travel_fails_alone(
    ranks: _Ranks, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ranks.send

    def send(rank: int, kind: wire.Kind, fields: Any, tensors: Any = None, slot: int = 0) -> None:
        if tensors and tensors["x"].dtype.hasobject:
            raise wire.WireError("tensor 'x' holds int objects")
        whole(rank, kind, fields, tensors, slot)

    monkeypatch.setattr(ranks, "send", send)
    with pytest.raises(wire.WireError, match="holds int objects"):
        requests.submit({"x": np.array([1], object)}).result(SECONDS)
    future = requests.submit({"x": np.zeros(1)})
    ranks.result(2, 3)
    assert value(future) == 3


class _Again:
    """Starts other ranks when it is told to."""

    def __init__(self) -> None:
        self.lost: list[Any] = []
        self.ranks = _Ranks()
        self.requests = Requests(cast(Any, self.ranks), self.lost.append)

    def revive(self) -> None:
        self.ranks = _Ranks()
        self.requests.attach(cast(Any, self.ranks))


DEATH = RankFailedError("rank 0 was killed", rank=0)


@pytest.mark.parametrize("good", [True, False])
def test_what_a_rank_said_before_it_was_lost_is_nothing_to_others(good: bool) -> None:
    ranks, others, lost = _Ranks(2), _Ranks(2), list[Any]()
    requests = Requests(cast(Any, ranks), lost.append)
    future = requests.submit({"x": np.zeros(1)})
    ranks.tell(1, wire.Kind.FAILED, 1, message="no memory")
    ranks.fail(DEATH)
    requests.spent.add({"stats": STATS, "seconds": 1.0})
    requests.spent.told(1, {"runs": 1})
    assert requests.spent.ask(2) and not requests.spent.ask(2)
    requests.attach(cast(Any, others))
    assert requests.spent.answered == 0 and not requests.spent.of_ranks  # they have answered nothing yet
    assert requests.spent.run_seconds == 1.0 and requests.spent.ask(2)
    assert others.requests() == [2]
    if good:
        others.result(2, 3)
        assert value(future) == 3 and others.failure is None
    else:
        others.tell(0, wire.Kind.FAILED, 2, message="too long")
        assert not future.done()
        others.tell(1, wire.Kind.FAILED, 2, message="too long")
        with pytest.raises(PredictError, match="too long"):
            future.result(SECONDS)
        assert others.failure is None and len(lost) == 1


def test_what_is_asked_while_a_run_is_ended_is_sent() -> None:
    ranks, futures = _Ranks(), list[Any]()
    requests = Requests(cast(Any, ranks), [].append)  # whose `submit` leaves the sending to others
    run = requests.run({}, {"session": 1, "run": {}}, 0)
    ranks.tell(0, wire.Kind.RESULT, 1, stats=STATS, seconds=0.0)

    class Asking(threading.Condition):
        """While it is taken, another thread asks."""

        def __enter__(self) -> bool:
            if not futures:
                asks = threading.Thread(target=lambda: futures.append(requests.submit({"x": np.zeros(1)})))
                asks.start()
                asks.join(SECONDS)
            return super().__enter__()

    ranks.changed = cast(Any, Asking())
    requests.halt(run)
    assert ranks.requests() == [1, 2]
    ranks.result(2, 5)
    assert value(futures[0]) == 5


def test_other_ranks_are_looked_at_anew() -> None:
    again, watches = _Again(), list[object]()
    again.requests.submit({"x": np.zeros(1)})
    again.ranks.look = watches.append  # type: ignore[method-assign]
    again.requests.look()
    again.ranks.fail(DEATH)
    again.requests.look()
    again.revive()
    again.ranks.look = watches.append  # type: ignore[method-assign]
    again.requests.look()
    again.requests.look()
    first, second, third = watches
    assert first is not second and second is third


def test_ranks_that_are_lost_before_anybody_can_be_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _Ranks()

    def wait_for(*given: object) -> None:
        ranks.fail(DEATH)  # they were ready

    monkeypatch.setattr(ranks, "wait_for", wait_for)
    crew = Crew(lambda restarts: cast(Any, ranks), SECONDS)
    try:
        assert crew.state == "failed"
        with pytest.raises(RankFailedError, match="rank 0 was killed"):
            crew.requests.predict({}, {})
    finally:
        crew.close()


def test_whatever_goes_wrong_with_a_restart_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _Ranks()
    crew = Crew(lambda restarts: cast(Any, ranks), SECONDS, most=1)
    future = crew.requests.submit({"x": np.zeros(1)})
    monkeypatch.setattr(ranks, "close", lambda: exec("raise OSError('no such process')"))
    ranks.fail(DEATH)
    with pytest.raises(LaunchError, match="could not be started again: no such process"):
        future.result(SECONDS)
    monkeypatch.undo()
    crew.close()


def test_what_ranks_said_is_there_until_others_are_ready() -> None:
    first, second, ready = _Ranks(), _Ranks(), threading.Event()
    second.wait_for = lambda *given: ready.wait(SECONDS)  # type: ignore[method-assign, assignment, return-value]
    begun: list[int] = []

    def begin(restarts: int) -> Any:
        begun.append(restarts)
        return second if restarts else first

    crew = Crew(begin, SECONDS, most=1)
    try:
        first.fail(DEATH)
        assert wait_until(lambda: begun == [0, 1], SECONDS)
        assert crew.state == "restarting" and crew.job is cast(Any, first)
        ready.set()
        assert wait_until(lambda: crew.state == "ready", SECONDS) and crew.job is cast(Any, second)
    finally:
        crew.close()
    assert str(second.failure) == "closed"


def test_what_was_on_its_way_is_asked_again_and_one_by_one() -> None:
    """Of those that ranks died beside nobody knows which was the cause; what waited is not suspected."""
    again = _Again()
    array = np.zeros(1)
    futures = []
    for place in range(6):
        array[0] = place
        futures.append(again.requests.submit({"x": array}))
    again.ranks.result(1, 100)
    assert value(futures[0]) == 100
    again.ranks.fail(DEATH)
    assert again.lost and not any(future.done() for future in futures[1:])
    with pytest.raises(QueueFullError):
        again.requests.most_waiting = 1
        again.requests.submit({"x": array}, block=False)
    again.revive()
    assert again.ranks.requests() == [6] and again.requests.age == 1
    for number in (6, 7, 8):
        again.ranks.result(number, number)
        assert again.ranks.requests()[-1] == number + 1
    again.ranks.result(9, 9)
    assert [int(given["x"][0]) for given in again.ranks.given] == [1, 2, 3, 4, 5]
    again.ranks.result(10, 10)
    assert [value(future) for future in futures[1:]] == [6, 7, 8, 9, 10]


def test_other_ranks_get_new_weights_before_what_waited() -> None:
    again = _Again()
    future = again.requests.submit({"x": np.zeros(1)})
    again.requests.renewal.note(Asked(wire.Kind.WEIGHTS, {}, {"w": np.ones(1)}))
    again.ranks.fail(DEATH)
    again.revive()
    kinds = [kind for _, kind, _ in again.ranks.sent]
    assert kinds[0] is wire.Kind.WEIGHTS
    again.ranks.result(again.ranks.requests(wire.Kind.WEIGHTS)[0])
    again.ranks.result(again.ranks.requests()[-1], 8)
    assert value(future) == 8


def test_a_request_that_ranks_die_of_twice_fails_alone() -> None:
    again = _Again()
    poison, other = (again.requests.submit({"x": np.zeros(1)}) for _ in range(2))
    again.ranks.fail(DEATH)
    again.revive()
    again.ranks.fail(RankFailedError("rank 0 ran out of memory", rank=0))
    assert str(poison.exception(SECONDS)) == "rank 0 ran out of memory" and not other.done()
    again.revive()
    again.ranks.result(again.ranks.requests()[-1], 8)
    assert value(other) == 8


def test_a_step_of_a_session_is_not_repeated() -> None:
    """Its state was lost with the ranks: the answer would be another one."""
    again = _Again()
    errors: list[Exception] = []

    def step() -> None:
        try:
            again.requests.predict({"x": np.zeros(1)}, {"session": 1}, 0)
        except RankFailedError as error:
            errors.append(error)

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    assert wait_until(lambda: len(again.ranks.given) == 1, SECONDS)
    run = again.requests.run({}, {"session": 1, "run": {}}, 0)
    again.ranks.fail(DEATH)
    thread.join(SECONDS)
    assert [str(error) for error in errors] == ["rank 0 was killed"]
    assert run.ended and isinstance(run.error, RankFailedError)
    with pytest.raises(RankFailedError, match="rank 0 was killed"):  # before others are there
        again.requests.predict({}, {"session": 1}, 0)
    again.revive()
    assert again.ranks.requests() == []
    with pytest.raises(RankFailedError, match="rank 0 was killed"):
        again.requests.predict({}, {"session": 1}, 0)
    again.requests.tell(wire.Kind.SESSION, {"change": "close", "number": 1}, 0)
    assert again.ranks.sent == []  # the number is another session's now


def test_nothing_is_lost_where_ranks_stay_away() -> None:
    again = _Again()
    futures = [again.requests.submit({"x": np.zeros(1)}) for _ in range(6)]
    again.ranks.fail(DEATH)
    late = again.requests.submit({"x": np.zeros(1)})
    again.requests.end(LaunchError("no ranks any more"))
    assert {str(future.exception(SECONDS)) for future in (*futures, late)} == {"no ranks any more"}
    with pytest.raises(LaunchError, match="no ranks any more"):
        again.requests.submit({})


def test_ranks_that_die_as_they_come_are_noticed() -> None:
    again = _Again()
    future = again.requests.submit({"x": np.zeros(1)})
    again.ranks.fail(DEATH)
    ranks = _Ranks()
    ranks.failure = RankFailedError("gone at once")
    again.requests.attach(cast(Any, ranks))
    assert again.lost[-1] is ranks and not future.done()


@pytest.mark.parametrize(
    ("text", "most"), [("never", 0), ("on-failure", MOST), ("on-failure:1", 1), ("on-failure:1000", HIGHEST)]
)
def test_how_often(text: str, most: int) -> None:
    assert parse_restart(text) == most


@pytest.mark.parametrize(
    "text",
    ["", "always", "on-failure:", "on-failure:0", "on-failure:1001", "on-failure:-1", "on-failure:²",
     "never:1", "on-failure:1:2", "ON-FAILURE", "on-failure:99999999999", None, True, 3],
)  # fmt: skip
def test_how_often_not(text: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"restart: expected never, on-failure or on-failure:N, with N from 1"
    ):
        parse_restart(text)


def test_pauses_grow_to_a_bound() -> None:
    found = [pause(number) for number in range(1, 30)]
    assert found == sorted(found) and found[0] == 0 and found[-1] == PAUSES[-1]


def test_a_ctrl_c_at_the_end_of_a_run_does_not_hide_the_end(ranks: _Ranks, requests: Requests) -> None:
    """Its reader would look for it for ever."""
    run = requests.run({}, {}, 0)
    ranks.changed.armed = True
    with pytest.raises(KeyboardInterrupt):
        requests.halt(run)
    run.close()
    assert run.ended
    assert run.next() is None


def test_a_ctrl_c_drops_the_answer(
    ranks: _Ranks, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.group.halted.LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ranks, "look", interrupted)
    with pytest.raises(KeyboardInterrupt):
        requests.predict({"x": np.zeros(1)}, {})
    future = requests.submit({"x": np.zeros(1)})
    ranks.result(1, 1)
    ranks.result(2, 2)
    assert value(future) == 2


def test_a_request_ends_the_run_before_it(ranks: _Ranks, requests: Requests) -> None:
    run = requests.run({}, {"run": {}}, 0)
    requests.extend(run, 40)
    assert ranks.sent[-1][1:] == (wire.Kind.LIMIT, {"request": 1, "most": 40})
    run = requests.run({}, {"run": {}}, 0)
    future = requests.submit({"x": np.zeros(1)})
    assert [said[1] for said in ranks.sent[-2:]] == [wire.Kind.LIMIT, wire.Kind.PREDICT] and run.ended
    requests.extend(run, 80)
    assert ranks.sent[-1][1] is wire.Kind.PREDICT  # it is over
    ranks.result(3, 3)
    assert value(future) == 3


def test_tokens_that_come_with_the_end_are_not_lost() -> None:
    """Another thread's request ends the run between two looks of its reader."""
    run = RanksRun(cast(Any, None), cast(Any, _Ranks()))

    class Late(deque[int]):
        looked = False

        def __bool__(self) -> bool:
            if not self.looked:
                self.looked = True
                self.append(7)
                run.ended = True
                return False
            return len(self) > 0

    run.tokens = Late()
    assert run.next() == 7
    assert run.next() is None


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (KeyboardInterrupt(), "This group's last request was interrupted: start another one."),
        (MemoryError("no room"), "no room"),
    ],
)
def test_what_ends_a_message_in_its_midst_ends_the_group(
    ranks: _Ranks, requests: Requests, monkeypatch: pytest.MonkeyPatch, error: BaseException, failure: str
) -> None:
    """Nobody knows how much of it the ranks have."""

    def send(*_: Any, **__: Any) -> None:
        raise error

    before = requests.submit({"x": np.zeros(1)})
    monkeypatch.setattr(ranks, "send", send)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            requests.submit({"x": np.zeros(1)})
    else:
        with pytest.raises(LaunchError, match=failure):
            requests.submit({"x": np.zeros(1)}).result(SECONDS)
    assert isinstance(ranks.failure, LaunchError) and failure in str(ranks.failure)
    with pytest.raises(LaunchError, match=failure):
        before.result(SECONDS)
