"""What a token costs where a graph grows its caches by Concat, which copies them, and what its weights cost.

    python benchmarks/growing_caches.py [--positions 128 512 2000] [--layers 8] [--heads 4] [--weights 84]

By default a rank's part of a Llama of 168 million parameters on two ranks: 8 layers, 4 of 8 key and value
heads of 64, 84 million float32 weights. Prints milliseconds of processor time of one thread, the least of all
rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIZE, WIDTH, ROUNDS = 64, 1024, 15


def session(graph: onnx.GraphProto) -> onnxruntime.InferenceSession:
    """On one thread."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def concats(caches: int, heads: int, length: int) -> Callable[[], None]:
    """Appends one position to each cache, from one buffer into another, as a session's step does."""

    def value(name: str, positions: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, heads, positions, SIZE])

    nodes = [helper.make_node("Concat", [f"p{i}", f"n{i}"], [f"o{i}"], axis=2) for i in range(caches)]
    inputs = [value(*item) for i in range(caches) for item in ((f"p{i}", "n"), (f"n{i}", 1))]
    made = session(helper.make_graph(nodes, "caches", inputs, [value(f"o{i}", "m") for i in range(caches)]))
    binding, kept = made.io_binding(), []
    for i in range(caches):
        for name, positions in (("p", length), ("n", 1), ("o", length + 1)):
            array = np.ones((1, heads, positions, SIZE), np.float32)
            kept.append(array)
            bind = binding.bind_output if name == "o" else binding.bind_input
            bind(f"{name}{i}", "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def run() -> None:
        assert kept  # the binding has the addresses alone
        made.run_with_iobinding(binding)

    return run


def product(millions: int) -> Callable[[], None]:
    """Multiplies one row by so many million weights."""
    weight = np.ones((WIDTH, millions * 10**6 // WIDTH), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    made, row = session(graph), np.ones((1, WIDTH), np.float32)

    def run() -> None:
        made.run(None, {"x": row})

    return run


def milliseconds(work: Callable[[], None]) -> float:
    """The least processor time of a call."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times) * 1e3


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", nargs="+", type=int, default=[128, 512, 2000])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--weights", type=int, default=84, help="in millions")
    options = parser.parse_args()
    print(f"weights: {milliseconds(product(options.weights)):.1f} ms")
    for length in options.positions:
        found = milliseconds(concats(2 * options.layers, options.heads, length))
        print(f"caches of {length} positions: {found:.2f} ms")


if __name__ == "__main__":
    main()
