"""What is known of requests on their way: room, slots and numbers, what they took, and series of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.group.serving.asked import AGAIN, Asked
from launcher.group.serving.crew import _with
from launcher.group.serving.flight import MOST_BYTES, Flight
from launcher.group.serving.renewal import Renewal, checked
from launcher.group.serving.runs import RanksRun
from launcher.group.serving.series import AHEAD, MOST_AHEAD, check_ahead, in_order, in_order_async
from launcher.group.serving.spent import Spent
from ranks.common.tensors import TensorSpec
from ranks.errors import WeightsError
from ranks.talk import area, wire

UNUSED: Any = None


def asked(size: int = 1, **more: Any) -> Asked:
    return Asked(wire.Kind.PREDICT, {}, {"x": np.broadcast_to(np.int8(0), size)}, **more)


def test_each_request_has_the_next_number_and_the_lowest_slot() -> None:
    flight, made = Flight(), [asked() for _ in range(area.SLOTS + 1)]
    for one in made[:-1]:
        assert flight.fits(one)
        flight.launch(one)
    assert [(one.number, one.slot, one.tries) for one in made[:-1]] == [
        (place + 1, place, 1) for place in range(area.SLOTS)
    ]
    assert not flight.fits(made[-1]) and len(flight) == area.SLOTS
    flight.land(made[1])
    flight.land(made[0])
    flight.land(made[0])  # it is not on its way any more
    assert flight.get(1) is None and flight.get(True) is None and flight.get("3") is None
    made[-1].failed = {0: {}}
    flight.launch(made[-1])
    assert (made[-1].number, made[-1].slot, made[-1].failed) == (area.SLOTS + 1, 0, {})
    assert flight.get(area.SLOTS + 1) is made[-1]
    assert flight.clear() == [*made[2:-1], made[-1]] and len(flight) == 0
    again = [asked() for _ in range(area.SLOTS)]
    for one in again:
        flight.launch(one)
    assert [one.slot for one in again] == list(range(area.SLOTS))


@pytest.mark.parametrize(
    ("flying", "one", "fits"),
    [
        ([], asked(MOST_BYTES + 1), True),  # alone it may be larger
        ([asked(1)], asked(MOST_BYTES - 1), True),
        ([asked(1)], asked(MOST_BYTES), False),
        ([asked(1), asked(1)], asked(MOST_BYTES - 1), False),
        ([], asked(tries=1), True),
        ([asked()], asked(tries=1), False),
        ([asked(tries=1)], asked(), False),  # ranks have died beside it
    ],
)
def test_when_there_is_room(flying: list[Asked], one: Asked, fits: bool) -> None:
    flight = Flight()
    for other in flying:
        flight.launch(other)
    assert flight.fits(one) is fits


def test_what_can_be_told_to_end_and_asked_of_others() -> None:
    flight, run = Flight(), asked(run=RanksRun(UNUSED, UNUSED))
    flight.launch(asked())
    flight.launch(run)
    assert flight.runs == [run] and not run.repeatable and asked().repeatable
    for fields in ({"session": 1}, {AGAIN: True}):
        assert not Asked(wire.Kind.PREDICT, fields, {}).repeatable


STATS = {
    "communication_seconds": 1.0,
    "segment_seconds": 2.0,
    "waiting_seconds": 3.0,
    "choosing_seconds": 4.0,
}


def test_what_ranks_spent() -> None:
    spent = Spent()
    spent.add({"seconds": 9.0})  # of no computation
    for seconds in (0.5, 0.25):
        spent.add({"stats": STATS, "seconds": seconds})
    assert (spent.answered, spent.run_seconds) == (2, 0.75)
    assert {name: getattr(spent, name) for name in STATS} == STATS
    assert spent.ask(2) and not spent.ask(2)
    spent.told(1, {"n": 1})
    assert not spent.ask(2)
    spent.told(0, {"n": 0})
    assert spent.of_ranks == {0: {"n": 0}, 1: {"n": 1}} and spent.ask(2)
    spent.renew()
    assert (spent.answered, spent.of_ranks, spent.run_seconds) == (0, {}, 0.75) and spent.ask(1)


@pytest.mark.parametrize("ahead", [1, 7, MOST_AHEAD])
def test_how_far_ahead(ahead: int) -> None:
    assert check_ahead(ahead) == ahead and check_ahead(None) == AHEAD


@pytest.mark.parametrize("ahead", [0, -1, MOST_AHEAD + 1, True, 2.0, "2"])
def test_how_far_ahead_not(ahead: Any) -> None:
    with pytest.raises(ConfigError, match=rf"ahead: expected a whole number from 1 to {MOST_AHEAD}, found"):
        check_ahead(ahead)


def answers(source: Any, submit: Any, *, asynchronous: bool, errors: bool = False) -> Iterator[Any]:
    """A series of three ahead, whichever way it is taken."""
    if not asynchronous:
        yield from in_order(source, submit, ahead=3, timeout=None, errors=errors)
        return
    found = in_order_async(source, submit, ahead=3, errors=errors)
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(found))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(found.aclose())
        loop.close()


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


both = pytest.mark.parametrize("asynchronous", [False, True])


@both
def test_the_source_of_a_series_is_read_as_answers_are_taken(asynchronous: bool) -> None:
    read: list[int] = []

    def source() -> Iterator[Any]:
        for number in range(6):
            read.append(number)
            yield number

    found = answers(source(), done, asynchronous=asynchronous)
    counts = [(answer, len(read)) for answer in found]
    assert counts == [(0, 3), (1, 4), (2, 5), (3, 6), (4, 6), (5, 6)]


@both
def test_an_error_of_the_source_comes_after_what_it_gave(asynchronous: bool) -> None:
    def source() -> Iterator[Any]:
        yield from (1, 2)
        raise KeyError("the source")

    found = answers(source(), done, asynchronous=asynchronous)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(KeyError, match="the source"):
        next(found)


@both
def test_errors_of_single_requests_stand_in_their_places_where_that_is_asked_for(asynchronous: bool) -> None:
    def submit(value: Any) -> Future[Any]:
        if value == "refused":
            raise ShardrunError("refused")
        return done(ShardrunError("failed") if value == "failed" else value)

    source = [1, "refused", 2, "failed", 3]
    kept = [
        str(answer) if isinstance(answer, ShardrunError) else answer
        for answer in answers(source, submit, asynchronous=asynchronous, errors=True)
    ]
    assert kept == source
    raised = answers(source, submit, asynchronous=asynchronous)
    assert next(raised) == 1
    with pytest.raises(ShardrunError, match="refused"):
        next(raised)


@both
@pytest.mark.parametrize("error", [LaunchError("gone"), RankFailedError("killed")])
def test_nothing_more_is_asked_of_ranks_that_are_gone(asynchronous: bool, error: ShardrunError) -> None:
    tried: list[int] = []

    def submit(value: int) -> Future[Any]:
        tried.append(value)
        if value == 1:
            raise error
        return done(value)

    found = answers([0, 1, 2, 3], submit, asynchronous=asynchronous, errors=True)
    assert next(found) == 0
    with pytest.raises(type(error)):
        next(found)
    assert tried == [0, 1]


def test_later_ranks_get_the_newest_of_each_weight() -> None:
    renewal = Renewal()
    assert renewal.again() is None
    renewal.note(asked())  # it replaces none
    assert renewal.again() is None
    for tensors in ({"a": np.zeros(1), "b": np.zeros(1)}, {"a": np.ones(1)}):
        renewal.note(Asked(wire.Kind.WEIGHTS, {}, tensors))
    again = renewal.again()
    assert again is not None and again.kind is wire.Kind.WEIGHTS and again.fields == {AGAIN: True}
    assert {name: value.tolist() for name, value in again.tensors.items()} == {"a": [1.0], "b": [0.0]}


KNOWN = [TensorSpec("first", np.dtype(np.float32), (2, 3)), TensorSpec("scale", np.dtype(np.float32), ())]


def test_new_weights_are_copies() -> None:
    given = np.arange(6, dtype=np.float32).reshape(3, 2).T
    found = checked({"first": given}, KNOWN)
    given[...] = -1
    assert found["first"].tolist() == [[0, 2, 4], [1, 3, 5]] and found["first"].flags.c_contiguous


@pytest.mark.parametrize(
    ("weights", "known", "message"),
    [
        ({}, KNOWN, "a mapping of names to arrays, with at least one"),
        ([], KNOWN, "a mapping of names to arrays"),
        ({"first": np.zeros((2, 3), np.float32)}, [], "No weight of this model can be replaced"),
        ({"frist": np.zeros((2, 3), np.float32)}, KNOWN, r"no weight 'frist'.*'first'"),
        ({"other": np.zeros(1)}, KNOWN, r"no weight 'other' among those named in variable_weights"),
        ({"first": np.zeros((3, 2), np.float32)}, KNOWN, "first"),
        ({"first": np.zeros((2, 3), np.float64)}, KNOWN, "first"),
    ],
)
def test_what_is_no_new_weight(weights: Any, known: list[TensorSpec], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        checked(weights, known)


def test_an_error_that_says_more_keeps_what_it_knows() -> None:
    error = RankFailedError("killed", rank=3, host="h", details="last words", code=9, usage=True)
    more = _with(error, "\nThe ranks were started again 2 times.")
    assert isinstance(more, RankFailedError) and str(more) == "killed\nThe ranks were started again 2 times."
    assert (more.rank, more.host, more.details, more.code, more.usage) == (3, "h", "last words", 9, True)
    assert (
        type(_with(LaunchError("gone"), ".")) is LaunchError
        and str(_with(LaunchError("gone"), ".")) == "gone."
    )
