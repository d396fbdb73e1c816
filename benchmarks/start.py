"""From typing `shardrun run` on a sliced model to its first output, against the bare start of mpirun and
Python.

    python benchmarks/start.py [--model FILE|FOLDER] [--ranks 2] [--rounds 5] [--launchers local mpirun]
    [--json FILE]

Alternates `shardrun run` with each launcher and `mpirun -n 2 python -c "import onnxruntime, numpy"`, and
prints the median of the seconds to the first output (of mpirun: to its end), the best, and the difference
to mpirun. Without ``--model`` it is the MiniLM sentence encoder of examples/minilm. The model is sliced
before the clock starts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import AS_ROOT, ROOT, parser_of, write_json

BARE = "import onnxruntime, numpy"


def first_output(command: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds until the command's first byte on standard output, or its end if it prints nothing."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.read(1)
    seconds = time.perf_counter() - began
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed ({process.returncode}): {errors.decode(errors='replace')}"
        )
    return seconds


def main() -> None:
    launchers = ["local", "mpirun"]
    options = parser_of(__doc__, model=Path, ranks=2, rounds=5, launchers=launchers, json=Path).parse_args()

    from launcher.job import cache
    from launcher.starters import mpirun

    model = options.model
    if model is None:
        from examples.minilm import weights

        model = weights.exported_model()
    slices = model if model.is_dir() else cache.sliced(model, options.ranks)
    found = mpirun.find()
    environment = {**os.environ, **AS_ROOT, "PYTHONPATH": str(ROOT)}
    arguments = ["-n", str(options.ranks)]
    if found.flavour.startswith("openmpi"):
        arguments += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    commands = {"mpirun alone": [str(found.path), *arguments, sys.executable, "-c", BARE]}
    for launcher in options.launchers:
        run = [sys.executable, "-m", "launcher.cli", "run", str(slices), "--launcher", launcher]
        commands[f"run, {launcher}"] = run
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds + 1):
        for name, command in commands.items():
            seconds[name].append(first_output(command, environment))
    results: dict[str, Any] = {}
    for name, values in seconds.items():
        warm = values[1:]  # the first round reads files into memory
        median = statistics.median(warm)
        more = median - results["mpirun alone"]["median"] if results else 0.0
        results[name] = {"median": median, "best": min(warm), "more": more}
        print(f"{name:14} median {median:.2f} s  best {min(warm):.2f} s  {more:+.2f} s", flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
