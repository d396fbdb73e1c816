"""What is said of ranks that are not there in time."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from launcher.group.late import late, say_who_is_awaited

LOOK = "look at the hosts, or allow more time (--timeout)."
SSH = (
    "mpirun starts the ranks over ssh on n1, n2: see that `ssh n1` connects without a question and that this "
    "program is installed there, or allow more time (--timeout)."
)


@pytest.mark.parametrize(
    ("missing", "far", "text"),
    [
        ([], ["n1"], f"x within 2.5 s: {LOOK}"),
        ([3], [], f"x within 2.5 s; nothing was heard of rank 3: {LOOK}"),
        ([1, 3], ["n1", "n2"], f"x within 2.5 s; nothing was heard of ranks 1, 3: {SSH}"),
    ],
)  # fmt: skip
def test_who_is_late(missing: list[int], far: list[str], text: str) -> None:
    assert late("x", 2.5, missing, "mpirun", far, []) == text
    assert late("x", 2.5, missing, "mpirun", far, [], " More.") == f"{text} More."


def test_what_the_launcher_printed_is_shown_beneath() -> None:
    said = ["-----", " - ", "", "no route", "x" * 400]
    first, *lines = late("x", 30, [], "ssh", [], said).split("\n")
    assert first.startswith("x within 30 s: ")
    assert lines == ["ssh said:", "  no route", "  " + "x" * 300]


def test_which_hosts_a_start_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    for over_ssh in (True, False):
        launcher = SimpleNamespace(name="mpirun", over_ssh=over_ssh)
        say_who_is_awaited(2, 5, launcher, ["n2", "n1"])  # type: ignore[arg-type]
    with_ssh, without = [record.getMessage() for record in caplog.records]
    without_ssh = "2 of 5 ranks have started; nothing was heard yet from n1, n2, where mpirun starts ranks"
    assert (without, with_ssh) == (without_ssh, f"{without_ssh} over ssh")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
