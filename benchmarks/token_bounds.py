"""What bounds a token of a language model with 4-bit weights: plain ONNX Runtime alone, one thread.

    python benchmarks/token_bounds.py [--rows 1 2 4 8 16 128] [--shapes 1024x1024 1024x2816] [--cold 0 1.2 3]

First products of 4-bit weights (blocks of 32, int8 inside), by how many rows they have at once: a shape is
inputs x outputs, and several products with weights of their own take turns, as layers do. Then a run of a
session with three tiny operators, whose time is what a run takes beside its operators: by ONNX Runtime's own
method, and as ranks make it, after as many MB of other memory have been read in between as `--cold` says.
Printed are the least of many times, in microseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from common import model_of, parser_of, session_of

BLOCK = 32
WEIGHTS = 4 << 20
"""Bytes of the weights that take turns: more than a core's caches hold."""
NAME = "/model/layers.0/attn/qkv_proj/MatMul/output_"
"""Values of exported models have names as long as this."""


def products(inner: int, columns: int, rows: list[int], repeats: int) -> list[float]:
    """Microseconds of a product with each number of rows."""
    random = np.random.default_rng(0)
    count = max(1, WEIGHTS // (inner * columns // 2))
    how = {"K": inner, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    nodes, weights = [], {}
    for k in range(count):
        weights[f"w{k}"] = random.integers(0, 256, (columns, inner // BLOCK, BLOCK // 2), dtype=np.uint8)
        weights[f"s{k}"] = random.random(columns * inner // BLOCK, np.float32) / 100
        inputs = ["x", f"w{k}", f"s{k}"]
        nodes.append(("MatMulNBits", inputs, [f"y{k}"], {**how, "domain": "com.microsoft"}))
    outputs = {f"y{k}": None for k in range(count)}
    session = session_of(model_of(nodes, {"x": ["rows", inner]}, outputs, weights, com_microsoft=1))
    found = []
    for each in rows:
        binding = session.io_binding()
        binding.bind_cpu_input("x", random.standard_normal((each, inner)).astype(np.float32))
        for name in outputs:
            binding.bind_output(name)
        found.append(often(lambda: session.run_with_iobinding(binding), repeats, 0) / count)  # noqa: B023
    return found


def runs(cold: float, repeats: int) -> list[float]:
    """Microseconds of a run by ONNX Runtime's own method, and of one as ranks make it."""
    from ranks.sessions.bound import running

    inputs, outputs = ([f"{NAME}{side}{k}" for k in range(count)] for side, count in (("i", 6), ("o", 3)))
    nodes = [("Add", inputs[k : k + 2], [outputs[k]]) for k in range(3)]
    model = model_of(nodes, dict.fromkeys(inputs, (16,)), dict.fromkeys(outputs, (16,)), {})
    session = session_of(model)
    binding, x = session.io_binding(), np.ones(16, np.float32)
    y = np.empty((3, 16), np.float32)
    for name in inputs:
        binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    for name, row in zip(outputs, y, strict=True):
        binding.bind_output(name, "cpu", 0, np.float32, row.shape, row.ctypes.data)
    ways = (lambda: session.run_with_iobinding(binding)), running(session, binding, on_host=True)
    return [often(way, repeats, cold) for way in ways]


def often(call: Callable[[], object], repeats: int, cold: float) -> float:
    """The least time, with ``cold`` MB read before each call."""
    other, times = np.ones(int(cold * 1e6) // 8), []
    for _ in range(repeats):
        other.sum()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times)


def main() -> None:
    args = parser_of(
        __doc__,
        rows=[1, 2, 4, 8, 16, 128],
        shapes=["1024x1024", "1024x2816"],
        cold=[0.0, 1.2, 3.0],
        repeats=60,
    ).parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("rows          ", *(f"{each:>8}" for each in args.rows))
    for shape in args.shapes:
        inner, columns = map(int, shape.split("x"))
        found = products(inner, columns, args.rows, args.repeats)
        print(f"{shape:<14}", *(f"{each:8.1f}" for each in found))
        print("  of one row  ", *(f"{each / found[0]:8.2f}" for each in found))
    for cold in args.cold:
        own, ours = runs(cold, 20 * args.repeats)
        print(f"a run after {cold:g} MB: {own:.1f} by ONNX Runtime's method, {ours:.1f} as ranks make it")


if __name__ == "__main__":
    main()
