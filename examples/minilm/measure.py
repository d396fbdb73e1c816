"""Latency of the group against plain ONNX Runtime in one process."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROUNDS = 5
CALLS = 10


def plain_session(model: Path, threads: int) -> Any:
    """An ONNX Runtime session on the unsliced model, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def alternate(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each call: short blocks of each in turn, so that other load on the machine meets all.

    The first call of a block is not counted: it wakes threads that slept while the others ran.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
