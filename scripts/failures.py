"""Kills ranks, launchers, hosts and cables in every way, and writes docs/failures.md.

    python scripts/failures.py                          # every cell that this machine allows
    python scripts/failures.py --only SIGKILL:ssh:2     # some: DEATH:STARTER:HOSTS, each may be left out

It needs root, for the two hosts that it makes of Linux's namespaces; Slurm's programs for the cells of Slurm, and
an MPICH (``--mpich``, a folder with bin/mpirun) for those of MPICH.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import clusters  # noqa: E402  # the path above is needed first
from tests.failures.deaths import DEATHS, HOSTS, STARTERS, left_out  # noqa: E402
from tests.failures.jobs import Jobs  # noqa: E402
from tests.launcher import slices  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="DEATH:STARTER:HOSTS")
    parser.add_argument("--mpich", type=Path, metavar="DIR")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    cells = [(d, s, h) for d in DEATHS for h in HOSTS for s in STARTERS]
    if args.only:
        wanted = [item.split(":") for item in args.only]
        cells = [c for c in cells if any(matches(c, item) for item in wanted)]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="failures-") as place:
        folder = Path(place)
        with clusters.hosts(folder / "hosts") as hosts:
            slurm = None if clusters.missing(slurm=True) else clusters.Slurm(hosts)
            jobs = Jobs(hosts, folder, slices.make_slices(folder / "slices"), args.mpich, slurm)
            for death, starter, count in cells:
                why = left_out(death, starter, count) or jobs.missing(starter)
                if why:
                    if args.v:
                        print(f"--    {death.name} | {starter} | {count}: {why}", flush=True)
                    continue
                began = time.monotonic()
                outcome = jobs.run(death, starter, count, args.rank)
                word = "FAILS" if outcome.problems else "ok   "
                failed += bool(outcome.problems)
                print(
                    f"{word} {death.name} | {starter} | {count}: code {outcome.code} {outcome.seconds:.1f} s "
                    f"({time.monotonic() - began:.0f} s) {outcome.first_line[:160]}",
                    flush=True,
                )
                for problem in outcome.problems:
                    print(f"        {problem}", flush=True)
                if outcome.problems or args.v:
                    print("        " + outcome.errors.replace("\n", "\n        "), flush=True)
    return 1 if failed else 0


def matches(cell, item) -> bool:
    death, starter, count = cell
    wanted = [*item, "", ""]
    return (
        (not wanted[0] or death.name == wanted[0])
        and (not wanted[1] or starter == wanted[1])
        and (not wanted[2] or str(count) == wanted[2])
    )


if __name__ == "__main__":
    sys.exit(main())
