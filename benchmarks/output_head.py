"""An output head on two ranks over shared memory: cut by rows and summed, against by columns and gathered.

    python benchmarks/output_head.py [--shapes 1x512x2048 64x2048x32000] [--rounds 9]

A shape is rows x hidden x words. Each rank runs its part of the product in ONNX Runtime with one thread; then
the logits are made whole: with ``AllReduce`` (twice the bytes) or with ``AllGather`` along the last axis.
Printed are medians over all rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from common import model_of, parser_of, run_ranks, session_of

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator

RANKS = 2
BURST_BYTES = 16 << 20


def product(rows: int, inner: int, words: int, out: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Multiplies a matrix by a weight [inner, words] into ``out``."""
    random = np.random.default_rng(0)
    weight = random.random((inner, words), np.float32)
    model = model_of([("MatMul", "xw", "y")], {"x": [rows, inner]}, {"y": [rows, words]}, {"w": weight})
    session = session_of(model)
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
    shapes = ["1x512x2048", "64x512x2048", "64x2048x32000"]
    options = parser_of(__doc__, shapes=shapes, rounds=9).parse_args()
    if "RANK" in os.environ:
        rank(options)
        return
    sys.exit(run_ranks([sys.executable, *sys.argv], RANKS))


if __name__ == "__main__":
    main()
