"""What a token costs where a graph grows its caches by Concat, which copies them, and what its weights cost.

    python benchmarks/growing_caches.py [--positions 128 512 2000] [--layers 8] [--heads 4] [--weights 84]

By default a rank's part of a Llama of 168 million parameters on two ranks: 8 layers, 4 of 8 key and value
heads of 64, 84 million float32 weights. Prints milliseconds of processor time of one thread, the least of all
rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from common import model_of, parser_of, session_of

SIZE, WIDTH, ROUNDS = 64, 1024, 15


def concats(caches: int, heads: int, length: int) -> Callable[[], None]:
    """Appends one position to each cache, from one buffer into another, as a session's step does."""
    nodes = [("Concat", [f"p{i}", f"n{i}"], [f"o{i}"], {"axis": 2}) for i in range(caches)]
    lengths = {"p": "n", "n": 1, "o": "m"}
    shapes = {f"{k}{i}": [1, heads, n, SIZE] for i in range(caches) for k, n in lengths.items()}
    inputs = {name: shape for name, shape in shapes.items() if name[0] != "o"}
    outputs = {name: shape for name, shape in shapes.items() if name[0] == "o"}
    made = session_of(model_of(nodes, inputs, outputs, {}))
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
    shapes = {"x": [1, WIDTH]}, {"y": [1, weight.shape[1]]}
    made, row = (
        session_of(model_of([("MatMul", "xw", "y")], *shapes, {"w": weight})),
        np.ones((1, WIDTH), np.float32),
    )

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
    options = parser_of(__doc__, positions=[128, 512, 2000], layers=8, heads=4, weights=84).parse_args()
    print(f"weights: {milliseconds(product(options.weights)):.1f} ms")
    for length in options.positions:
        found = milliseconds(concats(2 * options.layers, options.heads, length))
        print(f"caches of {length} positions: {found:.2f} ms")


if __name__ == "__main__":
    main()
