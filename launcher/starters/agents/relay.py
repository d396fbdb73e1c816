"""An agent's connections to further hosts, which the launcher has it make: the branches of a tree.

A line of the agent's input names a connection by a number, ``to``, and opens it (``run``: the words of a
command), passes a ``line`` on to it, or hangs up (``end``). What comes back is in frames with the number as
``from``: of its output (``stream``) or of its end (``code``). Nothing here reads what is passed on.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, cast

MOST_DATA = 64 << 10
"""Bytes of one frame."""
HANG_UP_SECONDS = 2.0
"""After which a connection is killed that has been hung up."""
NOT_STARTED = 127

Say = Callable[[Mapping[str, object], bytes], None]


class Relay:
    """The connections of one agent. ``say`` sends a frame."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._routes: dict[int, _Route] = {}
        self._changed = threading.Condition()
        self._closed = False

    def obey(self, order: Mapping[str, object]) -> None:
        """Does what a line of the agent's input asks for; waits for nobody."""
        number, run, line = order.get("to"), order.get("run"), order.get("line")
        if type(number) is not int:
            return
        with self._changed:
            route = self._routes.get(number)
            if isinstance(run, list) and route is None and not self._closed:
                self._open(number, [str(word) for word in run])
                return
        if route is not None and isinstance(line, str):
            route.pass_on(line.encode())
        elif route is not None and order.get("end"):
            route.hang_up()

    def _open(self, number: int, words: list[str]) -> None:
        self._routes[number] = _Route(number, words, self._say, self._over)
        try:
            self._routes[number].start()
        except RuntimeError as error:  # no more threads
            self._say({"from": number, "stream": "stderr"}, f"{error}\n".encode())
            self._say({"from": number, "code": NOT_STARTED}, b"")
            del self._routes[number]

    def _over(self, number: int) -> None:
        with self._changed:
            self._routes.pop(number, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Hangs up all of them, and makes no more."""
        with self._changed:
            self._closed = True
            routes = list(self._routes.values())
        for route in routes:
            route.hang_up()

    def wait(self) -> None:
        """Blocks until none is left; makes no more after that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._routes)
            self._closed = True


class _Route:
    """One connection. Each of its streams has a thread, so that a host that takes nothing holds up no
    other."""

    def __init__(self, number: int, words: list[str], say: Say, over: Callable[[int], None]) -> None:
        self._number, self._words, self._say, self._over = number, words, say, over
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hung_up = threading.Event()

    def start(self) -> None:
        """Has it made. Raises `RuntimeError` where no thread can be had."""
        threading.Thread(target=self._work, daemon=True).start()

    def pass_on(self, line: bytes) -> None:
        """Sends it on, after those before it."""
        self._lines.put(line)

    def hang_up(self) -> None:
        """Ends its input; kills it where that does not end it."""
        self._hung_up.set()
        self._lines.put(None)

    def _work(self) -> None:
        code = NOT_STARTED
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._tell("stderr", f"{self._words[:1]}: {error.strerror}\n".encode())
        else:
            code = self._serve(process)
        self._say({"from": self._number, "code": code}, b"")
        self._over(self._number)

    def _serve(self, process: subprocess.Popen[bytes]) -> int:
        own = (
            (self._write, (cast("IO[bytes]", process.stdin),)),
            (self._read, ("stderr", cast("IO[bytes]", process.stderr))),
            (self._end_late, (process,)),
        )
        threads = [threading.Thread(target=target, args=words, daemon=True) for target, words in own]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # no more threads: it could not be ended
            process.kill()
        self._read("stdout", cast("IO[bytes]", process.stdout))
        code = process.wait()
        if threads[1].ident is not None:
            threads[1].join(HANG_UP_SECONDS)  # what it has started may keep that open
        self.hang_up()  # which ends the threads
        return code

    def _tell(self, name: str, data: bytes) -> None:
        self._say({"from": self._number, "stream": name}, data)

    def _read(self, name: str, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            while data := stream.read1(MOST_DATA):  # type: ignore[attr-defined]
                self._tell(name, data)

    def _write(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (line := self._lines.get()) is not None:
                stream.write(line)
                stream.flush()
        with contextlib.suppress(OSError, ValueError):
            stream.close()

    def _end_late(self, process: subprocess.Popen[bytes]) -> None:
        self._hung_up.wait()
        try:
            process.wait(HANG_UP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
