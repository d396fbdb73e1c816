"""What one rank does in the tests of meshes with real processes; see `collectives_program`.

`mesh_program.py FOLDER SCENARIO OPTIONS`: the rank models lie in the folder that the options name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ranks.collectives.base import Communicator
from ranks.errors import PeerLostError, ShardrunError
from ranks.run import executor, group
from ranks.run.placement import ON_CPU, Placement
from tests.ranks.mesh_models import feeds_of


def computed(
    world: Communicator, paths: list[str], batches: list[int], device: str = "cpu"
) -> dict[str, Any]:
    """Every output of every batch; on the devices that NCCL joins, if asked for."""
    placement = ON_CPU
    if device == "cuda":
        world = group.join(device=device)
        placement = Placement(("CUDAExecutionProvider",))
    model = executor.load(paths[world.rank], communicator=world, threads=1, placement=placement)
    results = [
        [array.tolist() for array in model.run(feeds_of(rows, seed))] for seed, rows in enumerate(batches)
    ]
    stats = model.stats
    model.close()
    return {"results": results, "collectives": stats.collectives, "backend": world.name}


def killed(world: Communicator, paths: list[str], who: int, after: float) -> dict[str, Any]:
    """One rank is killed while all compute, again and again."""
    model = executor.load(paths[world.rank], communicator=world, threads=1)
    feeds = feeds_of(8)
    model.run(feeds)
    if world.rank == who:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    start = time.monotonic()
    try:
        while True:
            model.run(feeds)
    except ShardrunError as error:
        peer = error.peer if isinstance(error, PeerLostError) else None
        seconds = time.monotonic() - start - after
        return {"error": type(error).__name__, "message": str(error), "peer": peer, "seconds": seconds}


def reshaped(world: Communicator, paths: list[str]) -> dict[str, Any]:
    """A value whose shape is another each time crosses between two ranks."""
    model = executor.load(paths[world.rank], communicator=world, threads=1)
    rows = [[1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]]
    return {"results": [[a.tolist() for a in model.run({"x": np.array(row, np.float32)})] for row in rows]}


class Slow:
    """A session that takes longer, asleep: it shares no processor with the other ranks."""

    def __init__(self, session: Any, seconds: float) -> None:
        self._session = session
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any) -> None:
        """Computes, and then sleeps."""
        self._session.run_with_iobinding(binding)
        time.sleep(self._seconds)


def overlapped(world: Communicator, folders: dict[str, list[str]], rows: int) -> dict[str, Any]:
    """Seconds for a batch in one piece and in several, every row taking a stage the same time."""
    seconds = {}
    for micro_batches, paths in folders.items():
        model = executor.load(paths[world.rank], communicator=world, threads=1)
        program = model._program._program  # type: ignore[union-attr]  # a schedule's
        slow = 0.05 * rows / int(micro_batches)
        program._sessions = [item and Slow(item, slow) for item in program._sessions]
        feeds = feeds_of(rows)
        model.run(feeds)
        model.run(feeds)
        world.barrier()
        start = time.monotonic()
        for _ in range(2):
            model.run(feeds)
        seconds[micro_batches] = (time.monotonic() - start) / 2
    return {"seconds": seconds}


def main() -> None:
    folder, scenario, options = sys.argv[1:]
    world = group.join()
    with Path(folder, f"report{world.rank}.jsonl").open("w") as report:
        result = globals()[scenario](world, **json.loads(options))
        print(json.dumps({**result, "finished": True}), file=report, flush=True)
    # As a rank that failed ends: at once, so that those that wait for it learn of it.
    group.leave()


if __name__ == "__main__":
    main()
