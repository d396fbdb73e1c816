"""Programs of Python in copies of a process that has imported what they need, instead of in new ones.

To import that takes most of the time of many small programs. What Python and the loader read when a process
starts, such as LD_LIBRARY_PATH, is in a copy as its server found it: where a program is to have it otherwise,
it gets a new process. Workers of one run may share the server that imports; each has a copy of it that makes
its copies. These descend from who needs them only where they do not share it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tests.rank_copies import RANKS, READ_AT_THE_START, ROOM

ROOT = Path(__file__).resolve().parents[1]
SERVER = Path(__file__).with_name("copies_server.py")
_READ_AT_THE_START = ("LD_", "PYTHON")
_LEFT_SECONDS = 5.0


class Copies:
    """The server that starts them, which has imported ``modules`` in an environment; ends with the tests."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str], *, shared: bool = False) -> None:
        """``shared``: with the other workers of the run."""
        variables = {**environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "ROOM": ROOM}
        self._read = _read_at_the_start(variables)
        self._asked = 0
        self._server: subprocess.Popen[bytes] | None = None
        """The server, where it is this process that has begun it."""
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") if shared else None
        address = _address(run or secrets.token_hex(16), modules, variables)
        self._line, self._answers = self._joined(address, modules, variables)
        atexit.register(self.close)

    def _joined(
        self, address: str, modules: Sequence[str], variables: dict[str, str]
    ) -> tuple[socket.socket, BinaryIO]:
        """A connection to the server there, and what comes from it; begins one where there is none."""
        while True:
            line = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(ConnectionError):
                line.connect(address)
                answers = line.makefile("rb")
                if answers.readline():
                    return line, answers
            line.close()
            # Else the server of another worker has just ended, or there is none.
            assert self._server is None, f"the server ended with {self._server.wait()}"
            with socket.socket(socket.AF_UNIX) as listener:
                try:
                    listener.bind(address)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    time.sleep(0.01)  # another worker begins it
                    continue
                listener.listen()
                self._server = subprocess.Popen(
                    [sys.executable, str(SERVER), str(listener.fileno()), *modules],
                    env=variables, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
                )  # fmt: skip

    def start(
        self,
        command: Sequence[object],
        environ: Mapping[str, str],
        *,
        output: Path,
        errors: Path | None = None,
        folder: Path | None = None,
        leave: bool = False,
    ) -> Copy:
        """A copy that does what ``python COMMAND`` would, its output in files; errors with the output where
        they have no file of their own. ``leave``: it ends without taking apart what was imported, which
        takes longer than some programs."""
        pid = self.ask(
            command=[str(word) for word in command],
            environ=dict(environ),
            folder=str(folder or Path.cwd()),
            output=str(output),
            errors=None if errors is None else str(errors),
            leave=leave,
            ranks=RANKS.wanted,
        )
        assert pid is not None
        return Copy(self, pid, output, errors)

    def popen(
        self, command: Sequence[object], environ: Mapping[str, str], folder: Path
    ) -> Copy | subprocess.Popen[str]:
        """A copy, or a new process where the environment asks for one, whose output `communicate` gives.

        To take apart what was imported costs a copy more than many a program does: it leaves without, but
        in tests whose ranks are new processes, which are about ends, or drawn."""
        if _read_at_the_start(environ) != self._read:
            words = [sys.executable, *map(str, command)]
            pipe = subprocess.PIPE
            return subprocess.Popen(
                words, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
            )
        place = tempfile.TemporaryDirectory()
        output, errors = Path(place.name, "output"), Path(place.name, "errors")
        made = self.start(command, environ, output=output, errors=errors, folder=folder, leave=RANKS.wanted)
        made.place = place
        return made

    def run(
        self, command: Sequence[object], environ: Mapping[str, str], folder: Path, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end, as `subprocess.run` does it."""
        made = self.popen(command, environ, folder)
        try:
            output, errors = made.communicate(timeout=seconds)
        except BaseException:
            made.kill()
            made.wait()
            raise
        return subprocess.CompletedProcess([str(word) for word in command], made.wait(), output, errors)

    def ask(self, **request: Any) -> int | None:
        self._asked += 1
        line = json.dumps({"number": self._asked, **request})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._line.sendall(f"{line}\n".encode())
        while True:
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = self._answers.readline()
            assert answer, "the server ended"
            number, found = json.loads(answer)
            if number == self._asked:  # else it is for one that was interrupted, as by a time-out
                value: int | None = found
                return value

    def close(self) -> None:
        """Ends this process's copy of the server, and the server where this has begun it; that of another
        worker goes on as long as that."""
        with contextlib.suppress(OSError):  # it is closed, or the other end is
            self._line.shutdown(socket.SHUT_WR)
        self._answers.close()
        self._line.close()
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait(_LEFT_SECONDS)


def _address(run: str, modules: Sequence[str], variables: Mapping[str, str]) -> str:
    """The same in a run, in no file system, for what is imported and read alike."""
    read = {name: value for name, value in sorted(variables.items()) if name.startswith(READ_AT_THE_START)}
    key = hashlib.sha256(json.dumps([run, sys.executable, [*modules], read]).encode()).hexdigest()
    return f"\0shardrun-test-copies-{key}"


class Copy:
    """A process that the server started, with what `subprocess.Popen` has of it."""

    def __init__(self, server: Copies, pid: int, output: Path, errors: Path | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.place: tempfile.TemporaryDirectory[str] | None = None
        self._server, self._output, self._errors = server, output, errors

    def wait(self, timeout: float = 60) -> int:
        if self.returncode is None:
            self.returncode = self._server.ask(pid=self.pid, seconds=timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Its output and its errors. Fails where it leaves something behind that it has forked."""
        self.wait(timeout)
        if self._left():
            self._kill_group()
            raise AssertionError(f"process {self.pid} left a process behind that it had forked")
        return self._output.read_text(), "" if self._errors is None else self._errors.read_text()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _left(self) -> bool:
        """Whether something that it has forked is still there some seconds after its end. Another program,
        which has its environment, is the test's to look for."""
        end = time.monotonic() + _LEFT_SECONDS
        while (left := self._forked()) and time.monotonic() < end:
            time.sleep(0.02)
        return left

    def _forked(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                group = (entry / "stat").read_text().rpartition(")")[2].split()[2]
                if int(group) == self.pid and str(SERVER) in (entry / "cmdline").read_text():
                    return True
        return False


def _read_at_the_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_THE_START)}
