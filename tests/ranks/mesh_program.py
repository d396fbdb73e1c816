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

from ranks import executor, group
from ranks.collectives.base import Communicator
from ranks.errors import PeerLostError, ShardrunError
from tests.ranks.mesh_models import feeds_of


def computed(world: Communicator, paths: list[str], batches: list[int]) -> dict[str, Any]:
    """Every output of every batch."""
    model = executor.load(paths[world.rank], communicator=world, threads=1)
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
