"""What a launcher makes of what ranks tell it: which trouble was the first."""

from __future__ import annotations

import io
import os
import resource
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.group.requests import Requests
from launcher.group.serving.asked import Asked
from launcher.starters import cause
from launcher.starters.base import Ended
from launcher.starters.cause import Trouble
from launcher.starters.noise import Noise
from ranks.errors import SILENT
from ranks.run.rank_model import Stats
from ranks.talk.reports import WHOLE
from ranks.talk.wire import Kind, Message, read_frame


def decoded(frame: bytes) -> Message:
    left = io.BytesIO(frame)
    return read_frame(lambda target, first=False: left.readinto(target))


class Ranks:
    """Two ranks that are told everything and say what a test says."""

    world_size = 2
    failure = None

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: list[tuple[int, Kind]] = []

    def send(self, rank: int, kind: Kind, *_: Any) -> None:
        self.sent.append((rank, kind))

    def send_frame(self, rank: int, frame: bytes) -> None:
        self.sent.append((rank, decoded(frame).kind))

    def check_owner(self) -> None:
        pass


def test_each_rank_gets_what_is_small_whole_and_nobody_else_what_is_large() -> None:
    # For rank 0 to pass it on, ranks would wait for each other before they begin.
    def sent(value: Any, ranks: int) -> tuple[dict[int, Message], list[tuple[int, bool]]]:
        small: dict[int, Message] = {}
        large: list[tuple[int, bool]] = []
        job: Any = SimpleNamespace(
            world_size=ranks,
            send_frame=lambda rank, frame: small.update({rank: decoded(frame)}),
            send=lambda rank, kind, fields, tensors=None, slot=0: large.append((rank, bool(tensors))),
        )
        Asked(Kind.PREDICT, {"session": 3}, {"x": value}, number=7).send(job)
        return small, large

    value = np.arange(256, dtype=np.float32)
    small, large = sent(value, 3)
    assert sorted(small) == [0, 1, 2] and not large
    for message in small.values():
        assert message.fields["request"] == 7 and message.fields["session"] == 3 and WHOLE in message.fields
        assert np.array_equal(message.tensors["x"], value)
    for much in (np.zeros(1 << 14, np.float32), np.array(["a" * 70_000], object)):
        assert sent(much, 2) == ({}, [(0, True), (1, False)])
    assert sent(value, 100)[1][:2] == [(0, True), (1, False)]  # many are told by each other
    assert sent(value, 1) == ({}, [(0, True)])


@pytest.mark.parametrize("turn", ["before", "after", "late"])
def test_a_rank_that_could_not_compute_what_rank_0_could_is_out_of_step(turn: str) -> None:
    """Whichever comes first, and also where the next request is under way."""
    ranks: Any = Ranks()
    requests = Requests(ranks)
    first = requests.submit({"x": np.zeros(1)})
    failed = Message(Kind.FAILED, {"request": 1, "type": "ModelError", "message": "no memory."}, {})
    stats = Stats(1, 0, 0, 0.0)._asdict()
    good = Message(Kind.RESULT, {"request": 1, "stats": stats, "seconds": 0.0}, {})
    order = [(1, failed), (0, good)] if turn == "before" else [(0, good), (1, failed)]
    with ranks.changed:
        told = [requests.take(*order[0])]
    if turn != "before":
        assert first.result(20) == {}
    if turn == "late":
        requests.submit({"x": np.zeros(1)})
    with ranks.changed:
        told.append(requests.take(*order[1]))
    assert told == [None, (1, failed.fields)] and (first.done() or turn == "before")
    assert (1, Kind.RESUME) not in ranks.sent
    error = cause.error_of(Trouble(1, "h", error=cause.unlike(failed.fields)), [])
    assert str(error) == "rank 1 on host h: no memory. Other ranks did not fail alike."


def test_an_echo_is_not_the_first_cause() -> None:
    echo = Trouble(0, "h", error={"message": "rank 2 is gone", "secondary": True})
    own = Trouble(2, "h", error={"message": "no memory", "secondary": False})
    gone = Trouble(1, "h", ended=Ended(1, -9))
    assert cause.first([echo, own, gone]) is own
    assert cause.first([echo, gone, own]) is gone
    assert cause.first([echo]) is echo
    assert cause.first([]) is None
    assert cause.first([Trouble(3, "h"), own]).told is False  # type: ignore[union-attr]


def test_a_rank_that_its_mpi_ended_is_not_the_first_cause() -> None:
    """Open MPI ends the ranks that are connected to one that is gone."""
    ended, gone = Trouble(0, "h", ended=Ended(0, 14)), Trouble(1, "h", ended=Ended(1, 0))
    noise = Noise()
    assert ended.unexplained and not noise.lost
    assert cause.first([ended, gone], lambda rank: noise.lost) is ended
    noise.sift("[sh1:00000] *** An error occurred in Socket closed\n")
    assert cause.first([ended, gone], lambda rank: noise.lost) is gone
    assert cause.first([ended], lambda rank: noise.lost) is ended
    said = Trouble(0, "h", ended=Ended(0, 14, cause.ITSELF))
    assert not said.unexplained and cause.first([said, gone], lambda rank: noise.lost) is said
    for code in (0, -9, None):
        assert not Trouble(0, "h", ended=Ended(0, code)).unexplained


def test_an_echo_of_a_rank_that_is_not_heard_yet() -> None:
    """Of a network that is cut, a rank may know before the launcher does."""
    lost = {"message": "rank 1 is gone", "secondary": True}
    echo, vague = Trouble(0, "h", error={**lost, "peer": 1}), Trouble(2, "h", error={**lost, "peer": None})
    assert cause.echoes({0: echo}, (), 4) and cause.echoes({2: vague, 0: echo}, {3}, 4)
    assert cause.echoes({2: vague}, (), 4) and not cause.echoes({2: vague}, {0, 1, 3}, 4)
    assert not cause.echoes({0: echo}, {1}, 4) and not cause.echoes({}, (), 4)
    assert not cause.echoes({0: echo, 1: Trouble(1, "h", ended=Ended(1, None, SILENT))}, (), 4)
    assert not cause.echoes({0: echo, 3: Trouble(3, "h", error={"message": "no memory"})}, (), 4)
    by_mpi = {3: Trouble(3, "h", ended=Ended(3, 14))}
    assert cause.echoes(by_mpi, (), 4, lambda rank: rank == 3) and not cause.echoes(by_mpi, (), 4)


def test_what_a_rank_says_of_itself_reaches_the_user() -> None:
    told = {"type": "DataError", "message": "no such input", "expected": True, "traceback": "frames"}
    error = cause.error_of(Trouble(1, "h", error={**told, "usage": True}), ["last line"])
    assert (str(error), error.rank, error.usage, error.details) == (
        "rank 1 on host h: no such input", 1, True, "frames",
    )  # fmt: skip
    for usage in (False, "yes", None):
        assert not cause.error_of(Trouble(1, "h", error={**told, "usage": usage}), []).usage


@pytest.mark.parametrize("limit", [30, resource.RLIM_INFINITY])
def test_a_limit_of_processor_time_is_named_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The kernel sends SIGKILL where the soft limit is the hard one, as `ulimit -t` sets them."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    here, killed = os.uname().nodename, Ended(0, -9)
    said = str(cause.error_of(Trouble(0, here, ended=killed), ()))
    assert ("a process has used 30 s of processor time, which `ulimit -t` allows" in said) == (limit == 30)
    assert "ulimit" not in str(cause.error_of(Trouble(0, here, ended=Ended(0, -15)), ()))
    elsewhere = str(cause.error_of(Trouble(0, f"not-{here}", ended=killed), ()))
    assert "SIGKILL" in elsewhere and "ulimit" not in elsewhere
