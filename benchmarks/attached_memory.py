"""Memory of processes that attach to one copy of the weights, through the public API alone.

    python benchmarks/attached_memory.py [--model FILE] [--processes 1 4 8] [--sequences 1 128] [--bare least]

Without ``--model`` it is BERT-base of the tests' models. One process shares (`ranks.share_weights`), the
others attach; each runs the model at the first sequence and then at the next. Beside them, two baselines: one
process with the model in plain ONNX Runtime and bare processes for the others, and that process with as many
bare ones as there are processes. "Bare" has imported every module that an attached process has, and has no
model; with ``--bare least`` it has imported numpy and ONNX Runtime alone. Memory is read right after the runs
("busy"), and 1.5 seconds later ("idle"), when the buffers of a model that nobody runs have gone back. Of each
group the sum of the PSS (/proc/PID/smaps_rollup), in which a page that several processes hold counts once.
Pages of libraries that processes outside hold too are divided with them: run it alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, Asked, parser_of, session_of, started

MB = 1e6


def begun(kind: str, model: Path, given: str = "") -> Asked:
    """One process of this file, which runs the model at each length it is told."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", kind, "--model", str(model), "--given", given]
    return started(f"a process of the benchmark ({kind})", command, env=environment)


def work(kind: str, model: Path, given: str) -> None:
    """A worker's side: loads, says what it is, and runs as often as asked."""
    import numpy as np

    session, loaded, handle = None, None, ""
    if kind == "plain":
        session = session_of(model)
    elif kind == "owner":
        loaded = share(model)
        handle = str(loaded.handle)
    elif kind == "attached":
        loaded = attach(model, int(given))
    else:
        for name in json.loads(Path(given).read_text()):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    names = [item.name for item in (session or loaded).get_inputs()] if session or loaded else []
    print(json.dumps({"handle": handle, "modules": [n for n in sys.modules if n != "__main__"]}), flush=True)
    for line in sys.stdin:
        arrays = [np.ones((1, int(line)), np.int64) for _ in names]
        for _ in range(2):
            if session is not None:
                session.run(None, dict(zip(names, arrays, strict=True)))
            elif loaded is not None:
                loaded.predict(arrays)
        print("{}", flush=True)


def share(model: Path) -> Any:
    """The owner's model."""
    import ranks

    return ranks.share_weights(str(model), family=os.getppid(), context=one_thread())


def attach(model: Path, handle: int) -> Any:
    """An attached process's model."""
    import ranks

    return ranks.attach(handle, str(model), context=one_thread())


def one_thread() -> Any:
    """A context of one thread."""
    import ranks

    context = ranks.Context()
    context.cpu.thread_num = 1
    return context


def measure(workers: Sequence[Asked], sequences: Sequence[int]) -> list[tuple[float, float]]:
    """The sum of their PSS after each sequence, busy and idle; ends them."""
    found = []
    for sequence in sequences:
        for worker in workers:
            worker.ask(sequence)
        for worker in workers:  # those that ran first are idle again
            worker.ask(sequence)
        busy = sum(worker.memory()["Pss"] for worker in workers)
        time.sleep(1.5)
        found.append((busy, sum(worker.memory()["Pss"] for worker in workers)))
    for worker in reversed(workers):
        worker.close()
    return found


def main() -> None:
    """Runs the benchmark, or a worker of it."""
    parser = parser_of(__doc__, model=Path, processes=[1, 4, 8], sequences=[1, 128])
    parser.add_argument("--bare", choices=("modules", "least"), default="modules")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--given", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.worker, asked.model, asked.given)
        return
    model = asked.model
    if model is None:
        from tests import models

        model = models.get("bert_base").path
    import tempfile

    print("processes  sequence        shared    1 plain + others bare  1 plain + all bare")
    with tempfile.TemporaryDirectory() as folder:
        modules = Path(folder) / "modules.json"
        for count in asked.processes:
            owner = begun("owner", model)
            others = [begun("attached", model, owner.said["handle"]) for _ in range(count - 1)]
            imported = [*others, owner][0].said["modules"] if asked.bare == "modules" else []
            modules.write_text(json.dumps(imported))
            shared = measure([owner, *others], asked.sequences)
            fewer, all_bare = (
                measure(
                    [begun("plain", model), *(begun("bare", model, str(modules)) for _ in range(bare))],
                    asked.sequences,
                )
                for bare in (count - 1, count)
            )
            for index, sequence in enumerate(asked.sequences):
                for when, state in enumerate(("busy", "idle")):
                    ours = shared[index][when]
                    both = [
                        f"{base[index][when] / MB:7.1f} MB {ours / base[index][when]:.3f}"
                        for base in (fewer, all_bare)
                    ]
                    which = f"{count:9}  {sequence:8}  {state}"
                    print(f"{which}  {ours / MB:5.1f} MB  {both[0]:>21}  {both[1]:>18}", flush=True)


if __name__ == "__main__":
    main()
