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
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sharding.rules import RULES
from sharding.search.exchanges import exchanging_options
from tests.sharding import operator_tests
from tests.sharding.operator_tests import KINDS, Tally
from tests.sharding.proof import kind, prove, runnable
from tests.sharding.rule_cases import CASES
from tests.sharding.search.test_exchanges import PRODUCTS, RANGES


def _run(job: tuple[str, int, tuple[int, ...], tuple[int, ...]]) -> Tally:
    group, number, worlds, forced = job
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        return operator_tests.run(operator_tests.load(group)[number], Path(folder), worlds, forced=forced)


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
    for group in KINDS:  # loaded here, so that the workers, which are forks, have it
        operator_tests.load(group)
    print("| tests | known | usable | models | slicings | with split weights | forced options | failures |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for group in KINDS:
            numbers = range(0, len(operator_tests.load(group)), arguments.every)
            tally = Tally()
            jobs = [(group, number, worlds, forced) for number in numbers]
            for result in pool.imap_unordered(_run, jobs, chunksize=8):
                tally.add(result)
            total.add(tally)
            _print(group, tally)
    _print("all", total)
    _print_unproved(total)
    for line in sorted(total.failures):
        print(line)
    print(f"Not run by ONNX Runtime: {', '.join(sorted(total.unusable))}")
    return 1 if total.failures else 0


def _print_unproved(total: Tally) -> None:
    """Proves every rule by its cases, and names what a rule offered above that no case has proved."""
    proved: Counter[tuple[str, str, str]] = Counter()
    nodes = 0
    for case in filter(runnable, CASES):
        nodes += 1
        for world in (2, 3, 4):
            proved.update((case.domain, case.op_type, kind(option)) for option in prove(case, world))
    for case in (*RANGES, *PRODUCTS):
        nodes += 1
        for world in (2, 3, 4):
            options = prove(case, world, exchanging_options)
            proved.update((case.domain, case.op_type, kind(option)) for option in options)
    rules = {(domain, op_type) for domain, op_type, _ in proved}
    missing = sorted(".".join(filter(None, item)) for item in set(RULES) - rules)
    unseen = sorted(".".join(filter(None, item)) for item in total.offered - set(proved))
    print(f"{len(RULES)} rules, proved by {proved.total()} options of {nodes} nodes on 2, 3 and 4 ranks.")
    print(f"Rules not proved: {', '.join(missing) or 'none'}")
    print(f"Kinds of options that rules offered above and no proof has run: {', '.join(unseen) or 'none'}")


def _print(name: str, tally: Tally) -> None:
    counts = [tally.known, tally.usable, tally.variants, tally.slicings, tally.split, tally.forced]
    print("| " + " | ".join(map(str, [name, *counts, len(tally.failures)])) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
