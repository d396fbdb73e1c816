"""What ranks print reaches the user whole, marked with its rank, and its end is kept for error messages."""

from __future__ import annotations

import os

import pytest

from launcher.group.output import TAIL_LINES, Output, show
from launcher.starters.base import Ended, Handle, Pipe, StreamName


class Pipes(Handle):
    """A handle with pipes whose other ends the test holds."""

    def __init__(self, *pipes: tuple[int | None, StreamName]) -> None:
        super().__init__()
        self.writers: list[int] = []
        for rank, name in pipes:
            reader, writer = os.pipe()
            self.pipes.append(Pipe(reader, rank, name))
            self.writers.append(writer)

    def attribute(self, line: str) -> list[tuple[int | None, str]]:
        number, colon, rest = line.partition(":")
        return [(int(number), rest) if colon and number.isdecimal() else (None, line)]

    def heard(self, line: str) -> Ended | None:
        return Ended(1, -9) if "killed" in line else None

    def terminate(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


def printed(
    capsys: pytest.CaptureFixture[str],
    pipes: list[tuple[int | None, StreamName]],
    *written: tuple[int, bytes],
) -> tuple[str, str, Output, list[Ended]]:
    """What appears on the two standard streams when these bytes are written to these pipes."""
    ends: list[Ended] = []
    handle = Pipes(*pipes)
    output = Output(handle, ends.append)
    for index, data in written:
        os.write(handle.writers[index], data)
    for writer in handle.writers:
        os.close(writer)
    output.join(20)
    found = capsys.readouterr()
    return found.out, found.err, output, ends


def test_rank_0_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out, err, *_ = printed(capsys, [(0, "stdout")], (0, b"a\r50%"), (0, b"\r100%\nno end"))
    assert out == "a\r50%\r100%\nno end" and err == ""


def test_others_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = "grüße\n".encode()
    pipes: list[tuple[int | None, StreamName]] = [(1, "stdout"), (1, "stderr"), (0, "stderr")]
    out, err, output, _ = printed(
        capsys, pipes, (0, text[:3]), (0, text[3:]), (1, b"one\n\ntwo"), (2, b"x\n")
    )
    assert out == "[rank 1] grüße\n"
    assert sorted(err.splitlines()) == sorted(["[rank 1] one", "[rank 1] ", "[rank 1] two", "[rank 0] x"])
    assert output.tail(1) == ["one", "", "two"] and output.tail(0) == ["x"] and output.tail(None) == []


def test_bytes_that_are_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    out, _, *_ = printed(capsys, [(1, "stdout")], (0, b"\xff\xfe\0\n"))
    assert out == "[rank 1] ��\0\n"


def test_only_the_last_lines_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line {i}" for i in range(100)]
    _, _, output, _ = printed(capsys, [(1, "stderr")], (0, "\n".join(lines).encode()))
    assert output.tail(1) == lines[-TAIL_LINES:]


def test_a_line_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that never ends its line does not fill the launcher's memory."""
    handle = Pipes((1, "stdout"))
    output = Output(handle, lambda ended: None)
    for _ in range(64):
        os.write(handle.writers[0], b"x" * 65536)
    os.close(handle.writers[0])
    output.join(20)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.count("x") for line in lines) == 64 * 65536 and len(lines) > 1


def test_several_ranks_through_one_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    said = b"0:zero\n1:one\nchatter\nrank 1 was killed\n0:more\n"
    pipes: list[tuple[int | None, StreamName]] = [(None, "stdout"), (None, "stderr")]
    out, err, output, ends = printed(capsys, pipes, (0, said), (1, b"1:wrong\n"))
    assert out == "zero\n[rank 1] one\nmore\n" and err == "[rank 1] wrong\n"
    assert ends == [Ended(1, -9)]
    assert output.tail(None) == ["chatter", "rank 1 was killed"] and output.tail(1) == ["wrong"]


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w", encoding="utf-8") as closed:  # noqa: PTH123 - the null device
        pass
    for stream in (closed, None):
        monkeypatch.setattr("sys.stdout", stream)
        show(0, "stdout", "lost\n")
