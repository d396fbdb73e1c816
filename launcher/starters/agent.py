"""What runs on a host whose ranks are started over ssh: it starts them, and passes on what they print and how
each ended.

It says that it is here. Its input is one line of JSON, then the words ``TERM`` and ``KILL``, and orders for
`launcher.starters.agents.relay`; at its end, which comes when the launcher or the network is gone, every rank
is killed. So nothing secret is on a command line, and nothing outlives the launcher. Its output is frames: a
line of JSON, followed by as many bytes as that says.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO, TypedDict, cast

from launcher.starters.agents.relay import MOST_DATA, Relay
from ranks.common import sources
from ranks.common.processes import LOOK_SECONDS, Groups

FIRST_SECONDS = 120.0
"""In which it is told what to start. Where the network is cut before, its input never ends."""
_SIGNALS = {b"TERM": signal.SIGTERM, b"KILL": signal.SIGKILL}


class Asked(TypedDict):
    """What an agent is to start: ``program`` once for each of ``ranks``, which are their own variables."""

    folder: str
    environment: dict[str, str]
    ranks: list[dict[str, str]]
    program: list[str]


class _Ranks:
    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._left = Groups()

    def say(self, fields: Mapping[str, object], data: bytes = b"") -> None:
        """Sends one frame; where nobody listens any more, the ranks end."""
        head = json.dumps({**fields, "bytes": len(data)}).encode() + b"\n"
        try:
            with self._lock:
                self._output.write(head + data)
                self._output.flush()
        except (OSError, ValueError):
            self.signal(signal.SIGKILL)

    def start(self, asked: Asked) -> None:
        shared = {**sources.clean(), **asked["environment"]}
        # Without common files the launcher's folder need not be here, nor be of any use to the ranks.
        folder = asked["folder"] if Path(asked["folder"]).is_dir() else Path("~").expanduser()
        for variables in asked["ranks"]:
            rank = int(variables[sources.RANK])
            process = subprocess.Popen(
                asked["program"],
                env={**shared, **variables},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # what a rank starts can be ended with it
            )
            self._running[rank] = process

    def wait(self) -> None:
        """Passes on until every rank has ended."""
        with selectors.DefaultSelector() as selector:
            ends = {}
            for rank, process in self._running.items():
                for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                    selector.register(cast("IO[bytes]", stream), selectors.EVENT_READ, (rank, name))
                ends[os.pidfd_open(process.pid)] = rank
            for end, rank in ends.items():
                selector.register(end, selectors.EVENT_READ, (rank, ""))
            while ends or self._left:
                for key, _ in selector.select(LOOK_SECONDS if self._left else None):
                    rank, name = key.data
                    if name:
                        try:
                            data = os.read(key.fd, MOST_DATA)
                        except BlockingIOError:  # `_end` has just read it
                            continue
                        if data:
                            self.say({"rank": rank, "stream": name}, data)
                        else:
                            selector.unregister(key.fileobj)
                    else:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        del ends[key.fd]
                        self._end(rank)
                self._left.look(alone=not ends)

    def _end(self, rank: int) -> None:
        process = self._running[rank]
        self._left.end(process.pid, process.wait)
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            with contextlib.suppress(OSError, TypeError):
                while data := os.read(stream.fileno(), MOST_DATA):
                    self.say({"rank": rank, "stream": name}, data)
        self.say({"rank": rank, "code": process.returncode})

    def kill_groups(self) -> None:
        """Kills every rank and all that it has started; nobody has waited for one yet, so that its group's
        number cannot be another's."""
        for process in self._running.values():
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to every rank that runs; what they have started ends when they have."""
        for process in list(self._running.values()):
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, number)


def main() -> None:
    """Serves until its ranks have ended, or its input has."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ranks = _Ranks(output)
    ranks.say({"here": os.uname().nodename})
    if not select.select([0], [], [], FIRST_SECONDS)[0]:
        os._exit(1)
    first = sys.stdin.buffer.readline()
    if not first.endswith(b"\n"):  # the launcher has ended before it could ask
        os._exit(1)
    asked: Asked = json.loads(first)
    try:
        ranks.start(asked)
    except OSError as error:
        ranks.kill_groups()
        where = "" if error.filename is None else f"{error.filename}: "
        ranks.say({"problem": f"{where}{error.strerror}"})
        os._exit(1)
    ranks.say({"started": os.uname().nodename})
    relay = Relay(ranks.say)
    threading.Thread(target=_obey, args=(ranks, relay), daemon=True).start()
    ranks.wait()
    relay.wait()
    os._exit(0)


def _obey(ranks: _Ranks, relay: Relay) -> None:
    for line in sys.stdin.buffer:
        word = line.strip()
        if word in _SIGNALS:
            ranks.signal(_SIGNALS[word])
        else:
            with contextlib.suppress(ValueError, AttributeError, RecursionError):  # no order
                relay.obey(json.loads(word))
    relay.close()
    ranks.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
