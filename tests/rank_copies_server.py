"""Makes ranks of the local launcher as copies of a process that has imported what a rank imports.

`rank_copies_server.py NUMBER ROOM` answers each request on the socket with that number, which comes with
descriptors, by the process id of a new copy. It ends with its socket, and never has a second thread.
`tests/rank_copies.py` asks it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LONGEST = 1 << 17
"""Bytes of a request."""
PID_BYTES = 8
_MOST_DESCRIPTORS = 200
_STREAMS = 3
_AREAS = {"command": (47, 48), "environ": (49, 50)}
"""Where they lie in memory: fields of /proc/PID/stat, proc(5), counted from 0."""


def areas() -> dict[str, tuple[int, int]]:
    """Where the kernel reads the command line and the environment of this process, when others ask for it."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    return {name: (int(fields[start - 2]), int(fields[end - 2])) for name, (start, end) in _AREAS.items()}


def tell(area: tuple[int, int], texts: Iterable[str]) -> None:
    """Has the kernel say these instead, as far as there is room."""
    room = area[1] - area[0]
    assert 0 < area[0] < area[1], "the kernel does not tell where they are"
    found = b"\0".join(os.fsencode(text) for text in texts)
    ctypes.memmove(area[0], found[: room - 1].ljust(room, b"\0"), room)


def take_environ(area: tuple[int, int], environ: dict[str, str]) -> None:
    """Gives this process an environment, also as others see it."""
    os.environ.clear()
    os.environ.update(environ)
    tell(area, (f"{name}={value}" for name, value in environ.items()))


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Answers until nobody can ask any more, and returns None; in a copy, returns what was asked for."""
    found = areas()
    os.setpgid(0, 0)  # a signal to the group of who asks is not for the server
    while True:
        message, descriptors, *_ = socket.recv_fds(asked, LONGEST, _MOST_DESCRIPTORS)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        reader, writer = os.pipe()
        if _forked_for_who_adopts():
            asked.close()
            os.close(reader)
            become(request, [*descriptors, writer], found)
            return request
        for descriptor in (*descriptors, writer):
            os.close(descriptor)
        asked.send(os.read(reader, PID_BYTES))
        os.close(reader)


def _forked_for_who_adopts() -> bool:
    """Forks a process whose parent has ended: the nearest ancestor that adopts becomes its parent, and who
    asks adopts meanwhile.

    Only then it may join another group. The kernel sends SIGHUP to a group in which something stands still
    and that nobody looks after, when a process of another group ends that has a child in it.
    """
    waiting, begin = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        os.close(begin)
        os.read(waiting, 1)  # nothing comes; it is closed
        os.close(waiting)
        return True
    os.close(waiting)
    os.waitpid(between, 0)
    os.close(begin)
    return False


def become(request: dict[str, Any], descriptors: list[int], found: dict[str, tuple[int, int]]) -> None:
    """Make this copy what a new process would be, and then tell the server's pipe, the last descriptor."""
    os.setpgid(0, request["group"])
    targets = [*range(_STREAMS), *request["descriptors"]]
    moved = []
    for number in descriptors:  # to where none is in the way of another
        moved.append(fcntl.fcntl(number, fcntl.F_DUPFD, max(targets) + 1))
        os.close(number)
    *moved, folder, told = moved
    os.fchdir(folder)
    os.close(folder)
    for number, target in zip(moved, targets, strict=True):
        os.dup2(number, target)
        os.close(number)
    take_environ(found["environ"], request["environ"])
    tell(found["command"], request["command"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.write(told, os.getpid().to_bytes(PID_BYTES, "little"))
    os.close(told)


def program(request: dict[str, Any]) -> None:
    """What `python -c TEXT ARGUMENT...` does."""
    sys.argv = ["-c", *request["arguments"]]
    sys.modules["__main__"] = main_module = types.ModuleType("__main__")
    exec(compile(request["text"], "<string>", "exec"), vars(main_module))


def main() -> None:
    sys.path[0] = str(Path(__file__).parents[1])
    from tests.copies_server import load, settle

    asked = socket.socket(fileno=int(sys.argv[1]))
    load("ranks.*")
    settle()
    request = serve(asked)
    if request is not None:
        program(request)


if __name__ == "__main__":
    main()
