"""Ranks of the local launcher as copies of a process that has imported what they need, instead of new ones.

To import that is most of what a small rank costs. A copy is a child of the process that starts it, with its
streams, folder, environment and signal mask, and ends in any way that a new process may. Where a new one
would not begin as the server of the copies did, as under a limit, it is a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import util
from typing import Any

from tests import rank_copies_server

ROOM = "x" * (1 << 14)
"""A variable of this size among those of a server has place for the environment of a copy."""
_READ_AT_THE_START = (
    *("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LANG", "LC_"),
    *("OMP_", "OPENBLAS_", "MKL_", "ORT_", "CUDA_"),
)
"""What the loader, Python and libraries read when a process starts, or when they are imported."""
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_STARTER = "shardrun ranks"
"""The thread in which `launcher.starters.local` starts ranks."""
_SET_ADOPTS, _GET_ADOPTS = 36, 37  # PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER: prctl(2)


class RankCopies:
    """Stands for `multiprocessing.util.spawnv_passfds`. One per process."""

    def __init__(self) -> None:
        self.wanted = True
        """Whether copies may be made; else all ranks are new processes."""
        self.new: Callable[..., int] = util.spawnv_passfds  # type: ignore[attr-defined]
        """Starts a new process."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._owner = -1
        self._began = _state()

    def install(self) -> None:
        """Has the ranks of this process be copies, of a server that begins with the first of them."""
        self._owner = os.getpid()
        util.spawnv_passfds = self.spawn  # type: ignore[attr-defined]

    def fork(self) -> dict[str, Any] | None:
        """The same with a copy of this process as the server, which has imported enough and has one thread.

        Returns again in each copy, with what that is to do."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            asked = rank_copies_server.serve(theirs)
            if asked is None:
                os._exit(0)
            return asked
        theirs.close()
        self.install()
        return None

    def spawn(self, path: bytes, command: Sequence[str], descriptors: Sequence[int]) -> int:
        """The process id of a copy, or of a new process, that does what ``command`` says."""
        rank = threading.current_thread().name == _STARTER and self._owner == os.getpid()
        if not (rank and self.wanted and _state() == self._began):
            return self.new(path, command, descriptors)
        words = list(command)
        at = words.index("-c")
        passed = sorted(map(int, descriptors))
        request = {
            "command": [os.fsdecode(path), *words[1:]],
            "text": words[at + 1],
            "arguments": words[at + 2 :],
            "descriptors": passed,
            "environ": dict(os.environ),
            "group": os.getpgid(0),
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        }
        message = json.dumps(request).encode()
        if len(message) > rank_copies_server.LONGEST:
            return self.new(path, command, descriptors)
        with self._lock, _adopting():
            asked = self._socket or self._serve([path, *words[1:at]])
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            try:
                socket.send_fds(asked, [message], [0, 1, 2, *passed, folder])
                answer = asked.recv(rank_copies_server.PID_BYTES)
            finally:
                os.close(folder)
        assert answer, "the server of the ranks' copies has ended"
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """Ends the server, but none of its copies; the next rank brings another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.wait()
            self._server = None

    def _serve(self, python: list[Any]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The blanks are room for a command, and then for the name of a rank.
            words = [*python, rank_copies_server.__file__, str(theirs.fileno()), " " * 256]
            null, number = subprocess.DEVNULL, theirs.fileno()
            environ = {**os.environ, "ROOM": ROOM}
            self._server = subprocess.Popen(words, env=environ, stdin=null, stdout=null, pass_fds=[number])
        self._socket = ours
        return ours


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile this process becomes the parent of what its descendants leave."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(_GET_ADOPTS, ctypes.byref(before), 0, 0, 0)
    prctl(_SET_ADOPTS, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_ADOPTS, before.value, 0, 0, 0)


def _state() -> Any:
    """What a new process would have of this one that a copy cannot be given."""
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    read = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_THE_START)}
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
    return limits, read, ignored, os.sched_getaffinity(0), [_is_open(number) for number in range(3)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


RANKS = RankCopies()
