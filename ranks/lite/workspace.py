"""How much memory a model's run takes besides its weights, measured in a process of its own.

The process loads the model with an arena that grows by exactly what is asked and runs it twice on zeros. What
the C library's allocator has handed out since, in bytes (mallinfo2(3)), is what the arena took. The first run
allocates value by value; the second one takes the block that ONNX Runtime planned after the first (its memory
pattern), and the outputs. The workspace is enough for either.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ranks.common.sources import alone
from ranks.errors import ModelError, ShardrunError

_ALIGNMENT = 256  # of ONNX Runtime's arena


@dataclass(frozen=True)
class Job:
    """A model to measure. ``shapes``: of its inputs, by name; open dimensions of others count as 1."""

    path: Path
    threads: int
    shapes: Mapping[str, Sequence[int]]


def measure(job: Job) -> int:
    """Bytes that the arena needs for running the model.

    Raises `ModelError` where the model cannot be loaded or run on zeros, `ShardrunError` where it cannot be
    measured here.
    """
    if sys.platform != "linux" or not sys.executable:
        raise ShardrunError("the workspace can be measured on Linux only.")
    environment = alone()  # it is no rank of the group that this one is
    here = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH", "")]))
    question = {"path": str(job.path), "threads": job.threads, "shapes": {**job.shapes}}
    done = subprocess.run(
        [sys.executable, "-m", "ranks.lite.workspace"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise ShardrunError(
            f"{job.path} could not be measured: the process that ran it ended with {done.returncode} "
            f"({last[:300]})."
        ) from None
    if "error" in answer:
        raise ModelError(answer["error"])
    return int(answer["bytes"])


def main() -> None:
    """Measures the model that standard input names and writes its workspace, or why there is none."""
    from ranks.talk.connect import die_with_parent

    die_with_parent()
    question = json.load(sys.stdin)
    try:
        answer: dict[str, object] = {"bytes": _run(question)}
    except ShardrunError as error:
        answer = {"error": str(error)}
    print(f"\n{json.dumps(answer)}", flush=True)


class _Question(TypedDict):
    """What `reserve` asks of its child."""

    path: str
    threads: int | None
    shapes: dict[str, list[int]]


def _run(question: _Question) -> int:
    import numpy as np

    from ranks.run import executor
    from ranks.sessions import arena

    arena.register(by_need=True)
    options = executor.LoadOptions(arena.WORKSPACE_ONLY, check=False)
    model = executor.load(question["path"], threads=question["threads"], options=options)
    names = [spec.name for spec in model.inputs]
    for name in question["shapes"]:
        if name not in names:
            listed = ", ".join(map(repr, names))
            raise ModelError(f"{question['path']} has no input {name!r} to give a shape; it has {listed}.")
    feeds = {}
    for spec in model.inputs:
        shape = question["shapes"].get(spec.name)
        if shape is None:
            shape = [dim if isinstance(dim, int) else 1 for dim in spec.shape]
        if not spec.is_tensor or spec.dtype.hasobject:
            raise ModelError(f"input {spec.name!r} of {question['path']} takes no numbers, so no zeros.")
        try:
            feeds[spec.name] = np.zeros(shape, spec.dtype)
        except (MemoryError, ValueError, OverflowError):
            raise ModelError(f"input {spec.name!r} of shape {shape} does not fit into memory.") from None
    grown, outputs = [], 0
    for _ in range(2):
        before = _allocated()
        results = model.run(feeds)
        outputs = sum(_rounded(array.nbytes) for array in results if isinstance(array, np.ndarray))
        grown.append(_allocated() - before)
        del results
    return _rounded(max(0, *grown)) + outputs


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _allocated() -> int:
    """Bytes that malloc(3) has handed out in this process and that are not freed."""
    import ctypes

    class Statistics(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
                *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
            )
        ]

    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        raise ShardrunError("the workspace can be measured with glibc 2.33 or later only.")
    library.mallinfo2.restype = Statistics
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd)


if __name__ == "__main__":
    main()
