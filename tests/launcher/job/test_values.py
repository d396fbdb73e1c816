"""What each kind of option's value takes, at its edges: of a flag's text, and of a job file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.job import values
from launcher.job.job import Job
from launcher.job.options import OPTIONS
from launcher.job.values import Choice, Files, Kind, Number, Pairs, Seconds, Several, Switch, Text, Whole

WORD = Choice(("on", "true"))
LONG = "x" * values.MAX_TEXT
FOLDER = Path("/jobs")


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Whole(2, 9), [2, 9], [1, 10, True, 2.0, "2", None]),
        (Number(0, 5), [0, 5, 2.5], [-0.1, 5.1, True, "2", math.nan, math.inf]),
        (Number(0, 5, above=True), [1e-9, 5], [0, 5.1]),
        (Seconds(), [1e-3, 1e7], [0, 1e7 + 1, -1]),
        (Several(Whole(0, 5), "numbers"), [[], [0, 5], (1,)], [[0, 6], [6, 0], [1, True], 1, {0: 1}, "1"]),
        (Text("a text"), ["a", "a\0", LONG], ["", LONG + "x", 3, b"a"]),
        (Kind("a name"), ["a", LONG], ["", LONG + "x", "a\0", 3]),
        (Switch(), [True, False], [1, 0, "true", None]),
        (WORD, ["on", "true", True], ["off", 1, False]),
        (Pairs(values.parse_dims, Whole(0, 5), "x"), [{}, {"a": 0, "b": 5}], [{"a": 0, "b": 6}, [1], "a=1"]),
    ],
)  # fmt: skip
def test_what_a_job_file_may_hold(kind: Kind[Any], right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        kind.read(value, "$.x", FOLDER)
    for value in wrong:
        with pytest.raises(ConfigError, match=r"^\$\.x(\.b)?: expected "):
            kind.read(value, "$.x", FOLDER)


def test_what_it_is_read_as() -> None:
    assert Several(Whole(0, 5), "").read([1, 2], "$", FOLDER) == (1, 2)
    assert isinstance(Seconds().read(3, "$", FOLDER), float)
    assert WORD.read(True, "$", FOLDER) == "true"
    assert Pairs(values.parse_dims, Whole(0, 5), "", Whole(0, 3)).read({"1": 5}, "$", FOLDER) == {1: 5}
    with pytest.raises(ConfigError, match="the name 1 is given twice"):
        Pairs(values.parse_dims, Whole(0, 5), "", Whole(0, 3)).read({"1": 5, "01": 4}, "$", FOLDER)
    with pytest.raises(ConfigError, match="as each name, found"):
        Pairs(values.parse_dims, Whole(0, 5), "", Whole(0, 3)).read({"4": 5}, "$", FOLDER)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Whole(2, 9), {"2": 2, "9": 9}, ["1", "10", "2.0", "", "x", "x" * 999]),
        (Number(0, 5), {"0": 0, "5": 5, "1e-3": 1e-3}, ["-1", "6", "nan", "1_0", "٣", "", "9" * 999]),
        (Number(0, 5, above=True), {"5": 5}, ["0"]),
        (Text("a text"), {"a": "a", LONG: LONG}, ["", LONG + "x"]),
    ],
)
def test_what_a_flag_may_say(kind: Kind[Any], right: dict[str, Any], wrong: list[str]) -> None:
    assert {text: kind.parse(text) for text in right} == right
    for text in wrong:
        with pytest.raises(ConfigError, match="expected ") as caught:
            kind.parse(text)
        assert len(str(caught.value)) < 200


def test_the_ranges_of_the_jobs_own_options() -> None:
    """As messages have them: a number more or less is refused."""
    found = {
        name: (option.kind.low, option.kind.high)
        for name, option in OPTIONS.items()
        if isinstance(option.kind, Whole)
    }
    assert found == {
        "ranks": (1, 4096), "nodes": (1, 4096), "gpus": (0, 64), "threads": (1, 1024),
        "micro_batches": (1, 65536), "seed": (0, 2**63 - 1), "repeat": (1, 10**9),
    }  # fmt: skip


def test_switches_are_off_and_numbers_are_not_given() -> None:
    switches = [name for name, option in OPTIONS.items() if isinstance(option.kind, Switch)]
    assert len(switches) > 3 and not [name for name in switches if getattr(Job(), name)]
    numbers = [name for name, option in OPTIONS.items() if isinstance(option.kind, Whole | Number)]
    assert {name: getattr(Job(), name) for name in numbers if getattr(Job(), name) is not None} == {
        "repeat": 1
    }


def test_ranges_are_said_as_they_are() -> None:
    assert Number(-1, 2.5).expected == "a number from -1 to 2.5"
    assert Number(0, 1, above=True).expected == "a number above 0 up to 1"
    assert Whole(2, 9).expected == "a whole number from 2 to 9"


@pytest.mark.parametrize("text", ["a", "=b", "a=", "=", ""])
def test_pairs_need_both_sides(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--state {text}: expected INPUT=OUTPUT"):
        values.parse_state([text])
    with pytest.raises(ConfigError, match=f"--dim {text}: expected NAME=SIZE"):
        values.parse_dims([text])


def test_pairs_that_are_given_twice() -> None:
    assert values.parse_state(["a=b", "a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    with pytest.raises(ConfigError, match="--state a=c: 'a' is given twice, with two outputs"):
        values.parse_state(["a=b", "a=c"])
    assert values.parse_dims(["a=b=2"]) == {"a=b": 2}
    with pytest.raises(ConfigError, match="--dim a=2: 'a' is given twice"):
        values.parse_dims(["a=2", "a=2"])


def test_flags_and_job_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dims = Pairs(values.parse_dims, Whole(0, 5), "")
    assert dims.merged({"a": 1, "b": 2}, ["b=3"]) == {"a": 1, "b": 3}
    assert dims.arguments("--dim", {"a": 1, "b": 2}) == ["--dim", "a=1", "--dim", "b=2"]
    assert Several(Whole(0, 5), "").merged((1,), ["2", "3"]) == (2, 3)
    assert (Switch().arguments("--x", True), Switch().arguments("--x", False)) == (["--x"], [])
    files = Files("")
    (tmp_path / "n=f").touch()
    assert files.read(["f", "n=f", "m=f"], "$", tmp_path) == tuple(
        str(one) for one in (tmp_path / "f", tmp_path / "n=f", f"m={tmp_path / 'f'}")
    )
    assert files.read({"n": "f"}, "$", tmp_path) == (f"n={tmp_path / 'f'}",)
    assert files.arguments("-i", ["n=f", "m=f", "../f"]) == [
        "-i", str(tmp_path / "n=f"), "-i", f"m={tmp_path / 'f'}", "-i", str(tmp_path.parent / "f")
    ]  # fmt: skip
