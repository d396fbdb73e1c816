"""What an idle group costs: the processor time of its ranks and of its launcher while nobody asks anything.

    python benchmarks/idle.py [--seconds 10] [--ranks 2] [--launchers local mpirun] [--collectives shm mpi]
                              [--model FILE|FOLDER] [--json FILE]

Starts a group, asks it once, then counts the processor time that every process of it (ranks, mpirun, this
one) uses in so many seconds. 100% is one core. Without ``--model`` a small one is sliced.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import model_of, parser_of, write_json


def processor_seconds(process: psutil.Process) -> float:
    """User and system time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(model: Path, ranks: int, launcher: str, collectives: str, seconds: float) -> dict[str, float]:
    """Percent of one core, by process, of a group that waits."""
    from launcher import start

    with start(model, ranks=ranks, launcher=launcher, collectives=collectives) as group:
        feeds = {
            spec.name: np.ones([dim if isinstance(dim, int) else 1 for dim in spec.shape], spec.dtype)
            for spec in group.inputs
        }
        group.predict(feeds)
        time.sleep(1)  # threads that spin for a moment after their work have stopped
        this = psutil.Process()
        names = {this.pid: "launcher", **{stats.pid: f"rank {stats.rank}" for stats in group.stats}}
        processes = [this, *this.children(recursive=True)]
        before = [processor_seconds(process) for process in processes]
        began = time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - began
        return {
            names.get(process.pid, process.name()): 100 * (processor_seconds(process) - start) / passed
            for process, start in zip(processes, before, strict=True)
        }


def small_model(folder: Path) -> Path:
    """A slice-able product of two matrices."""
    import onnx

    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((512, 512)).astype(np.float32) for name in "ab"}
    nodes = [("MatMul", "xa", "h"), ("MatMul", "hb", "y")]
    path = folder / "model.onnx"
    onnx.save(model_of(nodes, {"x": ["batch", 512]}, {"y": ["batch", 512]}, weights), path)
    return path


def main() -> None:
    named = {"launchers": ["local", "mpirun"], "collectives": ["shm", "mpi"]}
    options = parser_of(__doc__, seconds=10.0, ranks=2, **named, model=Path, json=Path).parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or small_model(Path(folder))
        for launcher in options.launchers:
            for collectives in options.collectives:
                if launcher == "local" and collectives == "mpi":
                    continue  # MPI's ranks are started by its own mpirun
                shares = measure(model, options.ranks, launcher, collectives, options.seconds)
                total = sum(shares.values())
                results.append(
                    {"launcher": launcher, "collectives": collectives, "percent": shares, "total": total}
                )
                parts = ", ".join(f"{name} {share:.2f}%" for name, share in shares.items())
                print(f"{launcher:7} {collectives:4}  total {total:.2f}% of one core  ({parts})", flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
