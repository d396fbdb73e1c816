"""Slices every test model of the onnx package, and every operator rule's cases, and prints the counts.

    python scripts/sweep.py [--jobs 2] [--every 1] [--worlds 2,3] [--no-forced]

Exit status 1 if anything differs from ONNX Runtime. Takes minutes; the tests run a part of it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sharding import operator_tests
from tests.sharding.operator_tests import KINDS, Tally


def _run(job: tuple[str, int, tuple[int, ...], tuple[int, ...]]) -> Tally:
    kind, number, worlds, forced = job
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        return operator_tests.run(operator_tests.load(kind)[number], Path(folder), worlds, forced=forced)


def main() -> int:
    """Runs all tests in worker processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only every n-th test")
    parser.add_argument("--worlds", default="2,3")
    parser.add_argument("--no-forced", action="store_true")
    arguments = parser.parse_args()
    worlds = tuple(int(item) for item in arguments.worlds.split(","))
    forced = () if arguments.no_forced else worlds
    total = Tally()
    for kind in KINDS:  # loaded here, so that the workers, which are forks, have it
        operator_tests.load(kind)
    print("| tests | known | usable | models | slicings | with split weights | forced options | failures |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for kind in KINDS:
            numbers = range(0, len(operator_tests.load(kind)), arguments.every)
            tally = Tally()
            jobs = [(kind, number, worlds, forced) for number in numbers]
            for result in pool.imap_unordered(_run, jobs, chunksize=8):
                tally.add(result)
            total.add(tally)
            _print(kind, tally)
    _print("all", total)
    for line in sorted(total.failures):
        print(line)
    print(f"Not run by ONNX Runtime: {', '.join(sorted(total.unusable))}")
    return 1 if total.failures else 0


def _print(kind: str, tally: Tally) -> None:
    counts = [tally.known, tally.usable, tally.variants, tally.slicings, tally.split, tally.forced]
    print("| " + " | ".join(map(str, [kind, *counts, len(tally.failures)])) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
