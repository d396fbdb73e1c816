"""What a launcher makes of what ranks tell it: which trouble was the first."""

from __future__ import annotations

from launcher.starters import cause
from launcher.starters.base import Ended
from launcher.starters.cause import Trouble


def test_an_echo_is_not_the_first_cause() -> None:
    echo = Trouble(0, "h", error={"message": "rank 2 is gone", "secondary": True})
    own = Trouble(2, "h", error={"message": "no memory", "secondary": False})
    gone = Trouble(1, "h", ended=Ended(1, -9))
    assert cause.first([echo, own, gone]) is own
    assert cause.first([echo, gone, own]) is gone
    assert cause.first([echo]) is echo
    assert cause.first([]) is None
    assert cause.first([Trouble(3, "h"), own]).told is False  # type: ignore[union-attr]


def test_what_a_rank_says_of_itself_reaches_the_user() -> None:
    told = {"type": "DataError", "message": "no such input", "expected": True, "traceback": "frames"}
    error = cause.error_of(Trouble(1, "h", error={**told, "usage": True}), ["last line"])
    assert (str(error), error.rank, error.usage, error.details) == (
        "rank 1 on host h: no such input", 1, True, "frames",
    )  # fmt: skip
    for usage in (False, "yes", None):
        assert not cause.error_of(Trouble(1, "h", error={**told, "usage": usage}), []).usage
