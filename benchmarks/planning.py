"""Seconds to plan large graphs: does planning stay near linear in the number of nodes?

    python benchmarks/planning.py [--ranks 4] [--rounds 3]

A chain and parallel branches of products (with a weight of their own each, and a ReLU), of growing length,
and Llama-like models of growing depth. Printed are the nodes, the median seconds from file to plan, the
microseconds a node, and the collectives of the plan.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import model_of, parser_of

WIDTH = 16


def products(path: Path, count: int, *, parallel: bool) -> Path:
    """``count`` nodes: products and ReLUs in a row, or products of one input that are summed in the end."""
    import onnx

    weight = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
    nodes, weights, values, value = [], {}, [], "x"
    for number in range(count // 2):
        product, value, before = f"a{number}", f"b{number}", "x" if parallel else value
        weights[f"w{number}"] = weight
        nodes += [("MatMul", [before, f"w{number}"], [product]), ("Relu", [product], [value])]
        values.append(value)
    if parallel:
        nodes.append(("Sum", values, "y"))
        value = "y"
    shape = ["batch", WIDTH]
    onnx.save(model_of(nodes, {"x": shape}, {value: shape}, weights), path)
    return path


def llama(path: Path, layers: int) -> Path:
    """A Llama-like model with grouped key and value heads."""
    from tests.sharding.llama import Llama

    return Llama(layers=layers).save(path)


def measure(name: str, path: Path, ranks: int, rounds: int) -> None:
    """Prints one row."""
    import onnx

    from sharding import plan_model

    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        plan = plan_model(path, ranks)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    print(f"{name:22} {nodes:6} {median:8.2f} {1e6 * median / nodes:9.0f} {len(plan.collectives):12}")


def main() -> None:
    """Parses the arguments and measures."""
    args = parser_of(__doc__, ranks=4, rounds=3).parse_args()
    graphs: list[tuple[str, Callable[[Path], Path]]] = [
        *((f"chain {n}", lambda path, n=n: products(path, n, parallel=False)) for n in (2500, 5000, 10000)),
        *((f"branches {n}", lambda path, n=n: products(path, n, parallel=True)) for n in (2500, 5000, 10000)),
        *((f"llama, {n} layers", lambda path, n=n: llama(path, n)) for n in (12, 24, 48)),
    ]
    print(f"{args.ranks} ranks             nodes  seconds  us a node  collectives")
    with tempfile.TemporaryDirectory() as folder:
        for name, build in graphs:
            measure(name, build(Path(folder) / "model.onnx"), args.ranks, args.rounds)


if __name__ == "__main__":
    main()
