"""All-reduce of two ranks, each on a core of its own: every backend that the machine has, side by side.

    python benchmarks/allreduce.py [--ranks 2] [--bytes 3072 24576 393216 4194304] [--rounds 7] [--json FILE]

One pair of processes has joined all groups and takes turns between them, a short burst each, so that what
else the machine does hits all alike. A time is one call on rank 0, float32, in place, on the same buffer
each time (as a segment's output is); printed are medians in microseconds over all bursts. "allocated" means
a buffer from the backend's `allocate`. "MPI_Allreduce" is the library's own blocking call, with no time-out
and no sleep.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import AS_ROOT, mpirun, parser_of, run_ranks, take_own_core, write_json

TIMEOUT = 120.0
Call = Callable[[], None]


def competitors(count: int, worlds: dict[str, Any]) -> dict[str, Call]:
    """What to time for a buffer of ``count`` float32 elements, by name."""
    calls: dict[str, Call] = {}
    for name, world in worlds.items():
        buffers = {name: np.zeros(count, np.float32)}
        if name == "shm":
            buffers["shm, allocated"] = world.allocate((count,), np.dtype(np.float32))
        for label, buffer in buffers.items():
            buffer[...] = 0
            calls[label] = lambda world=world, buffer=buffer: world.all_reduce(buffer)  # type: ignore[misc]
    if "mpi" in worlds:
        from mpi4py import MPI

        plain = np.zeros(count, np.float32)
        calls["MPI_Allreduce"] = lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, plain)
    return calls


def rank(options: argparse.Namespace) -> None:
    """One rank: joins all groups, times them in turn; rank 0 prints."""
    from ranks.collectives import connect
    from ranks.identity.identity import identify

    who = identify()
    take_own_core(who.rank, who.world_size)
    worlds = {name: connect(who, name, TIMEOUT) for name in options.backends}
    table: dict[str, dict[int, list[float]]] = {}
    for size in options.bytes:
        calls = competitors(size // 4, worlds)
        burst = max(20, min(300, (64 << 20) // max(size, 1)))
        for label, call in calls.items():
            table.setdefault(label, {})[size] = []
            for _ in range(burst):
                call()
        for _ in range(options.rounds):
            for label, call in calls.items():
                times = table[label][size]
                for _ in range(burst if label != "gloo" else 20):
                    start = time.perf_counter_ns()
                    call()
                    times.append((time.perf_counter_ns() - start) / 1e3)
    for world in worlds.values():
        world.close()
    if who.rank == 0:
        medians = {
            label: {size: statistics.median(times) for size, times in row.items()}
            for label, row in table.items()
        }
        report(medians, who.world_size)
        write_json(options.json, {"ranks": who.world_size, "microseconds": medians})


def report(medians: dict[str, dict[int, float]], ranks: int) -> None:
    """The table, sizes across."""
    sizes = list(next(iter(medians.values())))
    print(f"float32 all-reduce in place, {ranks} ranks, median microseconds")
    print(f"{'bytes':>16}" + "".join(f"{size:>12}" for size in sizes))
    for label, row in medians.items():
        print(f"{label:>16}" + "".join(f"{row[size]:>12.1f}" for size in sizes), flush=True)


def main() -> int:
    """Starts the ranks, under mpirun where there is one."""
    sizes = [3 << 10, 24 << 10, 384 << 10, 4 << 20]
    parser = parser_of(__doc__, ranks=2, bytes=sizes, rounds=7, json=Path)
    parser.add_argument("--backends", nargs="+", default=None, choices=["shm", "mpi", "gloo"])
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    started_by_mpi = mpirun()
    if options.backends is None:
        has = {"shm": True, "mpi": started_by_mpi and importlib.util.find_spec("mpi4py")}
        has["gloo"] = importlib.util.find_spec("torch")
        options.backends = [name for name, there in has.items() if there]
    if options.rank:
        rank(options)
        return 0
    flags = ["--rank", "--backends", *options.backends, "--bytes", *map(str, options.bytes)]
    flags += ["--rounds", str(options.rounds), *(["--json", str(options.json)] if options.json else [])]
    command, threads = [sys.executable, __file__, *flags], {"OMP_NUM_THREADS": "1"}
    if "mpi" in options.backends:
        assert started_by_mpi
        environ = {**os.environ, **AS_ROOT, **threads, "SHARDRUN_JOB": secrets.token_hex(16)}
        placed = ["-n", str(options.ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        return subprocess.run([started_by_mpi, *placed, *command], env=environ, check=False).returncode
    return run_ranks(command, options.ranks, **threads)


if __name__ == "__main__":
    sys.exit(main())
