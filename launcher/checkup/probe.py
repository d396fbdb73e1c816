"""What each rank of ``shardrun doctor --ranks N`` runs: it meets the others, sums with them, and is timed.

Rank 0 prints one line of JSON: the collectives, the hosts, and seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import numpy as np

from ranks.collectives.base import Communicator
from ranks.run import group

SMALL, LARGE = 1, 2 << 20
"""Elements of float32 that are summed, to know the delay and the bandwidth."""
_SMALL_TIMES, _LARGE_TIMES = 50, 5


def main() -> None:
    """Runs as one rank. Raises `RuntimeError` for a wrong sum."""
    began = time.perf_counter()
    communicator = group.join()
    communicator.barrier()
    met = time.perf_counter() - began
    found = {
        "backend": communicator.name,
        "ranks": communicator.size,
        "hosts": _hosts(communicator),
        "met": met,
        "small": _summed(communicator, SMALL, _SMALL_TIMES),
        "large": _summed(communicator, LARGE, _LARGE_TIMES),
        "bytes": LARGE * 4,
    }
    group.leave()
    if communicator.rank == 0:
        print(json.dumps(found), flush=True)


def _summed(communicator: Communicator, count: int, times: int) -> float:
    """Median seconds of one all-reduce, whose sum is checked."""
    buffer = communicator.allocate((count,), np.dtype(np.float32))
    size, taken = communicator.size, []
    for turn in range(times):
        buffer[...] = communicator.rank + 1 + turn
        communicator.barrier()
        began = time.perf_counter()
        communicator.all_reduce(buffer)
        taken.append(time.perf_counter() - began)
        wanted = size * (size + 1) / 2 + size * turn
        if not bool((buffer == wanted).all()):
            raise RuntimeError(f"the sum over {size} ranks is {buffer[0]:g}, but should be {wanted:g}")
    return statistics.median(taken)


def _hosts(communicator: Communicator) -> list[str]:
    """The host of each rank."""
    mine = np.zeros((1, 256), np.uint8)
    name = np.frombuffer(os.uname().nodename.encode()[:256], np.uint8)
    mine[0, : name.size] = name
    everyone = np.zeros((communicator.size, 256), np.uint8)
    communicator.all_gather(mine, everyone)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in everyone]


if __name__ == "__main__":
    main()
