"""The control channel: only this job's ranks get in, and the launcher's end is a rank's end."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.group.control import Listener, Peer
from launcher.group.lobby import MOST, MOST_OF_ONE, Lobby
from ranks.errors import PeerLostError
from ranks.talk import wire
from ranks.talk.connect import EXIT_ORPHANED, ControlError, open_socket
from ranks.talk.control import Control
from ranks.talk.stream import Stream
from ranks.talk.wire import Kind, Message
from tests.launcher.processes import wait_until

ROOT = Path(__file__).resolve().parents[3]


SILENT = """
import socket, sys
from ranks.talk.connect import open_socket
held = [open_socket(sys.argv[1]) for _ in range(int(sys.argv[2]))]
print("connected", flush=True)
sys.stdin.read()
"""


class Recorder:
    """A listener whose callbacks are kept in a queue."""

    def __init__(self, world_size: int = 2, hosts: tuple[str, ...] = ()) -> None:
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.listener = Listener(
            world_size,
            hosts,
            lambda peer: self.events.put(("hello", peer)),
            lambda peer, message: self.events.put(("message", message)),
            lambda peer: self.events.put(("lost", peer.rank)),
            on_shortage=lambda error: self.events.put(("shortage", error)),
        )

    def next(self, kind: str) -> Any:
        found, value = self.events.get(timeout=20)
        assert found == kind
        return value

    def next_of(self, kind: str) -> Any:
        """The next event of a kind, past all others."""
        while (event := self.events.get(timeout=20))[0] != kind:
            pass
        return event[1]

    def quiet(self) -> bool:
        return self.events.empty()


@pytest.fixture(params=["unix", "tcp"])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    # A rank ends with its launcher: where a test fails, that would be the tests' own process.
    monkeypatch.setattr(Control, "_end", lambda self: None)
    recorder = Recorder(hosts=("127.0.0.1", "localhost") if request.param == "tcp" else ())
    assert recorder.listener.address.startswith(request.param + ":")
    yield recorder
    recorder.listener.close()
    assert wait_until(
        lambda: all(thread.name != "shardrun control" for thread in threading.enumerate()), 20
    )  # what notices the end later would find the real one


def hello(recorder: Recorder, **change: Any) -> Message:
    fields = {"job": recorder.listener.secret, "rank": 0, "world_size": 2, "pid": os.getpid(), "host": "h"}
    return Message(Kind.HELLO, {**fields, **change}, {})


def test_a_rank_and_its_launcher(recorder: Recorder) -> None:
    address, secret = recorder.listener.address, recorder.listener.secret
    control = Control.connect(address, secret, 1, 2, "host-of-rank-1")
    peer: Peer = recorder.next("hello")
    assert (peer.rank, peer.host, peer.pid) == (1, "host-of-rank-1", os.getpid())
    assert peer.stream.deadline is None  # from now on it may be silent for as long as it computes
    control.send(Kind.READY, {"a": 1}, {"x": np.arange(100_000)})
    ready: Message = recorder.next("message")
    assert ready.fields == {"a": 1} and np.array_equal(ready.tensors["x"], np.arange(100_000))
    peer.send(Kind.PREDICT, {"request": 7}, {"y": np.ones(50_000, np.float16)})
    asked = control.next()
    assert asked.fields == {"request": 7} and asked.tensors["y"].sum() == 50_000
    try:
        raise PeerLostError("rank 0 is gone", 0)
    except PeerLostError as error:
        control.report(error, "the frames")
    fields = recorder.next("message").fields
    assert (fields["type"], fields["message"]) == ("PeerLostError", "rank 0 is gone")
    assert fields["secondary"] is True and fields["expected"] is True
    assert fields["traceback"] == "the frames"
    control.report(ValueError("why" + "x" * 100_000), "x" * 100_000 + "the last frame")
    fields = recorder.next("message").fields
    assert fields["message"].startswith("why") and len(fields["message"]) == 64 << 10
    assert fields["traceback"].endswith("the last frame") and len(fields["traceback"]) == 64 << 10
    assert fields["secondary"] is False and fields["expected"] is False
    control.bye()
    assert recorder.next("message").kind is Kind.BYE
    control._stream.close()
    assert recorder.next("lost") == 1


def joined(recorder: Recorder) -> tuple[Control, Peer]:
    """Rank 0, and what the launcher has of it."""
    control = Control.connect(recorder.listener.address, recorder.listener.secret, 0, 2, "h")
    return control, recorder.next("hello")


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EIO, errno.ENOMEM, errno.ECONNRESET, errno.EHOSTUNREACH]
)
def test_only_a_connection_that_is_gone_is_taken_for_the_launchers_end(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What else goes wrong while a rank waits for a request, as in a handler of a signal, is the rank's."""
    control, peer = joined(recorder)

    def receive() -> Message:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(control._stream, "receive", receive)  # the listener is in the one before
        peer.send(Kind.PREDICT, {"request": 1})
        assert control.next().fields == {"request": 1}
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            control.next()
    control.bye()
    message: Message = recorder.next("message")
    gone = number in {errno.ECONNRESET, errno.EHOSTUNREACH}
    assert message.kind is (Kind.BYE if gone else Kind.ERROR)
    if not gone:
        assert os.strerror(number) in message.fields["message"] and not message.fields["secondary"]


def test_a_rank_that_is_idle_reads_by_itself(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    # To be woken by another thread takes a rank longer than to compute what is small.
    monkeypatch.setattr("ranks.talk.control._AT_WORK_SECONDS", 1.0)
    who, receive = [], Stream.receive

    def noted(self: Stream, **how: Any) -> Message:
        message = receive(self, **how)
        if message.kind is Kind.PREDICT:
            who.append(threading.current_thread().name)
        return message

    monkeypatch.setattr(Stream, "receive", noted)
    control, peer = joined(recorder)
    for number in range(20):
        peer.send(Kind.PREDICT, {"request": number})
        assert control.next().fields == {"request": number}
    own = threading.current_thread().name
    assert who.count(own) >= 15, who  # the first one is read by the thread that was there before


def test_a_rank_at_work_is_read_for(recorder: Recorder) -> None:
    control, peer = joined(recorder)
    for number in range(3):
        peer.send(Kind.PREDICT, {"request": number})
        assert control.next().fields == {"request": number}  # and works on it from now on
        beats = peer.beats
        peer.ping()
        assert wait_until(lambda before=beats: peer.beats > before, 20)
        peer.send(Kind.RESUME, {"request": number})
        peer.send(Kind.PREDICT, {"request": "ahead"})
        assert control.resumed(number)
        assert control.next().fields == {"request": "ahead"}
        peer.send(Kind.LIMIT, {"request": number, "most": 7 + number})
        assert wait_until(lambda now=number: control.limit_of(now, 1) == 7 + now, 20)
        threading.Timer(0.2, peer.send, (Kind.STATS, {})).start()  # it is idle for long before it comes
        assert control.next().kind is Kind.STATS


def test_much_that_comes_at_work_is_read_in_one_look(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ranks.talk.control._AT_WORK_SECONDS", 1.0)
    control, peer = joined(recorder)
    peer.send(Kind.PREDICT, {"request": 1})
    control.next()  # and it is at work from now on
    for number in range(100):
        peer.send(Kind.STATS, {"request": number})
    beats = peer.beats

    def answered() -> bool:
        peer.ping()  # unless so much lies there that it would have to wait
        return peer.beats > beats

    assert wait_until(answered, 20)
    assert [control.next().fields["request"] for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("end", [False, True])
def test_half_a_message_keeps_no_run_waiting(
    end: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run asks for its limit at each step; the rest may come late, or the launcher's end instead."""
    monkeypatch.setattr("ranks.talk.control._AT_WORK_SECONDS", 0.5)
    lost = threading.Event()
    monkeypatch.setattr(Control, "_end", lambda self: lost.set())
    control, peer = joined(recorder)
    peer.send(Kind.PREDICT, {"request": 1})
    control.next()
    frame = b"".join(wire.encode(Message(Kind.PREDICT, {"request": 2}, {"x": np.arange(3)}))[0])
    peer.stream.socket.sendall(frame[:30])
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(control.limit_of(1, 5)), daemon=True).start()
    assert found.get(timeout=20) == 5
    if end:
        peer.stream.socket.shutdown(socket.SHUT_WR)
        assert lost.wait(20)
    else:
        peer.stream.socket.sendall(frame[30:])
        assert control.next().tensors["x"].tolist() == [0, 1, 2]


class LateLock:
    """One that whoever waits for it gets late, as on a busy machine: after who asks in time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        while not (found := self._lock.acquire(blocking=False)) and blocking:
            time.sleep(0.01)
        return found

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_word_is_not_lost_between_two_that_read(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who has read it must not read on before the one that waits for it has it.
    monkeypatch.setattr("ranks.talk.control._AT_WORK_SECONDS", 0.0)
    begun = Control.__init__

    def begin(self: Control, sock: socket.socket) -> None:
        begun(self, sock)
        self._reading = LateLock()

    monkeypatch.setattr(Control, "__init__", begin)
    control, peer = joined(recorder)
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work() -> None:
        while True:
            number = control.next().fields["request"]
            time.sleep(0.02)  # at work: the other thread reads
            if number is None or not control.resumed(number):
                return
            heard.put(number)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for number in range(10):
        peer.send(Kind.PREDICT, {"request": number})
        time.sleep(0.05)
        peer.send(Kind.RESUME, {"request": number})
        assert heard.get(timeout=20) == number
    peer.send(Kind.PREDICT, {"request": None})
    thread.join(20)
    assert not thread.is_alive()


def test_a_rank_that_does_not_stop_is_ended(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main thread may be in a library that never comes back."""
    monkeypatch.setattr("ranks.talk.control._STOP_SECONDS", 0.01)
    ended = threading.Event()
    monkeypatch.setattr(Control, "_end", lambda self: ended.set())
    _, peer = joined(recorder)
    peer.send(Kind.STOP, {})
    assert ended.wait(20)


def test_the_end_of_a_launcher_is_noticed_at_work_and_at_rest(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Control, "_end", lambda self: ended.set())
    control, peer = joined(recorder)
    peer.send(Kind.PREDICT, {"request": 1})
    control.next()
    peer.stream.close()
    assert ended.wait(20)
    ended.clear()
    control, peer = (
        Control.connect(recorder.listener.address, recorder.listener.secret, 1, 2, "h"),
        recorder.next_of("hello"),
    )
    for number in range(2):
        peer.send(Kind.PREDICT, {"request": number})
        control.next()
    threading.Timer(0.2, peer.stream.close).start()
    with pytest.raises((wire.WireError, OSError)):
        control.next()
    assert ended.is_set()


def connected(recorder: Recorder) -> Stream:
    """A connection to the listener that waits for nothing longer than 20 s."""
    stream = Stream(open_socket(recorder.listener.address))
    stream.deadline = time.monotonic() + 20
    return stream


def assert_dropped(stream: Stream) -> None:
    """The listener closes the connection, neither admitting it nor leaving it open."""
    with pytest.raises((wire.PeerClosed, ConnectionError)):
        stream.receive()
    stream.close()


@pytest.mark.parametrize(
    "change",
    [
        {"job": "0" * 32},
        {"job": ""},
        {"job": None},
        {"job": ["x"]},
        {"job": "\N{SNOWMAN}"},
        {"rank": 2},
        {"rank": -1},
        {"rank": "0"},
        {"rank": True},
        {"rank": None},
        {"host": 5},
        {"host": "h" * 5000},
    ],
)
def test_strangers_are_dropped(recorder: Recorder, change: dict[str, Any]) -> None:
    stream = connected(recorder)
    stream.send(hello(recorder, **change))
    assert_dropped(stream)
    assert recorder.quiet()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        os.urandom(100_000),
        wire.PREFIX.pack(wire.MAGIC, 1, Kind.HELLO, 1 << 20, 0),
        wire.PREFIX.pack(wire.MAGIC, 1, Kind.HELLO, 10, 1 << 40),
        b"".join(bytes(part) for part in wire.encode(Message(Kind.READY, {}, {}))[0]),
    ],
)
def test_garbage_is_dropped(recorder: Recorder, data: bytes) -> None:
    with open_socket(recorder.listener.address) as sock:
        sock.settimeout(20)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        except OSError as error:  # dropped while we were still talking
            assert error.errno in {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}
    control = Control.connect(recorder.listener.address, recorder.listener.secret, 0, 2, "h")
    assert recorder.next("hello").rank == 0
    control.bye()


def test_a_rank_is_admitted_once(recorder: Recorder) -> None:
    first, second = connected(recorder), connected(recorder)
    first.send(hello(recorder))
    recorder.next("hello")
    second.send(hello(recorder))
    assert_dropped(second)
    assert recorder.quiet()
    first.close()


def test_another_user_is_dropped_even_with_the_secret() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    recorder = Recorder()
    said = b"".join(bytes(part) for part in wire.encode(hello(recorder))[0])
    code = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(20)
    sock.connect("\\0" + sys.argv[1])
    try:
        sock.sendall(bytes.fromhex(sys.argv[2]))
        print(sock.recv(1))
    except (BrokenPipeError, ConnectionResetError):  # dropped while we were still talking
        print(b"")
"""
    name = recorder.listener.address.removeprefix("unix:@")
    ended = subprocess.run(
        [sys.executable, "-c", code, name, said.hex()], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "b''\n"
    control = Control.connect(recorder.listener.address, recorder.listener.secret, 0, 2, "the-user's-own")
    assert recorder.next("hello").host == "the-user's-own" and recorder.quiet()
    control.bye()
    recorder.listener.close()


def test_closing_wakes_everyone(recorder: Recorder) -> None:
    stream = connected(recorder)
    stream.send(hello(recorder))
    recorder.next("hello")
    before = [t for t in threading.enumerate() if t.name in {"shardrun accept", "shardrun rank"}]
    assert len(before) >= 2
    recorder.listener.close()
    with pytest.raises(wire.PeerClosed):
        stream.receive()
    assert recorder.next("lost") == 0
    for thread in before:
        thread.join(20)
        assert not thread.is_alive()
    with pytest.raises(ControlError, match="cannot be reached"):
        open_socket(recorder.listener.address)
    stream.close()


@pytest.mark.parametrize(
    "address",
    ["", "unix:", "tcp:", "tcp:host", "tcp:host:port", "tcp::1", "http://x", "unix", "tcp:h:-1", "x" * 5000],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ControlError, match="SHARDRUN_CONTROL must be unix:PATH or tcp:HOST:PORT"):
        open_socket(address)


@pytest.mark.parametrize("address", ["unix:/nowhere/socket", "unix:@shardrun-nobody", "tcp:127.0.0.1:1"])
def test_addresses_where_nobody_listens(address: str) -> None:
    with pytest.raises(ControlError, match="The launcher cannot be reached at"):
        open_socket(address)


def boot(recorder: Recorder | None, *program: str, **environment: str) -> subprocess.Popen[str]:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHONPATH": str(ROOT)}
    if recorder is not None:
        variables |= {"SHARDRUN_CONTROL": recorder.listener.address, "SHARDRUN_JOB": recorder.listener.secret}
    return subprocess.Popen(
        [sys.executable, "-m", "ranks.boot", *program],
        env={**os.environ, **variables, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Each keeps the main thread busy in its own way when the launcher goes.
BUSY = {
    "sleeping": "time.sleep(60)",
    "computing": "while True: sum(range(1000))",
    "handling every exception": "while True:\n    try: time.sleep(60)\n    except BaseException: pass",
    "ignoring SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
}


@pytest.mark.parametrize("name", BUSY)
def test_the_launchers_end_is_the_ranks_end(tmp_path: Path, name: str) -> None:
    recorder = Recorder(1)
    script = tmp_path / "script.py"
    script.write_text("import signal, time\nprint('up', flush=True)\n" + BUSY[name])
    process = boot(recorder, "exec", str(script))
    try:
        recorder.next("hello")
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        recorder.listener.close()
        assert process.wait(5) == EXIT_ORPHANED
    finally:
        process.kill()
        process.communicate()


def test_scratch_of_a_dead_launcher_is_removed(tmp_path: Path) -> None:
    recorder = Recorder(1)
    scratch, mine = tmp_path / "shardrun-x", tmp_path / "mine"
    for folder in (scratch, mine):
        folder.mkdir()
        (folder / "file").write_text("x")
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(60)")
    for folder, rank_of in ((mine, recorder), (scratch, Recorder(1))):
        process = boot(rank_of, "exec", str(script), SHARDRUN_SCRATCH=str(folder))
        rank_of.next("hello")
        rank_of.listener.close()
        assert process.wait(5) == EXIT_ORPHANED
        process.communicate()
    assert mine.exists() and not scratch.exists()


def test_an_exception_is_reported_not_printed(tmp_path: Path) -> None:
    recorder = Recorder(1)
    script = tmp_path / "script.py"
    script.write_text("def deep():\n    raise KeyError('weights')\ndeep()\n")
    process = boot(recorder, "exec", str(script))
    recorder.next("hello")
    fields = recorder.next("message").fields
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (1, "", "")
    assert (fields["type"], fields["message"], fields["secondary"]) == ("KeyError", "'weights'", False)
    assert "in deep" in fields["traceback"]
    recorder.listener.close()


def test_without_a_launcher_it_is_printed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise KeyError('weights')\n")
    process = boot(None, "exec", str(script))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("Traceback") and errors.endswith("KeyError: 'weights'\n")


@pytest.mark.parametrize(
    ("program", "environment", "message"),
    [
        ((), {}, "usage: python -m ranks.boot"),
        (("exec",), {}, "usage: python -m ranks.boot"),
        (("fly", "x"), {}, "usage: python -m ranks.boot"),
        (("serve", "model.onnx"), {}, "is started by shardrun's launchers only"),
        (("exec", "nothing.py"), {}, "nothing.py"),
        (("exec", "x.py"), {"WORLD_SIZE": "many"}, "WORLD_SIZE"),
        (("exec", "x.py"), {"SHARDRUN_CONTROL": "nonsense"}, "SHARDRUN_CONTROL must be"),
        (("exec", "x.py"), {"SHARDRUN_CONTROL": "unix:@nobody"}, "The launcher cannot be reached"),
    ],
)
def test_wrong_use_is_one_sentence(
    program: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    process = boot(None, *program, **environment)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and output == ""
    assert errors.startswith("error: ") and message in errors and "Traceback" not in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "expected"), [("", 0), ("None", 0), ("0", 0), ("5", 5), ("256", 1), ("'why'", 1)]
)
def test_exit_codes_of_scripts(tmp_path: Path, code: str, expected: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.exit({code})\n")
    process = boot(None, "exec", str(script))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == expected
    assert errors == ("why\n" if "why" in code else "")


def test_a_killed_parent_takes_the_rank_with_it(tmp_path: Path) -> None:
    """Even one that cannot notice its control socket, as it holds the interpreter's lock for ever."""
    script = tmp_path / "script.py"
    script.write_text("import ctypes, os\nprint(os.getpid(), flush=True)\nctypes.PyDLL(None).sleep(60)\n")
    recorder = Recorder(1)
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "ranks.boot", "exec", {str(script)!r}])
time.sleep(60)
"""
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "PYTHONPATH": str(ROOT),
        "SHARDRUN_CONTROL": recorder.listener.address,
        "SHARDRUN_JOB": recorder.listener.secret,
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    rank = os.pidfd_open(pid)
    try:
        parent.send_signal(signal.SIGKILL)
        # The end of the rank, which holds the pipe too.
        assert select.select([parent.stdout], [], [], 20)[0] and parent.stdout.read() == ""
        parent.wait(20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
    recorder.next("hello")
    assert recorder.next("lost") == 0
    recorder.listener.close()


@pytest.mark.parametrize("where", ["this process", "another process", "ahead of us"])
def test_silent_connections_do_not_keep_ranks_out(recorder: Recorder, where: str) -> None:
    """More than there is room for; and such that connect while a rank does."""
    address, count = recorder.listener.address, 600
    silent: list[socket.socket] = []
    other = None
    if where == "this process":
        silent = [open_socket(address) for _ in range(count)]
    elif where == "another process":
        other = subprocess.Popen(
            [sys.executable, "-c", SILENT, address, str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert other.stdout is not None and other.stdout.readline() == "connected\n"
    try:
        ranks = []
        for rank in range(2):
            stream = Stream(open_socket(address))
            if where == "ahead of us":
                silent += [open_socket(address) for _ in range(MOST_OF_ONE - 1)]
            stream.send(hello(recorder, rank=rank))
            ranks.append(stream)
            assert recorder.next("hello").rank == rank
        if where == "this process":  # what came first has gone, by itself
            silent[0].settimeout(20)
            assert silent[0].recv(1) == b""
        silent += [open_socket(address) for _ in range(count)]
        for stream in ranks:  # who is known is not counted among those
            stream.send(Message(Kind.BYE, {"code": 0}, {}))
            assert recorder.next("message").kind is Kind.BYE
    finally:
        for sock in silent:
            sock.close()
        if other is not None:
            other.communicate("", timeout=20)


def test_one_origin_does_not_take_the_places_of_others() -> None:
    lobby = Lobby()
    pairs = [socket.socketpair() for _ in range(MOST + MOST_OF_ONE + 2)]
    try:
        for index, (mine, _) in enumerate(pairs[:MOST]):
            lobby.enter(mine, "many" if index < MOST_OF_ONE else index)
        lobby.enter(pairs[MOST][0], "one")  # the room is full: the oldest of those who have most goes
        for mine, _ in pairs[MOST + 1 : MOST + MOST_OF_ONE]:
            lobby.enter(mine, "many")
        gone = [index for index, (mine, _) in enumerate(pairs[: MOST + 1]) if not lobby.leave(mine)]
        assert gone == list(range(MOST_OF_ONE))
        assert pairs[0][1].recv(1) == b""
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_all_ranks_may_come_at_once() -> None:
    """From one host, before any of them could say who it is: none must go for another one."""
    size = 2 * MOST
    lobby = Lobby(size)
    pairs = [socket.socketpair() for _ in range(size)]
    try:
        for mine, _ in pairs:
            lobby.enter(mine, "host")
        assert all(lobby.leave(mine) for mine, _ in pairs) and not lobby.leave(pairs[0][0])
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_the_processes_above_ranks_have_places_too() -> None:
    """From one host all ranks of it, and as many keepers, before any of them could say who it is."""
    size = MOST_OF_ONE + 10
    recorder = Recorder(size, ("127.0.0.1", "localhost"))
    listener = recorder.listener
    streams: list[Stream] = []
    try:
        for _ in range(2 * size):
            streams.append(Stream(open_socket(listener.address)))
        assert wait_until(lambda: len(listener._lobby._waiting) == 2 * size, 20)
        for place, stream in enumerate(streams):
            fields = {"job": listener.secret, "rank": place % size, "world_size": size, "host": "h", "pid": 1}
            more = {"keeps": 1} if place < size else {}
            stream.send(Message(Kind.HELLO, {**fields, **more}, {}))
        assert sorted(recorder.next("hello").rank for _ in range(size)) == list(range(size))
    finally:
        for stream in streams:
            stream.close()
        listener.close()


def test_one_origin_has_so_many_places_and_no_more() -> None:
    lobby = Lobby()
    pairs = [socket.socketpair() for _ in range(MOST_OF_ONE + 1)]
    try:
        for mine, _ in pairs[:MOST_OF_ONE]:
            lobby.enter(mine, "many")
        pairs[0][1].setblocking(False)
        with pytest.raises(BlockingIOError):  # still open
            pairs[0][1].recv(1)
        lobby.enter(pairs[-1][0], "many")
        assert [lobby.leave(mine) for mine, _ in pairs] == [False] + [True] * MOST_OF_ONE
        assert pairs[0][1].recv(1) == b""
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_at_the_control_socket() -> None:
    """He is refused before he has a place, whatever he says."""
    recorder = Recorder()
    try:
        child = os.fork()
        if not child:
            os.setgid(65534)
            os.setuid(65534)
            stream = Stream(open_socket(recorder.listener.address))
            with contextlib.suppress(OSError):
                stream.send(hello(recorder))
            stream.socket.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                os._exit(len(stream.socket.recv(1)))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert recorder.quiet()
    finally:
        recorder.listener.close()
