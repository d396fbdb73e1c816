"""Pipeline stages on micro-batches: how much of the time do stages work at the same time?

    python benchmarks/pipeline.py [--stages 2] [--micro-batches 1 2 4 8] [--rows 256] [--width 768]
                                  [--rounds 15] [--collectives shm]

A chain of equal stages (four products of ``width`` x ``width`` each), one process and one thread per stage,
a batch of ``rows`` rows. Printed are rank 0's medians over all rounds, which take turns, in milliseconds for
one batch; beside them the part of the time with one micro-batch, in which the stages work one after the
other, and what that part is where nothing but the pipeline's filling and draining is lost:
(micro-batches + stages - 1) / (micro-batches * stages).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import model_of, parser_of, run_ranks, take_own_core

PRODUCTS = 4  # of a stage


def write_stage(path: Path, stage: int, stages: int, micro_batches: int, width: int) -> None:
    """A stage's rank model: receives, multiplies, sends."""
    import onnx
    from onnx import TensorProto

    rng = np.random.default_rng(stage)
    here, nodes, weights = "x", [], {}
    away = {"domain": "shardrun", "announce": 1}
    if stage:
        here = f"h{stage - 1}"
        told: dict[str, Any] = {"peer": stage - 1, "dtype": TensorProto.FLOAT, "shape": [-1, width]}
        nodes.append(("Recv", [], [here], {**away, **told}))
    for index in range(PRODUCTS):
        name = f"h{stage}" if index == PRODUCTS - 1 else f"v{index}"
        weight = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        weights[f"w{index}"] = weight
        nodes.append(("MatMul", [here, f"w{index}"], [name]))
        here = name
    last = stage == stages - 1
    if last:
        nodes.append(("ReduceMean", [here], ["y"], {"axes": [1]}))
    else:
        nodes.append(("Send", [here], [], {**away, "peer": stage + 1}))
    outputs = {"y": None} if last else {}
    model = model_of(nodes, {"x": ["batch", width]}, outputs, weights, shardrun=1)
    layout = {"outputs": [["y", stages - 1]], "batch": {"inputs": {"x": 0}, "outputs": {"y": 0}}}
    for key, value in {
        "rank": str(stage),
        "world_size": str(stages),
        "mesh": f"data=1,pipeline={stages},tensor=1",
        "micro_batches": str(micro_batches),
        "layout": json.dumps(layout),
    }.items():
        model.metadata_props.add(key=f"shardrun.{key}", value=value)
    onnx.save(model, path)


def rank(options: argparse.Namespace) -> None:
    """One stage: loads every variant, times them in turn."""
    from ranks.run import executor, group

    world = group.join()
    take_own_core(world.rank, world.size)
    folder = Path(options.rank)
    models = {
        count: executor.load(folder / f"{count}_{world.rank}.onnx", communicator=world, threads=1)
        for count in options.micro_batches
    }
    feeds = {"x": np.random.default_rng(9).standard_normal((options.rows, options.width)).astype(np.float32)}
    times: dict[int, list[float]] = {count: [] for count in models}
    for model in models.values():
        for _ in range(3):
            model.run(feeds)
    for _ in range(options.rounds):
        for count, model in models.items():
            world.barrier()
            start = time.perf_counter()
            model.run(feeds)
            times[count].append((time.perf_counter() - start) * 1e3)
    world.barrier()
    if world.rank == 0:
        report({count: statistics.median(found) for count, found in times.items()}, world.size, world.name)
    group.leave()


def report(medians: dict[int, float], stages: int, backend: str) -> None:
    """A line for each number of micro-batches."""
    print(f"{stages} stages over {backend}, median milliseconds for a batch")
    print(f"{'micro-batches':>14}{'ms':>10}{'of one':>10}{'ideal':>10}")
    for count, found in medians.items():
        ideal = (count + stages - 1) / (count * stages)
        print(f"{count:>14}{found:>10.2f}{found / medians[1]:>10.3f}{ideal:>10.3f}", flush=True)


def main() -> int:
    """Writes the models and starts a process for each stage."""
    named = {"stages": 2, "micro_batches": [1, 2, 4, 8], "rows": 256, "width": 768, "rounds": 15}
    parser = parser_of(__doc__, **named)
    parser.add_argument("--collectives", default="shm", choices=["shm", "gloo"])
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.micro_batches = sorted({1, *options.micro_batches})
    if options.rank:
        rank(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for count in options.micro_batches:
            for stage in range(options.stages):
                path = Path(folder, f"{count}_{stage}.onnx")
                write_stage(path, stage, options.stages, count, options.width)
        flags = ["--rank", folder, "--micro-batches", *map(str, options.micro_batches)]
        flags += ["--rows", str(options.rows), "--width", str(options.width), "--rounds", str(options.rounds)]
        command = [sys.executable, __file__, *flags]
        return run_ranks(command, options.stages, SHARDRUN_COLLECTIVES=options.collectives)


if __name__ == "__main__":
    sys.exit(main())
