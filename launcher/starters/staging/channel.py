"""What leads to the process that receives files on a host: the input and output of what started it there, or
a connection that it makes to this one, which it opens with a secret that nobody else knows."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import subprocess
import threading
import time
from typing import IO

from launcher.errors import LaunchError
from launcher.job.ports import listen_tcp
from launcher.starters import cause
from launcher.starters.base import Launcher
from ranks.common.settings import CONTROL, JOB
from ranks.talk import unix
from ranks.talk.connect import tune_tcp
from sharding.common.limits import shortage

_END_SECONDS = 2.0
_NAP_SECONDS = 0.1
_HELLO_SECONDS = 10.0
_LONGEST_LINE = 1 << 16
_KEPT_LINES = 20


class Channel:
    """One process on a host, and what starts it. ``printed``: the last lines that this wrote as errors."""

    def __init__(self, launcher: Launcher, host: str, module: str) -> None:
        """Starts it; raises `LaunchError`."""
        self.printed: list[str] = []
        self._open: list[IO[bytes] | socket.socket] = []
        self._door: socket.socket | None = None
        self._secret = secrets.token_hex(16)
        told = {}
        if not launcher.input_arrives:
            self._door, address = listen_tcp([host])
            self._open.append(self._door)
            told = {CONTROL.name: address, JOB.name: self._secret}
        try:
            command, environ = launcher.on_host(host, module, told)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, LaunchError) as error:
            self._close()
            raise _not_started(launcher, error) from None
        self._collector = threading.Thread(target=self._collect, daemon=True)
        try:
            self._collector.start()
        except RuntimeError as error:
            with self._process:
                self._process.kill()
            self._close()
            raise _not_started(launcher, error) from None

    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """To write to the process, and to read from it. Raises `OSError` where it ends before it has
        connected."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._door is None:
            return self._process.stdin, self._process.stdout
        while True:
            while not unix.readable(self._door.fileno(), _NAP_SECONDS):
                if self._process.poll() is not None:
                    raise ConnectionError
            sock, _ = self._door.accept()
            if self._knows_the_secret(sock):
                break
            sock.close()
        self._open.append(sock)
        self._door.close()  # nobody else is to come
        return sock.makefile("wb"), sock.makefile("rb")

    def _knows_the_secret(self, sock: socket.socket) -> bool:
        expected = self._secret.encode() + b"\n"
        said = b""
        deadline = time.monotonic() + _HELLO_SECONDS
        with contextlib.suppress(OSError):
            while len(said) < len(expected) and (left := deadline - time.monotonic()) > 0:
                sock.settimeout(left)
                part = sock.recv(len(expected) - len(said))
                if not part:
                    return False
                said += part
            tune_tcp(sock)
            sock.settimeout(None)
        return hmac.compare_digest(said, expected)

    def _collect(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while line := stream.readline(_LONGEST_LINE):
                self.printed = [*self.printed[1 - _KEPT_LINES :], line.decode(errors="replace").rstrip()]

    def code(self) -> int | None:
        """How what started the process ended; None where it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._collector.join(_END_SECONDS)
        return self._process.returncode

    def end(self, *, well: bool) -> None:
        """Ends it. ``well``: the process is done, and ends by itself."""
        if well:
            self.code()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._open += [self._process.stdin, self._process.stdout]
        self._close()

    def _close(self) -> None:
        for stream in self._open:
            with contextlib.suppress(OSError, ValueError):
                if isinstance(stream, socket.socket):
                    stream.shutdown(socket.SHUT_RDWR)  # a thread may be reading from it
            if not isinstance(stream, socket.socket) and stream is self._process.stdout:
                continue  # the thread that reads it closes it
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def _not_started(launcher: Launcher, error: Exception) -> LaunchError:
    if isinstance(error, LaunchError):
        return error
    return (
        cause.shortage(error)
        if shortage(error)
        else LaunchError(f"{launcher.name} cannot be started: {error}.")
    )
