"""An output head on two ranks over shared memory: cut by rows and summed, against by columns and gathered.

    python benchmarks/output_head.py [--shapes 1x512x2048 64x2048x32000] [--rounds 9]

A shape is rows x hidden x words. Each rank runs its part of the product in ONNX Runtime with one thread; then
the logits are made whole: with ``AllReduce`` (twice the bytes) or with ``AllGather`` along the last axis.
Printed are medians over all rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator

RANKS = 2
BURST_BYTES = 16 << 20


def product(rows: int, inner: int, words: int, out: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Multiplies a matrix by a weight [inner, words] into ``out``."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.random((inner, words), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, words])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    x = random.random((rows, inner), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def run() -> None:
        # The binding has the address alone: ``x`` lives as long as this function.
        assert x.size
        session.run_with_iobinding(binding)

    return run


def measure(world: Communicator, rows: int, hidden: int, words: int, rounds: int) -> dict[str, float]:
    """Microseconds of either way."""
    summed = world.allocate((rows, words), np.dtype(np.float32))
    part = world.allocate((rows, words // RANKS), np.dtype(np.float32))
    whole = np.zeros((rows, words), np.float32)
    by_rows = product(rows, hidden // RANKS, words, summed)
    by_columns = product(rows, hidden, words // RANKS, part)

    def reduced() -> None:
        by_rows()
        world.all_reduce(summed)

    def gathered() -> None:
        by_columns()
        world.all_gather(part, whole, 1)

    ways = {"rows, AllReduce": reduced, "columns, AllGather": gathered}
    times: dict[str, list[float]] = {name: [] for name in ways}
    burst = max(2, min(100, BURST_BYTES // whole.nbytes))
    for _ in range(rounds):
        for name, way in ways.items():
            world.barrier()
            start = time.perf_counter()
            for _ in range(burst):
                way()
            times[name].append((time.perf_counter() - start) / burst * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def rank(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints."""
    from ranks.collectives import connect
    from ranks.identity.identity import identify

    world = connect(identify(), "shm", 120.0)
    for shape in options.shapes:
        rows, hidden, words = (int(part) for part in shape.split("x"))
        found = measure(world, rows, hidden, words, options.rounds)
        if world.rank == 0:
            print(shape, *(f"{name} {value:.0f} us" for name, value in found.items()), sep="  ", flush=True)
    world.close()


def main() -> None:
    """Starts the ranks, or is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["1x512x2048", "64x512x2048", "64x2048x32000"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank(options)
        return
    job = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "SHARDRUN_JOB": secrets.token_hex(16)}
    started = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **job, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(RANKS)
    ]
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    main()
