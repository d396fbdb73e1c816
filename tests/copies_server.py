"""Starts programs in copies of a process that has imported what they need: `copies_server.py FD MODULE...`.

Whoever connects to the socket with that number gets a copy of this process, a server of its own until it
closes the connection; this one ends with its input. A server reads lines of JSON, each with a "number", and
answers each with that and another one: `{"command", "environ", "folder", "output", "errors", "leave",
"ranks"}` with the process id of a new copy that runs the program in a session of its own (with "ranks", its
ranks of the local launcher are copies of it as it begins), `{"pid", "seconds"}` with how that copy ended as
`subprocess.Popen` says it, or null where it has not. No server ever has a second thread. `PACKAGE.*` is a
package with all of its modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import socket
import struct
import sys
import time
import types
from typing import Any

from tests import rank_copies_server
from tests.rank_copies import RANKS

STEP_SECONDS = 0.01
LEFT_OUT = ("launcher.cli", "launcher.serving.")
"""The first is run itself, as `__main__`; the others bring servers, of which some dislike to be copied."""


def load(name: str) -> None:
    if name.startswith("torch"):
        from sharding.importers import torch_import

        torch_import.load(name)  # as all of ours get it
        return
    if not name.endswith(".*"):
        importlib.import_module(name)
        return
    package = importlib.import_module(name.removesuffix(".*"))
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(LEFT_OUT):
            with contextlib.suppress(ImportError):  # of a package that is not there
                importlib.import_module(found.name)


def ended(pid: int, seconds: float, codes: dict[int, int]) -> int | None:
    """The exit code, minus the signal's number where one ended the copy; None if it still runs. ``codes``:
    those of copies that have ended, for one that asks again."""
    end = time.monotonic() + seconds
    while pid not in codes:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            codes[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > end:
            return None
        else:
            time.sleep(STEP_SECONDS)
    return codes[pid]


def become(request: dict[str, Any], area: tuple[int, int]) -> None:
    """Make this copy what a new process would be: its input and output still lead to the server's client."""
    os.setsid()
    output, errors = (
        os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if request[name] else None
        for name in ("output", "errors")
    )
    assert output is not None
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((null, 0), (output, 1), (output if errors is None else errors, 2)):
        os.dup2(number, target)
    for number in {output, null, errors} - {None}:
        os.close(number)  # type: ignore[arg-type]
    os.chdir(request["folder"])
    rank_copies_server.take_environ(area, request["environ"])


def program(command: list[str]) -> None:
    """What `python COMMAND` does: a file, `-m MODULE` or `-c TEXT`, each with arguments."""
    kind, *rest = command
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()  # noqa: PTH109  # as Python does it
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main_module))
    else:
        sys.argv, sys.path[0] = command, os.path.dirname(kind)  # noqa: PTH120  # as Python does it
        runpy.run_path(kind, run_name="__main__")


def code_of(command: list[str]) -> int:
    """Does that, and says with which code the process ends then. Other exceptions end it as ever."""
    try:
        program(command)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # as Python does it
        return 1
    return 0


def settle() -> None:
    """When all is imported, and before the first copy."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert threads == 1, f"a copy would lack {threads - 1} threads"
    # A collector that looks at all that was imported would have each copy write to all of its pages.
    gc.collect()
    gc.freeze()


def is_ours(line: socket.socket) -> bool:
    """Whether who has connected is of the same user."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", found)[1] == os.getuid())


def serve(line: socket.socket) -> None:
    """Answers until nobody can ask any more, and then ends this process; in a copy, does what was asked for
    and returns."""
    from ranks.common.leaving import leave

    area = rank_copies_server.areas()["environ"]
    codes: dict[int, int] = {}
    line.sendall(b"ready\n")
    # What had been read ahead would be in every copy.
    with line.makefile("rb", buffering=0) as requests:
        while text := requests.readline():
            request = json.loads(text)
            if "pid" in request:
                answer = ended(request["pid"], request["seconds"], codes)
            elif (answer := os.fork()) == 0:
                requests.close()
                line.close()
                become(request, area)
                if request["ranks"] and "launcher.starters.local" in sys.modules:
                    rank = RANKS.fork()
                    if rank is not None:
                        rank_copies_server.program(rank)
                        return
                if not request["leave"]:
                    program(request["command"])
                    return
                leave(code_of(request["command"]))
            else:
                codes.pop(answer, None)  # of an earlier copy with this number
            line.sendall(f"{json.dumps([request['number'], answer])}\n".encode())
    os._exit(0)


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    os.dup2(2, 1)  # to nobody who reads it as something else
    for name in sys.argv[2:]:
        load(name)
    importlib.import_module("ranks.common.leaving")
    settle()
    begun: set[int] = set()
    while listener in select.select([0, listener], [], [])[0]:  # else its input has ended
        line, _ = listener.accept()
        if is_ours(line):
            if (server := os.fork()) == 0:
                listener.close()
                serve(line)
                return
            begun.add(server)
        line.close()
        begun -= {one for one in begun if os.waitpid(one, os.WNOHANG)[0]}
    os._exit(0)


if __name__ == "__main__":
    main()
