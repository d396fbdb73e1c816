"""What ranks print reaches the user whole, marked with its rank, and its end is kept for error messages."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from launcher.common.lines import Shown, StreamName
from launcher.group import logs
from launcher.group.logs import LogFiles
from launcher.group.output import TAIL_LINES, Output, show
from launcher.starters.base import Ended, Handle, Pipe
from tests.launcher.processes import wait_until


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

    def heard(self, line: str) -> list[Ended]:
        return [Ended(1, -9)] if "killed" in line else []

    def terminate(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


def printed(
    capsys: pytest.CaptureFixture[str],
    pipes: list[tuple[int | None, StreamName]],
    *written: tuple[int, bytes],
    shown: Shown | None = None,
    files: LogFiles | None = None,
) -> tuple[str, str, Output, list[Ended]]:
    """What appears on the two standard streams when these bytes are written to these pipes, by default of
    two ranks."""
    ends: list[Ended] = []
    handle = Pipes(*pipes)
    output = Output(handle, ends.append, shown or Shown(2, lambda rank: "node"), files)
    for index, data in written:
        os.write(handle.writers[index], data)
    for writer in handle.writers:
        os.close(writer)
    output.join(20)
    found = capsys.readouterr()
    return found.out, found.err, output, ends


def test_a_single_rank_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out, err, *_ = printed(
        capsys, [(0, "stdout")], (0, b"a\r50%"), (0, b"\r100%\nno end"), shown=Shown(1, lambda rank: "node")
    )
    assert out == "a\r50%\r100%\nno end" and err == ""


def test_others_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = "grüße\n".encode()
    pipes: list[tuple[int | None, StreamName]] = [(1, "stdout"), (1, "stderr"), (0, "stderr")]
    out, err, output, _ = printed(
        capsys, pipes, (0, text[:3]), (0, text[3:]), (1, b"one\n\ntwo"), (2, b"x\n")
    )
    assert out == "[1@node] grüße\n"
    assert sorted(err.splitlines()) == sorted(["[1@node] one", "[1@node] ", "[1@node] two", "[0@node] x"])
    assert output.tail(1) == ["one", "", "two"] and output.tail(0) == ["x"] and output.tail(None) == []


def test_bytes_that_are_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    out, _, *_ = printed(capsys, [(1, "stdout")], (0, b"\xff\xfe\0\n"))
    assert out == "[1@node] ��\0\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_end_in_the_midst_of_a_character(capsys: pytest.CaptureFixture[str], ranks: int) -> None:
    shown = Shown(ranks, lambda rank: "node")
    out, _, *_ = printed(capsys, [(1, "stdout")], (0, "abü".encode()[:-1]), shown=shown)
    assert out.rstrip("\n").endswith("ab�")


def test_only_the_last_lines_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line {i}" for i in range(100)]
    _, _, output, _ = printed(capsys, [(1, "stderr")], (0, "\n".join(lines).encode()))
    assert output.tail(1) == lines[-TAIL_LINES:]


def test_a_line_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that never ends its line does not fill the launcher's memory."""
    handle = Pipes((1, "stdout"))
    output = Output(handle, lambda ended: None, Shown(2, lambda rank: "node"))
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
    assert out == "[0@node] zero\n[1@node] one\n[0@node] more\n" and err == "[1@node] wrong\n"
    assert ends == [Ended(1, -9)]
    assert output.tail(None) == ["chatter", "rank 1 was killed"] and output.tail(1) == ["wrong"]


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w", encoding="utf-8") as closed:  # noqa: PTH123 - the null device
        pass
    for stream in (closed, None):
        monkeypatch.setattr("sys.stdout", stream)
        show("stdout", "lost\n")


def test_texts_begin_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(12, lambda rank: "a" if rank < 10 else "longer")
    lines = [shown.line(10, "stdout", "x\n"), shown.line(3, "stderr", "y\n")]
    assert lines == ["[10@longer] x\n", "[3@a]       y\n"]


def test_lines_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(2, lambda rank: f"node{rank}", as_json=True)
    pipes: list[tuple[int | None, StreamName]] = [(0, "stdout"), (1, "stderr")]
    out, err, *_ = printed(capsys, pipes, (0, b"a\nb"), (1, b"\xff\n"), shown=shown)
    said = [json.loads(line) for line in out.splitlines()]
    assert [(item["rank"], item["host"], item["stream"], item["line"]) for item in said] == [
        (0, "node0", "stdout", "a"),
        (0, "node0", "stdout", "b"),
    ]
    assert all(isinstance(item["time"], float) for item in said)
    assert json.loads(err)["line"] == "\ufffd"


def test_only_some_ranks_are_shown_and_all_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes: list[tuple[int | None, StreamName]] = [(0, "stdout"), (1, "stderr"), (None, "stderr")]
    said = (0, b"zero\n"), (1, b"\xff one\nend"), (2, b"launching\n")
    shown = Shown(2, lambda rank: "node", tee=(0,))
    out, err, output, _ = printed(capsys, pipes, *said, shown=shown, files=LogFiles(tmp_path))
    assert (out, err) == ("[0@node] zero\n", "") and output.tail(1) == ["\ufffd one", "end"]
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {
        "rank_0.log": b"zero\n",
        "rank_1.log": b"\xff one\nend\n",
        "launcher.log": b"launching\n",
    }


def test_pieces_of_a_single_rank_s_line_stay_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    handle = Pipes((0, "stdout"), (0, "stderr"))
    output = Output(handle, lambda ended: None, Shown(1), LogFiles(tmp_path))
    for writer, data in ((0, b"50"), (0, b"%\n75"), (1, b"why\n"), (0, b"end")):
        os.write(handle.writers[writer], data)
        written = tmp_path / "rank_0.log"
        assert wait_until(lambda: written.exists() and data.strip() in written.read_bytes(), 20)  # noqa: B023
    for writer in handle.writers:
        os.close(writer)
    output.join(20)
    assert capsys.readouterr().out == "50%\n75end"
    assert (tmp_path / "rank_0.log").read_text() == "50%\n75\nwhy\nend\n"


def test_a_folder_that_is_removed_stops_no_rank(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost is said at the end; what ranks print is read and shown on."""
    monkeypatch.setattr(logs, "ROTATED_BYTES", 20)
    folder = tmp_path / "logs"
    folder.mkdir()
    files = LogFiles(folder)
    assert files.write(1, "stdout", "the first line\n") is None
    shutil.rmtree(folder)
    out, _, output, _ = printed(capsys, [(1, "stdout")], (0, b"2nd line\n3rd\n4th\n"), files=files)
    assert out.splitlines() == [f"[1@node] {text}" for text in ("2nd line", "3rd", "4th")]
    assert isinstance(output.lost, FileNotFoundError)


def test_a_file_that_is_removed_while_it_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is written then goes to no file that anybody can open; but who rotates files may have a copy."""
    files = LogFiles(tmp_path)
    assert files.write(0, "stdout", "a line\n") is None and files.write(1, "stdout", "a line\n") is None
    (tmp_path / "rank_1.log").unlink()
    _, _, output, _ = printed(capsys, [(1, "stdout"), (0, "stdout")], (0, b"a\n"), (1, b"b\n"), files=files)
    assert output.lost is None
    assert caplog.messages == [f"{tmp_path / 'rank_1.log'} was removed while the job wrote to it"]


def test_a_full_disk_stops_no_rank(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said at once, and once: a job that serves has no end soon, and `run` ends well."""
    (tmp_path / "rank_1.log").symlink_to("/dev/full")
    (tmp_path / "rank_0.log").touch()
    out, err, output, _ = printed(
        capsys, [(1, "stdout"), (0, "stdout")], (0, b"a\n"), (1, b"b\n"), (0, b"c\n"),
        files=LogFiles(tmp_path),
    )  # fmt: skip
    assert sorted(out.splitlines()) == ["[0@node] b", "[1@node] a", "[1@node] c"] and err == ""
    assert output.lost is not None and output.lost.errno == errno.ENOSPC
    assert output.lost.filename == str(tmp_path / "rank_1.log")  # or it is taken for standard output
    assert (tmp_path / "rank_0.log").read_text() == "b\n"
    assert caplog.messages == [
        f"{tmp_path / 'rank_1.log'} cannot be written (No space left on device): the job's logs are not whole"
    ]


def test_a_long_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROTATED_BYTES", 10)
    files = LogFiles(tmp_path)
    for number in range(7):
        assert files.write(0, "stdout", f"no {number}\n") is None
    files.close()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"rank_0.log.1": "no 4\nno 5\n", "rank_0.log": "no 6\n"}


OPEN_MPI = """\
--------------------------------------------------------------------------
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process
--------------------------------------------------------------------------
\0[node1:00000] *** An error occurred in Socket closed
[node1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
\0
[node1:00007] Delaying for 1 seconds before aborting
[node1][[64294,0],0][/opal/mca/btl/tcp/btl_tcp_frag.c:127:mca_btl_tcp_frag_send] writev failed: gone (104)
"""
MPICH = """\
Abort(808036879) on node 0 (rank 0 in comm 0): Fatal error in internal_Recv: Other MPI error, error stack:
internal_Recv(127).............: MPI_Recv(buf=0x7f, count=1) failed
"""
OWN = """\
--------------------------------------------------------------------------
results of epoch 3
--------------------------------------------------------------------------
[node1:12] loaded
Aborting the second try
"""


@pytest.mark.parametrize("said", [OPEN_MPI, MPICH])
def test_what_an_mpi_says_of_lost_ranks_is_kept_and_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, said: str
) -> None:
    """It would stand before the first cause. It is the end of what the rank wrote, and in its file."""
    _, err, output, _ = printed(capsys, [(0, "stderr")], (0, said.encode()), files=LogFiles(tmp_path))
    assert err == "" and output.tail(0) == said.splitlines()
    assert (tmp_path / "rank_0.log").read_text() == said


def test_what_only_looks_like_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a rule is never followed by a second one."""
    rule = OWN.splitlines()[0]
    text = f"{OWN}{rule}\nMy report\n"
    _, err, *_ = printed(capsys, [(1, "stderr")], (0, text.encode()))
    assert err.splitlines() == [f"[1@node] {line}" for line in text.splitlines()]
