"""Many requests to `shardrun serve` while its ranks are killed: no answer may be wrong, and none missing.

    python benchmarks/soak.py [--requests 50000] [--kills 20] [--clients 16] [--ranks 2] [--seed 0]
        [--json FILE]

Clients of Python's own http.client ask a small model by the Open Inference Protocol, in JSON and binary in
turn, each for other inputs, and compare every answer with ONNX Runtime's. Meanwhile a rank is killed
(SIGKILL) again and again. A request that is refused (503 with Retry-After while ranks start again, 429) is
asked again after a pause, as clients do; one whose connection ends without an answer is lost. Printed at
each tenth: requests, refusals, restarts, and the memory (resident) of the process in front and of the
ranks. Ends with exit code 1 for a wrong or lost answer, or where the process in front has grown by more
than a fifth, and 16 MB, since the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import MB, bytes_of, parser_of, session_of, write_json
from serving_bodies import HEADER, as_bytes, as_json, first_output
from serving_peer_models import tiny
from serving_servers import started

VARIANTS = 128
TOLERANCE = 1e-5
PAUSE = 0.1
"""Seconds until a refused request is asked again."""
PATIENCE = 600.0
"""Seconds in which a request must have its answer, however often it is refused."""


@dataclass
class Tally:
    """What came of all requests so far; for all threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    kills: int = 0
    waits: list[float] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Requests that are over."""
        return self.right + len(self.wrong) + len(self.lost)


class Refused(Exception):  # noqa: N818 - it is asked again
    """An answer that says why there is none."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Unexplained(Exception):  # noqa: N818 - it counts as a lost answer
    """An answer that is neither one nor a reason."""


def resident(pid: int) -> float:
    """MB of a process; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return bytes_of(pid)["Rss"] / MB
    return 0.0


def ranks_of(pid: int) -> list[int]:
    """The ranks of a server on this host, as they call themselves."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            named = path.with_name("cmdline").read_bytes().startswith(b"shardrun rank")
            if int(fields[1]) == pid and fields[0] != "Z" and named:
                found.append(int(path.parent.name))
    return sorted(found)


@dataclass
class Soak:
    """All of it, but for the server. ``loads``: requests and the outputs that belong to them."""

    port: int
    front: int
    loads: Sequence[tuple[Any, np.ndarray]]
    requests: int
    kills: int
    clients: int
    random: random.Random
    tally: Tally = field(default_factory=Tally)
    _numbers: Callable[[], int] = field(init=False)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        count = itertools.count()
        self._numbers = lambda: next(count)

    def run(self) -> None:
        """Asks all, and kills."""
        threads = [threading.Thread(target=self._client) for _ in range(self.clients)]
        others = [threading.Thread(target=self._kill), threading.Thread(target=self._watch)]
        for thread in (*threads, *others):
            thread.start()
        for thread in threads:
            thread.join()
        self._over.set()
        for thread in others:
            thread.join()

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        while (number := self._numbers()) < self.requests:
            load, expected = self.loads[number % len(self.loads)]
            began = time.perf_counter()
            try:
                found = self._answer(connection, load)
            except Exception as error:
                connection.close()
                with self.tally.lock:
                    self.tally.lost.append(f"request {number}: {type(error).__name__}: {error}")
                continue
            error = float(np.abs(found - expected).max()) if found.shape == expected.shape else np.inf
            with self.tally.lock:
                self.tally.waits.append((time.perf_counter() - began) * 1e3)
                if error <= TOLERANCE * float(np.abs(expected).max()):
                    self.tally.right += 1
                else:
                    self.tally.wrong.append(f"request {number}: an error of {error:.2e}")
        connection.close()

    def _answer(self, connection: http.client.HTTPConnection, load: Any) -> np.ndarray:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._once(connection, load)
            except Refused as refusal:
                with self.tally.lock:
                    self.tally.refused[refusal.status] += 1
                if time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    def _once(self, connection: http.client.HTTPConnection, load: Any) -> np.ndarray:
        connection.request("POST", load.path, load.body, dict(load.headers))
        answer = connection.getresponse()
        data = answer.read()
        if answer.status == 200:
            return first_output(data, answer.headers.get(HEADER))
        if answer.status in {429, 503} and json.loads(data).get("error") and "Retry-After" in answer.headers:
            raise Refused(answer.status)
        raise Unexplained(f"status {answer.status}: {data[:200]!r}")

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        return False

    def _kill(self) -> None:
        """Kills one rank each time so many more requests are answered, and ranks are there."""
        for number in range(1, self.kills + 1):
            due = number * self.requests // (self.kills + 1)
            while self.tally.done < due or not self._ready():
                if self._over.wait(0.02):
                    return
            if found := ranks_of(self.front):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.random.choice(found), signal.SIGKILL)
                    self.tally.kills += 1

    def _watch(self) -> None:
        """Notes and shows the memory at each tenth."""
        for tenth in range(1, 11):
            while self.tally.done < tenth * self.requests // 10:
                if self._over.wait(0.05) and self.tally.done < tenth * self.requests // 10:
                    return
            until = time.monotonic() + 60
            while not self._ready() and time.monotonic() < until:  # ranks that are starting are not there yet
                time.sleep(0.1)
            ranks = [resident(pid) for pid in ranks_of(self.front)]
            found = {"front": resident(self.front), "ranks": sum(ranks), "processes": len(ranks)}
            self.tally.memory.append(found)
            told = ", ".join(f"{count} x {status}" for status, count in sorted(self.tally.refused.items()))
            print(
                f"{self.tally.done:7} requests, {self.tally.kills:3} kills, refused: {told or 'none'}; "
                f"in front {found['front']:.1f} MB, {len(ranks)} ranks {found['ranks']:.1f} MB",
                flush=True,
            )


def grown(memory: Sequence[dict[str, float]]) -> bool:
    """Whether the process in front has grown."""
    first, last = memory[0]["front"], memory[-1]["front"]
    return last > first * 1.2 and last > first + 16


def soaked(arguments: argparse.Namespace) -> Tally:
    """Starts the server and asks it."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.onnx"
        tiny(model)
        session = session_of(model)
        loads = []
        for variant in range(VARIANTS):
            rows = 1 + variant % 3
            x = np.random.default_rng([arguments.seed, variant]).normal(size=(rows, 256)).astype(np.float32)
            expected = session.run(None, {"x": x})[0].ravel()
            loads.append(((as_json if variant % 2 else as_bytes)("tiny", {"x": x}), expected))
        command = [
            sys.executable, "-m", "launcher.cli", "serve", str(model), "--name", "tiny", "--port", "PORT",
            "--ranks", str(arguments.ranks), "--threads", "1", "--launcher", "local",
            "--restart", f"on-failure:{max(1, 2 * arguments.kills)}",
        ]  # fmt: skip
        with started(command, "/v2/health/ready") as server:
            count, kills, seed = arguments.requests, arguments.kills, random.Random(arguments.seed)
            soak = Soak(server.port, server.process.pid, loads, count, kills, arguments.clients, seed)
            soak.run()
        return soak.tally


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks and reports."""
    numbers = {"requests": 50_000, "kills": 20, "clients": 16, "ranks": 2, "seed": 0}
    arguments = parser_of(__doc__, **numbers, json=Path).parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    began = time.perf_counter()
    tally = soaked(arguments)
    report = {
        "right": tally.right, "wrong": tally.wrong, "lost": tally.lost, "refused": dict(tally.refused),
        "kills": tally.kills, "memory": tally.memory, "seconds": time.perf_counter() - began,
        "waits": list(np.percentile(tally.waits or [0], (50, 99, 100))),
    }  # fmt: skip
    for line in (*tally.wrong[:10], *tally.lost[:10]):
        print(line)
    print(
        f"{tally.right} right, {len(tally.wrong)} wrong, {len(tally.lost)} lost, {tally.kills} kills, "
        f"{report['seconds']:.0f} s"
    )
    write_json(arguments.json, report)
    bad = tally.wrong or tally.lost or tally.kills < arguments.kills or grown(tally.memory)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
