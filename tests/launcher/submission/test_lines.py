"""What is shown of the log of a job: whose line it is, and on which host."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from launcher.common.lines import record
from launcher.job.job import Job
from launcher.starters import marks
from launcher.submission.base import Submission
from launcher.submission.lines import HOST_SAYING, Lines, saying_its_host
from launcher.submission.options import SubmitOptions


def submission(ranks: int = 2, **options: Any) -> Submission:
    return Submission(Job(**options), ranks, SubmitOptions())


def test_a_host_that_was_said_marks_the_lines_of_its_rank() -> None:
    lines = Lines(submission(), marks.SRUN)
    told = ["0: shardrun: on host n1", "1: shardrun: on host n22 ", "0: a", " 1: b", "0: c", "no mark"]
    assert [lines.shown(line) for line in told] == [
        None, None, "[0@n1] a", "[1@n22] b", "[0@n1]  c", "no mark"
    ]  # fmt: skip
    assert Lines(submission(), marks.SRUN).shown("1: x") == "[1@?] x"  # nobody has said it


def test_the_first_mark_that_fits_counts() -> None:
    lines = Lines(submission(), *marks.OF_MPIRUN)
    shown = [lines.shown(line) for line in ("[1,1]<stdout>: x", "[0] y", "[2 z", "")]
    assert shown == ["[1@?] x", "[0@?] y", "[2 z", ""]


def test_only_some_ranks_are_shown() -> None:
    lines = Lines(submission(tee=(1,)), marks.SRUN, job="7")
    assert lines.shown("0: x") is None and lines.shown("1: y") == "[job 7] [1@?] y"
    assert lines.shown("srun: error") == "[job 7] srun: error"  # of no rank


def test_the_log_of_one_rank_has_no_marks() -> None:
    lines = Lines(submission(), marks.SRUN, rank=1, host="pod-1")
    assert lines.shown("0: x") == "[1@pod-1] 0: x"
    assert Lines(submission(ranks=1), rank=0, host="pod-0").shown("x") == "x"


def test_lines_as_json() -> None:
    lines = Lines(submission(log_json=True), marks.SRUN, job="7")
    lines.shown("1: shardrun: on host n1")
    found = json.loads(lines.shown("1: x") or "")
    del found["time"]
    assert found == {"job": "7", "rank": 1, "host": "n1", "stream": None, "line": "x"}
    found = json.loads(Lines(submission(log_json=True), marks.SRUN).shown("y") or "")
    del found["time"]
    assert found == {"rank": None, "host": "", "stream": None, "line": "y"}


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (json.dumps(record(3, "n", "stderr", "x")), True),
        (json.dumps({**record(3, "n", "stderr", "x"), "more": 1}), False),
        ('{"time": 1}', False),
        ('{"time": ', False),
        ('{"time": ' + "[" * 100_000, False),
        ("x", False),
    ],
    ids=["own", "more", "less", "cut", "deep", "text"],
)
def test_lines_that_are_json_already(text: str, own: bool) -> None:
    """`shardrun run --log-json` wrote them, where it started the ranks itself."""
    found = json.loads(Lines(submission(log_json=True), marks.SRUN).shown(text) or "")
    if own:
        assert found == json.loads(text)
    else:
        assert found["line"] == text and found["rank"] is None


def test_a_command_says_its_host_and_goes_on() -> None:
    host = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    done = subprocess.run([*HOST_SAYING, "echo", "it's  here"], capture_output=True, text=True, check=False)
    assert done.stdout == f"shardrun: on host {host}it's  here\n"
    quoted = saying_its_host("sh -c 'exit 3'")
    done = subprocess.run(["bash", "-c", quoted], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, f"shardrun: on host {host}")
