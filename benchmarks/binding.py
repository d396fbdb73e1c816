"""BERT-base on ranks with cores of their own and without: the time of a request, and its spread.

    python benchmarks/binding.py [--ranks 2] [--sequence 128] [--seconds 60] [--turns 6]

A group with `--bind cores` and one with `--bind none` take turns on the same slices, for so many seconds of
requests, all together. Each turn starts them anew, since where the system puts unbound ranks is decided when
they start. Printed are milliseconds of one request of one row of so many tokens: median, 90th and 99th
percentile, and the longest.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from common import parser_of


def main() -> int:
    """Measures and prints one line for each way."""
    options = parser_of(__doc__, ranks=2, sequence=128, seconds=60.0, turns=6).parse_args()
    from benchmarks.latency import feeds_of
    from launcher import start
    from launcher.job.cache import sliced
    from launcher.job.places.placement import Placement
    from tests import models

    slices = sliced(models.get("bert_base").path, options.ranks)
    feeds = feeds_of(options.sequence)
    ways = ("cores", "none")
    taken: dict[str, list[float]] = {way: [] for way in ways}
    each = options.seconds / options.turns / len(ways)
    for turn in range(options.turns):
        for way in ways if turn % 2 else reversed(ways):
            with start(slices, placement=Placement(bind=way)) as group:
                for _ in range(3):
                    group.predict(feeds)
                end = time.monotonic() + each
                while time.monotonic() < end:
                    began = time.perf_counter()
                    group.predict(feeds)
                    taken[way].append(time.perf_counter() - began)
    print(f"BERT-base, {options.ranks} ranks, sequence {options.sequence}: ms of a request")
    print(f"{'bound to':>9} {'requests':>9} {'median':>8} {'90 %':>8} {'99 %':>8} {'longest':>8}")
    for way, times in taken.items():
        found = np.percentile(np.array(times) * 1e3, [50, 90, 99, 100])
        print(f"{way:>9} {len(times):>9} " + " ".join(f"{value:>8.1f}" for value in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
