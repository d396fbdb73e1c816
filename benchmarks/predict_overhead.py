"""What `Model.predict` and `RankModel.run` add to a bare `InferenceSession.run`, on a tiny model.

    python benchmarks/predict_overhead.py [--runs 20000] [--json FILE]

The model multiplies a 1 x 8 input by an 8 x 8 weight, so that what is measured is the way there. All take
turns, call by call, in one process on one core; printed are medians in microseconds. `predict` is given
tensors, as the tutorials do. A rank model with one collective, in a group of one rank, shows what a cut
costs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import model_of, parser_of, session_of, write_json

BARE = "InferenceSession.run"


def tiny(path: Path, *, collective: bool) -> None:
    """Writes the model; with an AllReduce after its product if asked for."""
    middle = ("AllReduce", "p", "q", {"domain": "com.microsoft"}) if collective else ("Relu", "p", "q")
    nodes = [("MatMul", "xw", "p"), middle, ("Neg", "q", "y")]
    shapes = {"x": ["n", 8]}, {"y": ["n", 8]}
    opsets = {"com_microsoft": 1} if collective else {}
    onnx.save(model_of(nodes, *shapes, {"w": np.eye(8, dtype=np.float32)}, **opsets), path)


def contestants(folder: Path) -> dict[str, Callable[[], Any]]:
    """The calls to compare, all with one thread."""
    from ranks import Context, Model, ModelType, Tensor
    from ranks.collectives.single import SingleCommunicator
    from ranks.run import executor

    plain, cut = folder / "plain.onnx", folder / "cut.onnx"
    tiny(plain, collective=False)
    tiny(cut, collective=True)
    array = np.ones((1, 8), np.float32)
    feeds = {"x": array}
    session = session_of(plain)
    context = Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    model = Model()
    model.build_from_file(str(plain), ModelType.ONNX, context)
    inputs = [Tensor(array)]
    rank_model = executor.load(plain, threads=1)
    segments = executor.load(cut, threads=1, communicator=SingleCommunicator(60))
    return {
        BARE: lambda: session.run(None, feeds),
        "Model.predict": lambda: model.predict(inputs),
        "RankModel.run": lambda: rank_model.run(feeds),
        "RankModel.run, 2 segments": lambda: segments.run(feeds),
    }


def main() -> None:
    """Measures and prints."""
    arguments = parser_of(__doc__, runs=20000, json=Path).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    clock = time.perf_counter_ns
    with tempfile.TemporaryDirectory() as folder:
        calls = contestants(Path(folder))
        times: dict[str, list[int]] = {name: [] for name in calls}
        for run in range(arguments.runs + 100):
            for name, call in calls.items():
                start = clock()
                call()
                if run >= 100:
                    times[name].append(clock() - start)
    medians = {name: statistics.median(found) / 1e3 for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name:28}{median:8.2f} us{median - medians[BARE]:+8.2f}")
    write_json(arguments.json, medians)


if __name__ == "__main__":
    main()
