"""How single lines of ranks are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

import pytest

from launcher.common.lines import Shown, StreamName, record


@pytest.mark.parametrize(
    ("size", "name", "text", "shown"),
    [
        (1, "stdout", "50%\r", "50%\r"),  # as it comes
        (1, "stderr", "x", "x\n"),
        (1, "stderr", "x\n", "x\n"),
        (2, "stdout", "x", "[1@h] x\n"),
        (2, "stderr", "x\n", "[1@h] x\n"),
    ],
)
def test_a_line_ends(size: int, name: StreamName, text: str, shown: str) -> None:
    assert Shown(size, lambda rank: "h").line(1, name, text) == shown


@pytest.mark.parametrize(("size", "as_json", "bare"), [(1, False, True), (1, True, False), (2, False, False)])
def test_where_output_is_shown_as_it_comes(size: int, as_json: bool, bare: bool) -> None:
    assert Shown(size, as_json=as_json).bare is bare


@pytest.mark.parametrize(("tee", "shown"), [(None, [0, 1, 2]), ((), []), ((0, 2), [0, 2])])
def test_whose_lines_are_shown(tee: Collection[int] | None, shown: list[int]) -> None:
    assert [rank for rank in range(3) if Shown(3, tee=tee).shows(rank)] == shown


def test_a_line_as_json() -> None:
    before = time.time()
    line = Shown(1, lambda rank: f"h{rank}", as_json=True).line(1, "stderr", 'a "b"\r\n')
    found = json.loads(line)
    assert line.endswith("}\n") and line.count("\n") == 1
    assert before - 1 <= found.pop("time") <= time.time() + 1
    assert found == {"rank": 1, "host": "h1", "stream": "stderr", "line": 'a "b"'}
    assert record(None, "", None, " x ") | {"time": 0} == {
        "time": 0, "rank": None, "host": "", "stream": None, "line": " x "
    }  # fmt: skip


def test_one_rank_alone_is_what_is_shown_where_nothing_is_said() -> None:
    assert Shown().bare and Shown().line(0, "stderr", "x") == "x\n"
