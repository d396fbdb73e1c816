"""Which of several ended ranks was the first cause, by what is known of each."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from launcher.starters import cause
from launcher.starters.base import Ended
from launcher.starters.cause import ITSELF, Trouble
from launcher.starters.findings import Findings

GONE = {"type": "PeerLostError", "secondary": True}
OWN = {"type": "ValueError", "message": "odd"}
KILLED = -signal.SIGKILL


def misses(rank: int, peer: int | None) -> Trouble:
    return Trouble(rank, "h", {**GONE, "peer": peer})


def ended(rank: int, code: int | None, **more: Any) -> Trouble:
    return Trouble(rank, "h", ended=Ended(rank, code, **more))


@pytest.mark.parametrize(
    ("troubles", "done", "gave_up", "only"),
    [
        ([misses(0, 2)], [], [], True),
        ([misses(0, 1)], [1], [], False),  # of the one that it misses it is known that it ended
        ([misses(0, 1), misses(1, 0)], [], [], False),  # and here why
        ([misses(0, None)], [], [], True),  # one of the others
        ([misses(0, None), misses(1, 0)], [2], [], False),  # there is no other
        ([ended(0, 3)], [], [], False),
        ([ended(0, 3)], [], [0], True),  # its MPI had lost somebody before
        ([ended(0, 3), misses(1, 0)], [], [0], True),
        ([ended(0, 3), misses(1, 0)], [], [1], False),
        ([Trouble(0, "h", OWN), misses(1, 2)], [], [], False),
        ([Trouble(0, "h"), misses(1, 2)], [], [0], False),  # nothing is known of it but that it is gone
    ],
)
def test_echoes_of_a_rank_of_which_nothing_is_known(
    troubles: list[Trouble], done: list[int], gave_up: list[int], only: bool
) -> None:
    known = {item.rank: item for item in troubles}
    assert cause.echoes(known, done, 3, lambda rank: rank in gave_up) is only


@pytest.mark.parametrize(
    ("troubles", "gave_up", "kept", "rank"),
    [
        ([misses(0, 1), ended(1, 3)], [], [], 1),
        ([ended(0, 3), ended(1, 3)], [], [], 0),
        ([ended(0, 3), ended(1, 3)], [0], [], 1),
        ([ended(0, 3), ended(1, 3)], [0, 1], [], 0),
        ([misses(0, 1), misses(1, 0)], [], [], 0),
        ([ended(0, KILLED, heard=True), ended(1, -signal.SIGSEGV)], [], [], 0),
        ([ended(0, KILLED, heard=True), ended(1, -signal.SIGSEGV)], [], [0], 1),
        ([Trouble(0, "h"), ended(1, -signal.SIGSEGV)], [], [], 1),
        ([Trouble(0, "h"), ended(1, -signal.SIGTERM)], [], [], 0),
        ([Trouble(0, "h"), Trouble(1, "h", OWN, Ended(1, -signal.SIGSEGV))], [], [], 0),  # it had said why
        ([ended(0, 3, why=ITSELF), ended(1, 3)], [0], [], 0),
    ],
)
def test_the_first_cause(troubles: list[Trouble], gave_up: list[int], kept: list[int], rank: int) -> None:
    found = cause.first(troubles, lambda one: one in gave_up, lambda one: one in kept)
    assert found is not None and found.rank == rank
    assert cause.first([]) is None


@pytest.mark.parametrize(
    ("news", "kept"),
    [
        ([Ended(0, None, "lost"), Ended(0, 3)], 1),
        ([Ended(0, 3), Ended(0, None, "lost")], 0),
        ([Ended(0, 3), Ended(0, 4)], 0),
        ([Ended(0, KILLED, heard=True), Ended(0, -signal.SIGSEGV)], 1),
        ([Ended(0, 3), Ended(0, KILLED, heard=True)], 0),
        ([Ended(0, 3, heard=True), Ended(0, 3, "said", heard=True)], 1),
        ([Ended(0, 3, heard=True), Ended(0, None)], 0),
    ],
)
def test_how_a_rank_ended_by_what_says_most(news: list[Ended], kept: int) -> None:
    one = Trouble(0, "h")
    for item in news:
        one.end(item)
    assert one.ended is news[kept]


def test_who_ended_the_job() -> None:
    said = ['mpirun: "abort"', "process rank 3 with PID 77 on node n2 calling", "more"]
    assert cause.aborter(said) == (3, "n2")
    assert cause.aborter(said[1:]) is None and cause.aborter(said[:1]) is None


def test_who_had_ended_well_before() -> None:
    late = {"type": "CollectiveTimeoutError"}
    assert cause.left_early({2, 0}, late) == (
        " Rank 0 had ended with exit code 0 before. Rank 2 had ended with exit code 0 before."
    )
    assert cause.left_early({0}, {"type": "ValueError"}) == "" == cause.left_early((), late)
    assert cause.left_early(range(99), late).count("Rank") == 8


def verdict(found: Findings) -> str:
    return str(found.verdict("mpirun", far=(), short="", started=True, trace=False, more=""))


def test_a_launching_program_that_was_killed_says_nothing_of_ranks() -> None:
    found = Findings(2, {}, {})
    found.troubles[1] = ended(1, KILLED, heard=True)
    found.launched = Ended(None, KILLED)
    assert verdict(found) == "mpirun was killed by SIGKILL while the ranks were running."
    found.launched = Ended(None, 137)  # as it tells of a rank's death
    assert verdict(found).startswith("rank 1 on host h was killed by SIGKILL.")
    found.launched, found.troubles[1] = Ended(None, KILLED), Trouble(1, "h", OWN)
    assert verdict(found) == "rank 1 on host h: ValueError: odd"


def test_a_rank_that_left_in_order_before_it_was_done() -> None:
    """mpirun says so in one line among others."""
    gone, lines = Trouble(1, "h"), ["one", f"it {cause._UNFINISHED}, which", "other"]
    launched = cause.Launched("mpirun", 1, lines, started=True)
    assert str(cause.launcher_error(launched, gone)).startswith(
        "rank 1 on host h ended with exit code 0 before"
    )
    for other in (
        replace(launched, tail=lines[::2]), replace(launched, started=False),
    ):  # fmt: skip
        assert str(cause.launcher_error(other, gone)).startswith("mpirun ended with exit code 1 ")
    assert str(cause.launcher_error(launched, None)).startswith("mpirun ended with exit code 1 ")


@pytest.mark.parametrize(
    ("known", "heard", "kept"),
    [
        (None, Ended(0, None), 1),
        (Ended(0, None, "the connection ended"), Ended(0, 3), 1),  # a code says more
        (Ended(0, 3), Ended(0, None, "the connection ended"), 0),
        (Ended(0, 3), Ended(0, 4), 0),  # what came first
        (Ended(0, 9, heard=True), Ended(0, 3), 1),  # who saw it
        (Ended(0, 9, heard=True), Ended(0, None), 0),
        (Ended(0, 3), Ended(0, 9, heard=True), 0),
        (Ended(0, 9, heard=True), Ended(0, 4, heard=True), 0),
        (Ended(0, 9, heard=True), Ended(0, 4, "its node failed", heard=True), 1),
    ],
)
def test_which_word_of_an_end_is_kept(known: Ended | None, heard: Ended, kept: int) -> None:
    trouble = Trouble(0, "h", ended=known)
    trouble.end(heard)
    assert trouble.ended is (known, heard)[kept]


SAYS = [
    (Trouble(0, "h"), "gave_up"),
    (Trouble(0, "h", OWN), "told"),
    (misses(0, 1), "told secondary"),
    (ended(0, 3), "told unexplained gave_up"),
    (ended(0, 0), "told crashed"),  # before it was done
    (ended(0, None), "gave_up"),
    (ended(0, None, why="its node failed"), "told gave_up"),
    (ended(0, -signal.SIGSEGV), "told crashed"),
    (ended(0, -signal.SIGABRT), "told gave_up"),
    (ended(0, KILLED), "told gave_up"),
    (ended(0, KILLED, heard=True), "told gave_up heard_killed"),
    (ended(0, -signal.SIGINT, heard=True), "told gave_up"),
    (ended(0, 3, why=ITSELF), "told itself"),
    (Trouble(0, "h", OWN, Ended(0, -signal.SIGSEGV)), "told"),
    (Trouble(0, "h", OWN, Ended(0, KILLED, heard=True)), "told"),
]


@pytest.mark.parametrize(("trouble", "words"), SAYS)
def test_what_is_known_of_an_end(trouble: Trouble, words: str) -> None:
    names = ("told", "secondary", "unexplained", "crashed", "heard_killed", "itself")
    found = {name for name in names if getattr(trouble, name)}
    found |= {"gave_up"} if trouble.gave_up(lambda rank: rank == 0) else set()
    assert found == set(words.split())
    assert not trouble.gave_up(lambda rank: False)
