"""What the command prints: no name, whatever it holds, breaks a line or is taken for markup."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from launcher.common import report

ODD = "a[bold]b\n\x1b[31mc"
SHOWN = "a[bold]b\\n\\x1b[31mc"


def test_a_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    report.say(f"wrote {ODD}")
    assert capsys.readouterr().out == f"wrote {SHOWN}\n"


def test_a_table_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_table(["name", "n"], [[ODD, "1"], ["d", "22"]], "lr", title=ODD)
    wide = len(SHOWN)
    assert capsys.readouterr().out.splitlines() == [
        SHOWN, f"{'name':{wide}}   n", f"{'-' * wide}  --", f"{SHOWN}   1", f"{'d':{wide}}  22"
    ]  # fmt: skip


def test_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "40")
    report.print_table(["name", "n"], [[ODD, "1"], ["x" * 60, "22"]], "lr")
    out = capsys.readouterr().out
    assert SHOWN in out and out.count("x" * 20) >= 2 and out.replace("\n", "").count("x") >= 60
    assert [line.split()[-1] for line in out.splitlines() if line.split()[-1:] in (["1"], ["22"])] == [
        "1",
        "22",
    ]
    right = [line.rstrip() for line in out.splitlines() if line.split()[-1:] in (["1"], ["22"])]
    assert len({len(line) for line in right}) == 1  # numbers stand at the right


def test_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_outputs({"y\n": np.arange(60, dtype=np.int16).reshape(2, 30)})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "tensor's name is:y\\n data size is:120 tensor elements num is:60"
    assert second == "output data is: " + "".join(f"{value} " for value in range(50))


def test_warnings_of_plans(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report.warn_of("", Path("m.onnx"))
        report.warn_of("nothing is split", Path("m.onnx"))
    assert [record.getMessage() for record in caplog.records] == [
        "m.onnx: nothing is split; see `shardrun inspect -v`"
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1.00 s"),
        (61.234, "61.23 s"),
        (0.9994, "999 ms"),
        (1e-3, "1 ms"),
        (0.00123, "1.23 ms"),
        (99e-6, "99 µs"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert report.human_seconds(seconds) == text
