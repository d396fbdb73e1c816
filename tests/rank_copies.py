"""Ranks of the local launcher as copies of a process that has imported what they need, instead of new ones.

To import that is most of what a small rank costs. A copy is a child of the process that starts it, with its
streams, folder, environment and signal mask, and ends in any way that a new process may. Where a new one
would not begin as the server of the copies did, as under a limit, it is a new one; so it is where the server
has ended. All copies of a server hash text alike, and have the same things at the same addresses: an order
that is taken from a set is the same in all of them. `tests.conftest` has some tests begin new ranks for that.
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
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import util
from typing import Any

from tests import rank_copies_server

ROOM = "x" * (1 << 14)
"""A variable of this size among those of a server has place for the environment of a copy."""
READ_AT_THE_START = (
    *("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LANG", "LC_"),
    *("OMP_", "OPENBLAS_", "MKL_", "ORT_", "CUDA_"),
)
"""What the loader, Python and libraries read when a process starts, or when they are imported."""
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_STARTER = "shardrun ranks"
"""The thread in which `launcher.starters.local` starts ranks."""
_TRACKER = "from multiprocessing.resource_tracker "
"""How the program begins that `multiprocessing` starts in the same thread, before its first process."""
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
        self._answers = 0
        """How many ranks the servers have made."""
        self._useless = False
        """Whether a server cannot begin."""
        self._owner = -1
        self._began = _state()

    def install(self) -> None:
        """Has the ranks of this process be copies, of a server that begins with the first of them."""
        self._owner = os.getpid()
        self._began = _state()  # tests.conftest has changed some of it since this was imported
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
        words = list(command)
        at = words.index("-c")
        rank = threading.current_thread().name == _STARTER and self._owner == os.getpid()
        rank = rank and not words[at + 1].startswith(_TRACKER)
        if not (rank and self.wanted and _state() == self._began):
            return self.new(path, command, descriptors)
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
        copy = None
        if len(message) <= rank_copies_server.LONGEST:
            with self._lock, _adopting() as adopts:
                if adopts and not self._useless:
                    copy = self._copy(message, passed, [path, *words[1:at]])
        return self.new(path, command, descriptors) if copy is None else copy

    def _copy(self, message: bytes, passed: Sequence[int], python: list[Any]) -> int | None:
        """What the server answers; None where it has ended, and then the next rank brings another. One that
        has ended before its first answer would do so again."""
        asked = self._socket or self._serve(python)
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            socket.send_fds(asked, [message], [0, 1, 2, *passed, folder])
            answer = asked.recv(rank_copies_server.PID_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        finally:
            os.close(folder)
        if answer:
            self._answers += 1
            return int.from_bytes(answer, "little")
        self._useless = not self._answers
        code = "" if self._server is None else f" with {self._server.wait()}"
        what = "this rank is a new process" if self._answers else "it made no rank: all are new processes"
        print(f"The server of the ranks' copies has ended{code}; {what}.", file=sys.stderr)
        self.close()
        return None

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
def _adopting() -> Iterator[bool]:
    """Meanwhile this process becomes the parent of what its descendants leave; false where the system, such
    as a sandbox, does not let it."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    if prctl(_GET_ADOPTS, ctypes.byref(before), 0, 0, 0) or prctl(_SET_ADOPTS, 1, 0, 0, 0):
        yield False
        return
    try:
        yield True
    finally:
        prctl(_SET_ADOPTS, before.value, 0, 0, 0)


def _state() -> Any:
    """What a new process would have of this one that a copy cannot be given."""
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    read = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_THE_START)}
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
    return limits, read, ignored, os.sched_getaffinity(0), [_is_open(number) for number in range(3)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


RANKS = RankCopies()
