"""What a job of many ranks costs the launcher, without the machines for it.

    python benchmarks/scale.py [--ranks 64 256 1024] [--lines 200] [--hosts 64 128 256 512] [--delay 0.3]
                               [--tables 512 4096] [--json FILE]

The ranks are fake: one process holds the control connections of all, and the pipes that each would print to.
The launcher's side is the real one (`launcher.group.watch.Job`). For each number of ranks it prints the
seconds until all have said hello and are ready, the launcher's processor time and memory for each of them,
lines per second where all ranks print at once (to a file), and the seconds until all have ended.

Then, for so many hosts, the seconds until all agents of the ssh launcher have started, where a connection
takes `--delay` seconds: each from here, and as a tree, in which those that are there reach others. The
connections are shells that wait; the agents of the tree that reach others are threads of this process, with
the code that runs on a host.

Then, for tables of so many ranks, eight to a host: seconds and bytes of a rank table, written, read and
merged, and of a slice folder's manifest; of what each rank makes of its mesh; and of the whole plan of a
small model on that many hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import bytes_of, parser_of, write_json

from launcher.group.watch import Job
from launcher.job.rank_table import RankTable, make_rank_table, merge_rank_tables
from launcher.starters.agent import Asked
from launcher.starters.agents import fan_out
from launcher.starters.agents.connection import Host, Process
from launcher.starters.agents.handle import AgentsHandle
from launcher.starters.agents.relay import Relay
from launcher.starters.base import Ended, Handle, Launcher, Pipe
from ranks.common.settings import CONTROL, JOB
from ranks.talk import wire
from ranks.talk.control import open_socket
from ranks.talk.stream import Stream
from sharding.common.documents import parse
from sharding.common.rank_table import parse_rank_table
from sharding.slices.manifest import FileEntry, Manifest, RankEntry, WeightEntry, parse_manifest
from sharding.slices.mesh import AXES, Mesh

SECONDS = 300


def many_ranks(first_pipe: int, size: int, lines: int) -> None:
    """The fake process: hello and READY of each rank, its lines at a line of input, then BYE."""
    streams = []
    for rank in range(size):
        stream = Stream(open_socket(os.environ[CONTROL.name]))
        fields = {"job": os.environ[JOB.name], "rank": rank, "world_size": size}
        stream.send(wire.Message(wire.Kind.HELLO, {**fields, "pid": os.getpid(), "host": "fake"}, {}))
        streams.append(stream)
    for stream in streams:
        stream.send(wire.Message(wire.Kind.READY, {"buffers": {}}, {}))
    sys.stdin.readline()
    line = b"x" * 79 + b"\n"
    for _ in range(lines):
        for rank in range(size):
            os.write(first_pipe + rank, line)
    sys.stdin.readline()
    for stream in streams:
        stream.send(wire.Message(wire.Kind.BYE, {}, {}))


class FakeHandle(Handle):
    """The fake process, in which every rank ends when it does."""

    def __init__(self, size: int, lines: int, environment: Mapping[str, str]) -> None:
        super().__init__()
        first = 1000 + 2 * size
        writers = []
        for rank in range(size):
            reader, writer = os.pipe()
            self.pipes.append(Pipe(reader, rank, "stderr"))
            os.dup2(writer, first + rank, inheritable=True)
            os.close(writer)
            writers.append(first + rank)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--fake", str(first), str(size), str(lines)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            close_fds=False,
        )
        for writer in writers:
            os.close(writer)
        self._size = size
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        code = self.process.wait()
        for rank in range(self._size):
            self._ended.put(Ended(rank, code))
        self._ended.put(None)

    def go_on(self) -> None:
        """Has the fake ranks take their next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


class FakeLauncher(Launcher):
    """Starts the fake process."""

    name = "fake"

    def __init__(self, lines: int) -> None:
        self._lines = lines

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> FakeHandle:
        self.handle = FakeHandle(world_size, self._lines, environment)
        return self.handle


def of_job(size: int, lines: int) -> dict[str, float]:
    """What one job costs this process."""
    before, cpu, began = bytes_of()["Rss"], time.process_time(), time.perf_counter()
    launcher = FakeLauncher(lines)
    job = Job(launcher, ["serve", "fake"], size, environment={})
    job.wait_for(lambda: len(job.ready) == size, SECONDS, "not ready")
    ready, used, held = time.perf_counter() - began, time.process_time() - cpu, bytes_of()["Rss"] - before
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stderr(Counting(nothing, size * lines)) as out,
    ):
        cpu, began = time.process_time(), time.perf_counter()
        launcher.handle.go_on()
        assert out.done.wait(SECONDS)
        printing, printing_cpu = time.perf_counter() - began, time.process_time() - cpu
    began, cpu = time.perf_counter(), time.process_time()
    launcher.handle.go_on()
    job.wait()
    ending, ending_cpu = time.perf_counter() - began, time.process_time() - cpu
    job.close()
    return {
        "ranks": size,
        "ready s": ready,
        "ready cpu ms/rank": used / size * 1e3,
        "KB/rank": held / size / 1e3,
        "lines/s": size * lines / printing,
        "cpu us/line": printing_cpu / (size * lines) * 1e6,
        "end s": ending,
        "end cpu ms/rank": ending_cpu / size * 1e3,
    }


class Counting:
    """A stream that says when so many lines have been written to it."""

    def __init__(self, stream: Any, expected: int) -> None:
        self._stream, self._left = stream, expected
        self.done = threading.Event()

    def write(self, text: str) -> int:
        self._left -= text.count("\n")
        if self._left <= 0:
            self.done.set()
        return int(self._stream.write(text))

    def flush(self) -> None:
        self._stream.flush()


SPEAKING = """
read -r asked
sleep "$1"
printf '{"started": "h", "bytes": 0}\\n{"rank": 0, "code": 0, "bytes": 0}\\n'
"""
BEYOND = f"""
sleep "$1"
printf '{{"here": "h", "bytes": 0}}\\n'
set -- 0
{SPEAKING}
"""


class Reaching(Process):
    """A shell that takes as long as a connection, and then a thread that speaks as an agent, which reaches
    further hosts until it is hung up."""

    def __init__(self, delay: float, errors: int) -> None:
        super().__init__("fake", "h", ["sleep", str(delay)], errors)
        for stream in (self.stdin, self.stdout):
            stream.close()
        ours, theirs = socket.socketpair()
        self.stdin, self.stdout = ours.makefile("wb"), ours.makefile("rb")
        ours.close()
        self._saying = threading.Lock()
        threading.Thread(target=self._speak, args=(theirs,), daemon=True).start()

    def _speak(self, way: socket.socket) -> None:
        def say(fields: Mapping[str, object], data: bytes = b"") -> None:
            with self._saying, contextlib.suppress(OSError):
                way.sendall(json.dumps({**fields, "bytes": len(data)}).encode() + b"\n" + data)

        self.wait()
        relay = Relay(say)
        with way, way.makefile("rb") as orders:
            orders.readline()
            say({"started": "h"})
            say({"rank": 0, "code": 0})
            for line in orders:
                relay.obey(json.loads(line))
            relay.close()
            relay.wait()


def of_hosts(count: int, delay: float, tree: bool) -> dict[str, float]:
    """Seconds until the agents of so many hosts have started."""
    asked: Asked = {"folder": "/", "environment": {}, "ranks": [{"RANK": "0"}], "program": []}
    words = ["sh", "-c", SPEAKING, "sh", str(delay)]
    host = Host("h", partial(Process, "fake", "h", words), asked)
    if tree:
        host = Host("h", partial(Reaching, delay), asked, ["sh", "-c", BEYOND, "sh", str(delay)])
    fan_out.TREE_FROM = 0 if tree else count + 1  # else fewer are made at once than of a job without a tree
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    handle = AgentsHandle("fake", [host] * count)
    for _ in range(count):
        ended = handle.wait()
        assert ended is not None and ended.code == 0, ended
    taken = time.perf_counter() - began
    handle.close()
    used = sum(os.times()[:4]) - cpu
    for pipe in handle.pipes:
        os.close(pipe.descriptor)
    return {"hosts": count, "tree": tree, "all s": taken, "cpu s": used}


def of_plan(size: int) -> dict[str, float]:
    """Processor seconds of a plan for so many ranks, which are eight to a host."""
    from launcher.tasks.demo import write_demo
    from sharding.demands.options import SliceOptions
    from sharding.planning.plan import plan_model
    from sharding.slices.topology import Link, Topology

    with tempfile.TemporaryDirectory() as folder:
        path, _ = write_demo(Path(folder))
        hosts = Topology(tuple(rank // 8 for rank in range(size)), Link(125e6, 2e-4))
        options = SliceOptions(strategy="auto", topology=hosts, allow_replicated=True)
        _, planning = timed(lambda: plan_model(path, size, options=options))
    mesh = Mesh.of(data=size // 8, tensor=8)
    _, groups = timed(lambda: [mesh.groups(axis) for axis in AXES])
    return {"ranks": size, "plan s": planning, "groups of a rank s": groups}


def manifest_of(size: int) -> Manifest:
    """That of a model of 400 weights, with three files of each rank."""
    entry = FileEntry("model.onnx", 1 << 30, "0" * 64)
    ranks = tuple(
        RankEntry(
            rank,
            f"rank_{rank}_model.onnx",
            1 << 20,
            tuple(FileEntry(f"rank_{rank}_{name}", 1 << 20, "0" * 64) for name in ("model.onnx", "w", "c")),
        )
        for rank in range(size)
    )
    weights = {
        f"layer.{n}.weight": WeightEntry("split:1", "float32", (4096, 4096), 1 << 26) for n in range(400)
    }
    return Manifest(entry, size, ranks, weights)


def of_documents(size: int) -> dict[str, float]:
    """Seconds and bytes of what is written and read for so many ranks."""
    hosts = [(f"node{n}", 8) for n in range(size // 8)]
    table, making = timed(lambda: make_rank_table(hosts))
    text, writing = timed(table.to_json)
    _, reading = timed(lambda: parse_rank_table(json.loads(text), strings_only=True))
    yaml, as_yaml = timed(table.to_yaml)
    _, from_yaml = timed(lambda: parse_rank_table(parse(yaml, "yaml")))
    parts = [make_rank_table([host]) for host in hosts]
    _, merging = timed(lambda: merge_rank_tables(parts))
    _, by_host = timed(lambda: [len(table.hosts) for _ in range(10)])
    manifest = manifest_of(size)
    said, saying = timed(manifest.to_json)
    _, parsing = timed(lambda: parse_manifest(said))
    return {
        "ranks": size,
        "table make s": making,
        "write s": writing,
        "read s": reading,
        "YAML write s": as_yaml,
        "YAML read s": from_yaml,
        "merge s": merging,
        "hosts x10 s": by_host,
        "table KB": len(text) / 1e3,
        "manifest write s": saying,
        "manifest read s": parsing,
        "manifest KB": len(said) / 1e3,
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and its processor seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def show(rows: Sequence[Mapping[str, float]]) -> None:
    """A table, a row each."""
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(f"{value:>{len(name)}.4g}" for name, value in row.items()), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--fake"]:
        many_ranks(*map(int, sys.argv[2:5]))
        return
    sizes = {"ranks": [64, 256, 1024], "hosts": [64, 128, 256, 512], "tables": [512, 4096]}
    options = parser_of(__doc__, **sizes, lines=200, delay=0.3, json=Path).parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    jobs = [of_job(size, options.lines) for size in options.ranks]
    hosts = [of_hosts(count, options.delay, tree) for count in options.hosts for tree in (False, True)]
    documents = [of_documents(size) for size in options.tables]
    plans = [of_plan(size) for size in options.tables]
    whole = {"jobs": jobs, "hosts": hosts, "documents": documents, "plans": plans}
    for rows in filter(None, whole.values()):
        show(rows)
        print()
    write_json(options.json, whole)


if __name__ == "__main__":
    main()
