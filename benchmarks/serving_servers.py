"""Servers as processes, for benchmarks/serving.py and benchmarks/soak.py: their start, and what they use."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import HERE, ROOT, Asked

READY_SECONDS = 240.0


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def first(root: int) -> None:
    """Has a process and all below it go before ordinary processes, as on a machine at rest, and before those
    below it, which wake it."""
    for pid in used_below(root):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                priority = os.sched_param(2 if pid == root else 1)
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, priority)


def used_below(root: int) -> dict[int, float]:
    """Processor seconds of a process and of all below it."""
    below, tick = {root}, os.sysconf("SC_CLK_TCK")
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in stats.items() if parent in below} - below
        below, grown = below | more, bool(more)
    return {pid: stats[pid][1] / tick for pid in below & stats.keys()}


@dataclass
class Server(Asked):
    """A process that serves, on a port of its own or, with port 0, by its standard input."""

    port: int = 0
    spins: bool = False
    """Whether it uses processors while nobody asks it: it is stopped meanwhile."""
    grpc: int = 0
    """Its port for gRPC."""

    def told(self, number: signal.Signals) -> None:
        """Sends a signal to all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    ready: str | None,
    *,
    spins: bool = False,
    env: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Iterator[Server]:
    """A contestant that answers. ``command``: PORT and GRPC in it become its ports; ``ready``: the path that
    says 200 when it answers; without one it says "ready" on standard output; ``root``: of this project."""
    port, grpc = (0, 0) if ready is None else (free_port(), free_port())
    words = [word.replace("PORT", str(port)).replace("GRPC", str(grpc)) for word in command]
    path = f"{root}:{HERE}"
    more = {key: value.replace("PORT", str(port)) for key, value in (env or {}).items()}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE if ready is None else said, stderr=said,
            text=True, start_new_session=True, cwd=root, env={**os.environ, "PYTHONPATH": path, **more},
        )  # fmt: skip
        server = Server(str(words), process, port=port, spins=spins, grpc=grpc)
        try:
            try:
                _until_ready(server, ready)
                yield server
            except SystemExit:
                said.seek(0)
                print(said.read()[-3000:], file=sys.stderr)
                raise
        finally:
            server.told(signal.SIGCONT)
            server.told(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            server.told(signal.SIGKILL)
            process.communicate()


def _until_ready(server: Server, path: str | None) -> None:
    if path is None:
        while server.line().strip() != "ready":
            pass
        return
    until = time.monotonic() + READY_SECONDS
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        if server.process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{server.process.args} does not answer (exit code {server.process.poll()}).")
        time.sleep(0.2)
