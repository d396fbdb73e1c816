"""What bounds a token of a language model with 4-bit weights: plain ONNX Runtime alone, one thread.

    python benchmarks/token_bounds.py [--rows 1 2 4 8 16 128] [--shapes 1024x1024 1024x2816] [--cold 0 1.2 3]
        [--model FOLDER]

First products of 4-bit weights (blocks of 32, int8 inside), by how many rows they have at once: a shape is
inputs x outputs, and several products with weights of their own take turns, as layers do. Then the residual
sum and norm of rows of 1024, as one operator more in a segment, and as numpy's calls after a sum of ours.
With `--model` (a folder of ONNX Runtime GenAI) steps of the whole model, one token of each of so many texts
that have read 64, by processor time, and what of it the dearest kinds of operators take. Then a run of a
session with three tiny operators, whose time is what a run takes beside its operators: by ONNX Runtime's own
method, and as ranks make it, after as many MB of other memory have been read in between as `--cold` says.
Printed are the least of many times, in microseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from common import model_of, parser_of, session_of

BLOCK, WIDTH, READ = 32, 1024, 64
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


def norms(rows: int, repeats: int) -> tuple[float, float]:
    """Microseconds of residual sum and norm: one operator more in a session, and numpy's calls."""
    x, y, weight = (
        np.ones((rows, WIDTH), np.float32),
        np.empty((rows, WIDTH), np.float32),
        np.ones(WIDTH, np.float32),
    )
    total, taken = np.empty_like(x), []
    for count in (1, 9):
        nodes = [
            (
                "SkipSimplifiedLayerNormalization", [f"x{k}", "s", "w"], [f"x{k + 1}", "", "", f"r{k + 1}"],
                {"domain": "com.microsoft", "epsilon": 1e-5},
            )
            for k in range(count)
        ]  # fmt: skip
        shape = (rows, 1, WIDTH)
        results = {f"x{count}": shape, f"r{count}": shape}
        session = session_of(
            model_of(nodes, {"x0": shape, "s": shape}, results, {"w": weight}, com_microsoft=1)
        )
        binding = session.io_binding()
        for name in ("x0", "s"):
            binding.bind_cpu_input(name, x.reshape(shape))
        for name in results:
            binding.bind_output(name)
        taken.append(often(lambda: session.run_with_iobinding(binding), repeats, 0))  # noqa: B023

    def by_numpy() -> None:
        np.add(x, x, total)
        mean = np.einsum("ij,ij->i", total, total)
        np.divide(1, np.sqrt(mean / WIDTH + 1e-5), mean)
        np.multiply(total, mean[:, None], y)
        np.multiply(y, weight, y)

    return (taken[1] - taken[0]) / 8, often(by_numpy, repeats, 0)


def steps(folder: Path, rows: list[int], repeats: int) -> None:
    """Prints what a step of a whole model takes with one token of each of so many texts."""
    said = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    first = 0.0
    for each in rows:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.enable_profiling = 1, True
        options.profile_file_prefix = str(Path(tempfile.gettempdir()) / "token_bounds")
        session = ort.InferenceSession(folder / said["filename"], options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", np.full((each, 1), 5, np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((each, READ + 1), np.int64))
        shape = (each, said["num_key_value_heads"], 4 * READ, said["head_size"])
        for item in session.get_inputs():
            if item.name.startswith("past"):
                value = ort.OrtValue.ortvalue_from_numpy(np.full(shape, 0.1, np.float32))
                binding.bind_ortvalue_input(item.name, value)
                binding.bind_ortvalue_output(item.name.replace("past_key_values", "present"), value)
        binding.bind_output("logits")
        times = []
        for _ in range(repeats):
            start = time.thread_time()
            session.run_with_iobinding(binding)
            times.append(1e3 * (time.thread_time() - start))
        kinds: dict[str, float] = {}
        profile = Path(session.end_profiling())
        for event in json.loads(profile.read_text()):
            if event["name"].endswith("_kernel_time"):
                kind = event["args"]["op_name"]
                kinds[kind] = kinds.get(kind, 0) + event["dur"]
        profile.unlink()
        whole = sum(kinds.values())
        first = first or statistics.median(times)
        most = sorted(kinds, key=kinds.__getitem__)[-3:]
        shares = ", ".join(f"{kind} {kinds[kind] / whole:.1%}" for kind in reversed(most))
        took = statistics.median(times)
        print(f"{each} texts: {took:.2f} ms, {each * first / took:.2f} times the tokens of one; {shares}")


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
        model="",
    ).parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("rows          ", *(f"{each:>8}" for each in args.rows))
    for shape in args.shapes:
        inner, columns = map(int, shape.split("x"))
        found = products(inner, columns, args.rows, args.repeats)
        print(f"{shape:<14}", *(f"{each:8.1f}" for each in found))
        print("  of one row  ", *(f"{each / found[0]:8.2f}" for each in found))
    for each in args.rows:
        own, ours = norms(each, 20 * args.repeats)
        print(f"sum and norm of {each} rows: {own:.1f} in a segment, {ours:.1f} by numpy")
    if args.model:
        steps(Path(args.model), args.rows, args.repeats)
    for cold in args.cold:
        own, ours = runs(cold, 20 * args.repeats)
        print(f"a run after {cold:g} MB: {own:.1f} by ONNX Runtime's method, {ours:.1f} as ranks make it")


if __name__ == "__main__":
    main()
