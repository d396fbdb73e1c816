"""Processes that hold one model: memory, latency and loading time with weights shared and with their own.

    python benchmarks/shared_weights.py [--model FILE] [--processes 1 2 4 8] [--sequences 1 8 32 128]
    [--rounds 7] [--quick] [--json FILE]

Without ``--model`` it is BERT-base of the tests' models. Each process has one thread. `--memory` measures
memory alone; `--quick` a little of everything, to see that it works.

- Memory: that many processes at once, each with the model loaded and run at the shortest sequence, and after
  that at the longest; the sum of their PSS (/proc/PID/smaps_rollup), in which a page that several processes
  hold counts once. "bare" are processes that have imported ONNX Runtime, numpy and what makes sessions, and
  made a session of one node: what such a process needs without a model. `onnx`, which no process that finds
  prepared weights imports, is not among it. Then the pages that only a process itself has, of a bare one and
  a further shared one, by what they are of.
- Latency: a new process for each measurement, plain and shared in turn, one at a time; the median over the
  processes' medians, and the ratio of neighbours.
- Loading: from a call to the session, in a new process each time: "cold" prepares the weights and opens them,
  "warm" opens what is there, "plain" is ONNX Runtime alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import MB, ROOT, Asked, parser_of, started, write_json

EMPTY = bytes.fromhex(
    "08083a320a0b0a017812017922034e65671201675a0f0a0178120a0a0808"
    "0112040a020801620f0a0179120a0a08080112040a02080142040a001011"
)
"""A model of one node, ``y = -x``, serialized."""

KINDS_OF_PAGES = ("memory", "weights", "other files")


def begun(kind: str, model: Path, cache: Path) -> Asked:
    """One process of this file, which answers a length and a number of runs with their times."""
    environment = {**os.environ, "SHARDRUN_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", kind, "--model", str(model)]
    return started(f"a process of the benchmark ({kind})", command, env=environment)


def memory_of(process: Asked) -> tuple[int, int]:
    """Bytes of PSS: private, and of files."""
    found = process.memory()
    return found["Pss_Anon"], found["Pss"] - found["Pss_Anon"]


def own_pages(process: Asked) -> dict[str, int]:
    """Pages of 4 KiB that no other process has (``Private_Dirty`` and ``Private_Clean`` of smaps)."""
    found = dict.fromkeys(KINDS_OF_PAGES, 0)
    kind = ""
    for line in Path(f"/proc/{process.process.pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split(" ")[0]:
            path = line.split(None, 5)[5] if len(line.split(None, 5)) == 6 else ""
            kind = "weights" if "/blobs/" in path else "other files" if path.startswith("/") else "memory"
        elif name in {"Private_Dirty", "Private_Clean"}:
            found[kind] += int(value.split()[0]) // 4
    return found


def work(kind: str, model: Path) -> None:
    """The worker: loads, then measures or waits as it is asked."""
    import numpy as np
    import onnxruntime as ort

    from ranks.sessions.session import SessionConfig, create, create_plain
    from ranks.weights.prepared.store import default_store

    config, session = SessionConfig(threads=1), None
    if kind == "bare":
        session = create_plain(EMPTY, config, "an empty model")
        session.run(None, {"x": np.ones(1, np.float32)})
    store = default_store() if kind == "shared" else None
    began = time.perf_counter()
    if kind != "bare":
        session = create(model, SessionConfig(threads=1, store=store), str(model))
    seconds = time.perf_counter() - began
    if store is not None and not store.opened:
        raise SystemExit(f"{model} was not loaded from the store {store.folder}")
    print(json.dumps({"seconds": seconds, "version": ort.__version__}), flush=True)
    for line in sys.stdin:
        length, runs = json.loads(line)
        times = []
        if session is not None and kind != "bare":
            feeds = {
                item.name: np.ones(_shape(item, length), _dtype(item.type)) for item in session.get_inputs()
            }
            began = time.perf_counter()
            first = session.run(None, feeds)
            times.append(time.perf_counter() - began)
            assert all(np.isfinite(value).all() for value in first)
            for _ in range(runs):
                began = time.perf_counter()
                session.run(None, feeds)
                times.append(time.perf_counter() - began)
        print(json.dumps(times), flush=True)


def _shape(item: Any, length: int) -> list[int]:
    """A batch of one; other open axes have this length."""
    return [
        dim if isinstance(dim, int) else 1 if axis == 0 else length for axis, dim in enumerate(item.shape)
    ]


def _dtype(text: str) -> str:
    return {"tensor(int64)": "int64", "tensor(float)": "float32"}[text]


def measure_loading(model: Path, cache: Path, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"cold": [], "warm": [], "plain": []}
    import shutil

    for number in range(rounds):
        kinds = ("plain", "cold", "warm") if number < 3 else ("plain", "warm")
        for kind in kinds:
            if kind == "cold":
                shutil.rmtree(cache / "weights", ignore_errors=True)
            process = begun("plain" if kind == "plain" else "shared", model, cache)
            times[kind].append(process.said["seconds"])
            process.close()
    return {kind: statistics.median(found) for kind, found in times.items()}


Memory = dict[int, dict[str, list[tuple[int, int]]]]
"""By sequence and kind, for each number of processes: bytes private and of files."""


def measure_memory(
    model: Path, cache: Path, counts: Sequence[int], lengths: Sequence[int]
) -> tuple[Memory, dict[str, dict[str, int]]]:
    """Memory at each of ``lengths``, in this order, and the own pages of the last process after the last."""
    found: Memory = {length: {} for length in lengths}
    pages = {}
    for kind in ("bare", "plain", "shared"):
        for count in counts:
            processes = [begun(kind, model, cache) for _ in range(count)]
            for length in lengths:
                for process in processes:
                    process.ask((length, 1))
                parts = [memory_of(process) for process in processes]
                sums = (sum(part[0] for part in parts), sum(part[1] for part in parts))
                found[length].setdefault(kind, []).append(sums)
            pages[kind] = own_pages(processes[-1])
            for process in processes:
                process.close()
    return found, pages


def measure_latency(
    model: Path, cache: Path, lengths: Sequence[int], rounds: int, seconds: float
) -> dict[int, dict[str, Any]]:
    """Pairs of processes, plain and shared, run in short turns; the other waits meanwhile."""
    found: dict[int, dict[str, list[float]]] = {n: {"plain": [], "shared": [], "first": []} for n in lengths}
    ratios: dict[int, list[float]] = {n: [] for n in lengths}
    for number in range(rounds):
        kinds = ("plain", "shared") if number % 2 == 0 else ("shared", "plain")
        processes = {kind: begun(kind, model, cache) for kind in kinds}
        for length in lengths:
            firsts = {kind: process.ask((length, 3)) for kind, process in processes.items()}
            found[length]["first"].append(firsts["shared"][0] / firsts["plain"][0])
            runs = max(2, int(seconds / 6 / min(firsts["plain"])))
            turns: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(3):
                for kind, process in processes.items():
                    turns[kind] += process.ask((length, runs))[1:]
            for kind in kinds:
                found[length][kind].append(statistics.median(turns[kind]))
            ratios[length].append(statistics.median(turns["shared"]) / statistics.median(turns["plain"]))
        for process in processes.values():
            process.close()
    return {
        n: {**{k: statistics.median(v) for k, v in found[n].items()}, "ratio": statistics.median(ratios[n])}
        for n in lengths
    }


def main() -> None:
    named = {"processes": [1, 2, 4, 8], "sequences": [1, 8, 32, 128], "rounds": 7}
    parser = parser_of(__doc__, model=Path, **named, quick=False, memory=False, json=Path)
    parser.add_argument("--worker", choices=("bare", "plain", "shared"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.model)
        return
    if options.model is None:
        from tests import models

        options.model = models.get("bert_base").path
    if options.quick:
        options.processes, options.sequences, options.rounds = options.processes[:2], options.sequences[:2], 2
    with tempfile.TemporaryDirectory(prefix="shardrun-shared-weights.") as folder:
        cache = Path(folder)
        loading = measure_loading(options.model, cache, 1 if options.memory else options.rounds)
        lengths = sorted({options.sequences[0], options.sequences[-1]})
        memory, pages = measure_memory(options.model, cache, options.processes, lengths)
        if options.memory:
            report_memory(options.processes, memory, pages)
            return
        latency = measure_latency(
            options.model, cache, options.sequences, options.rounds, 0.5 if options.quick else 4.0
        )
        kept = sum(path.stat().st_size for path in (cache / "weights").rglob("*") if path.is_file())
    report(options, loading, latency, kept)
    worst = report_memory(options.processes, memory, pages)
    report_goals(worst, latency, loading)
    data = {"loading": loading, "memory": memory, "latency": latency, "processes": options.processes}
    write_json(options.json, data)


def report_memory(counts: Sequence[int], memory: Memory, pages: dict[str, dict[str, int]]) -> float:
    """Prints the tables; gives the largest ratio of all."""
    worst = 0.0
    for length, found in memory.items():
        print(f"memory at sequence {length} (MB of PSS, private + files)")
        print("processes                bare            plain           shared   shared/(one plain + bare)")
        # What one process's weights take: what a plain session adds to a bare process.
        one = (sum(found["plain"][0]) - sum(found["bare"][0])) // counts[0]
        for index, count in enumerate(counts):
            row = [found[kind][index] for kind in ("bare", "plain", "shared")]
            goal = one + sum(row[0])
            worst = max(worst, sum(row[2]) / goal)
            cells = "".join(f"{part[0] / MB:9.0f} + {part[1] / MB:4.0f}" for part in row)
            print(f"{count:9}  {cells}   {sum(row[2]) / goal:10.3f}")
        print()
    print("pages (4 KiB) that only this process has     " + "".join(f"{kind:>13}" for kind in KINDS_OF_PAGES))
    for kind in ("bare", "shared"):
        print(f"{kind:43}  " + "".join(f"{pages[kind][name]:13}" for name in KINDS_OF_PAGES))
    return worst


def report(
    options: argparse.Namespace, loading: dict[str, float], latency: dict[int, dict[str, Any]], kept: int
) -> None:
    """Prints the tables of times."""
    print(f"{options.model.name}: {kept / MB:.0f} MB on the disk when prepared\n")
    print("latency (ms)\nsequence     plain    shared     ratio   first run's ratio")
    for length, found in latency.items():
        print(
            f"{length:8} {found['plain'] * 1e3:9.2f} {found['shared'] * 1e3:9.2f} {found['ratio']:9.3f} "
            f"{found['first']:9.3f}"
        )
    print("\nloading (s)")
    for kind, seconds in loading.items():
        print(f"{kind:8} {seconds:9.3f}")
    print()


def report_goals(worst: float, latency: dict[int, dict[str, Any]], loading: dict[str, float]) -> None:
    """Prints the goals beside what was found."""
    slowest = max(found["ratio"] for found in latency.values())
    print("\ngoal                                           found")
    print(f"memory <= 1.05 x (one process's weights + bare) {worst:6.3f}")
    print(f"latency within 2 %                              {slowest:6.3f}")
    print(f"attaching <= 0.25 x the owner's loading (cold)  {loading['warm'] / loading['cold']:6.3f}")
    print(f"          against plain ONNX Runtime            {loading['warm'] / loading['plain']:6.3f}")


if __name__ == "__main__":
    main()
