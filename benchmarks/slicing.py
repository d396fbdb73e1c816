"""Slicing against ``cp``: seconds for the same bytes, and the most memory that slicing ever held.

    python benchmarks/slicing.py --gigabytes 6 --ranks 2 [--folder DIR] [--strategy tensor] [--rounds 3]

Makes a model of that size with external data in DIR (a temporary folder unless given; three times the
size), then in turn copies its files with ``cp`` and slices it, each into a new place and after the same pause
(memory that was let go may be slow when it is used again, on virtual machines above all).
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from common import model_of, parser_of
from onnx import TensorProto

WIDTH, INNER = 4096, 8192
LAYER_BYTES = 2 * WIDTH * INNER * 4
PAUSE_SECONDS = 3.0

SLICE = """
import sys, time
import sharding, sharding.planning.plan, sharding.writing.write
from sharding.demands.options import SliceOptions
started = time.perf_counter()
sharding.slice_model(sys.argv[1], int(sys.argv[2]), sys.argv[3], options=SliceOptions(strategy=sys.argv[4]))
seconds = time.perf_counter() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak.split()[1])
"""


def make_model(folder: Path, size: int) -> Path:
    """A chain of residual layers of two products each, with ``size`` bytes of weights in ``model.data``."""
    block = np.random.default_rng(0).standard_normal((WIDTH, 1024)).astype(np.float32)
    nodes, weights, end, value = [], [], 0, "x"
    with (folder / "model.data").open("wb") as data:
        for layer in range(max(1, size // LAYER_BYTES)):
            for name, shape in ((f"up{layer}", (WIDTH, INNER)), (f"down{layer}", (INNER, WIDTH))):
                tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
                tensor.data_location = TensorProto.EXTERNAL
                length = shape[0] * shape[1] * 4
                for key, text in (("location", "model.data"), ("offset", end), ("length", length)):
                    tensor.external_data.add(key=key, value=str(text))
                for _ in range(length // block.nbytes):
                    data.write(block.data)
                weights.append(tensor)
                end += length
            names = [f"{kind}{layer}" for kind in ("a", "b", "c", "y")]
            nodes += [
                ("MatMul", [value, f"up{layer}"], names[:1]),
                ("Relu", names[:1], names[1:2]),
                ("MatMul", [names[1], f"down{layer}"], names[2:3]),
                ("Add", [names[2], value], names[3:]),
            ]
            value = names[3]
    rows = ["batch", WIDTH]
    model = model_of(nodes, {"x": rows}, {value: rows}, {})
    model.graph.initializer.extend(weights)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def copy(model: Path, target: Path) -> float:
    """Seconds of ``cp`` for a model's files, byte by byte even where the file system could share them."""
    target.mkdir()
    started = time.perf_counter()
    files = [str(model), str(model.with_name("model.data"))]
    subprocess.run(["cp", "--reflink=never", *files, str(target)], check=True)
    return time.perf_counter() - started


def slice_(model: Path, ranks: int, target: Path, strategy: str) -> tuple[float, int]:
    """Seconds of slicing and the most kilobytes that its process held."""
    command = [sys.executable, "-c", SLICE, str(model), str(ranks), str(target), strategy]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak)


def measure(folder: Path, size: int, ranks: int, strategy: str, rounds: int) -> None:
    """Prints every round, then the medians."""
    model = make_model(folder, size)
    written = model.with_name("model.data").stat().st_size
    largest = f"largest {WIDTH * INNER * 4 / 1e6:.0f} MB"
    print(f"{written / 1e9:.2f} GB of weights, {largest}; {ranks} ranks, {strategy}")
    copies, slices, peaks = [], [], []
    for _ in range(rounds):
        time.sleep(PAUSE_SECONDS)
        copies.append(copy(model, folder / "copy"))
        shutil.rmtree(folder / "copy")
        time.sleep(PAUSE_SECONDS)
        seconds, peak = slice_(model, ranks, folder / "slices", strategy)
        slices.append(seconds)
        peaks.append(peak)
        shutil.rmtree(folder / "slices")
        print(f"cp {copies[-1]:6.2f} s   slice {seconds:6.2f} s   peak {peak / 1e3:.0f} MB")
    middle = statistics.median(slices) / statistics.median(copies)
    print(f"medians: slicing takes {middle:.2f} times as long as cp; peak {max(peaks) / 1e3:.0f} MB")


def main() -> None:
    """Parses the arguments and measures."""
    parser = parser_of(__doc__, gigabytes=6.0, ranks=2, rounds=3, folder=Path)
    parser.add_argument("--strategy", default="tensor", choices=["tensor", "pipeline", "data"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        measure(Path(folder), int(args.gigabytes * 1e9), args.ranks, args.strategy, args.rounds)


if __name__ == "__main__":
    main()
