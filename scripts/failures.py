"""Kills ranks, launchers, hosts and cables in every way, and writes docs/failures.md.

    python scripts/failures.py                          # every cell that this machine allows: half an hour
    python scripts/failures.py --open                   # those that the page has not, or has as wrong
    python scripts/failures.py --uncommitted            # and those that were tried of no commit
    python scripts/failures.py --only SIGKILL:ssh:2     # some: DEATH:STARTER:HOSTS, each may be left out
    python scripts/failures.py --minutes 20             # as many as fit, in an order that mixes them
    python scripts/failures.py --page                   # the page anew from what is kept; runs nothing

It needs root, for the two hosts that it makes of Linux's namespaces; Slurm's programs for the cells of Slurm,
and an MPICH (--mpich, a folder with bin/mpirun) or Intel MPI (--intel) for the cells of these. What came of
each cell is kept in a folder (--records, by default docs/failures), with the day and the commit; the page is
written from the last of each cell. Two runs that share the work (--part 1/2, 2/2) take half of the time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import clusters  # noqa: E402  # the path above is needed first
from tests.failures import deaths as known  # noqa: E402
from tests.failures import page, records  # noqa: E402
from tests.failures.deaths import DEATHS, HOSTS, MPIS, QUICK, STARTERS, Death, left_out  # noqa: E402
from tests.failures.jobs import Jobs  # noqa: E402
from tests.launcher import slices  # noqa: E402

PAGE = ROOT / "docs" / "failures.md"
RECORDS = ROOT / "docs" / "failures"
Cell = tuple[Death, str, int]
TRIES = 2


def main() -> int:
    """Runs the cells; the exit code says whether all are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="DEATH:STARTER:HOSTS")
    for name in MPIS:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=0.0, metavar="M")
    parser.add_argument(
        "--start", type=float, default=known.START_SECONDS, metavar="S",
        help="when a cable is cut at the start (default: %(default)g s after it)",
    )  # fmt: skip
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument(
        "--records",
        type=Path,
        default=RECORDS,
        metavar="DIR",
        help="where what came of each cell is kept (default: docs/failures)",
    )
    parser.add_argument(
        "--open", action="store_true", help="only cells of which the records say nothing, or nothing good"
    )
    parser.add_argument(
        "--uncommitted", action="store_true",
        help="only cells of which the records say nothing, nothing good, or nothing of a commit",
    )  # fmt: skip
    parser.add_argument(
        "--left-out", action="store_true", help="say which cells the tests leave out, and run nothing"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page from the records, and run nothing"
    )
    args = parser.parse_args()
    if args.left_out:
        say_left_out()
        return 0
    kept = records.Records(args.records)
    if args.page:
        write_page(kept)
        return 0
    cells = [(death, starter, count) for death in DEATHS for count in HOSTS for starter in STARTERS]
    if args.only:
        cells = [cell for cell in cells if any(matches(cell, item) for item in args.only)]
    if args.open or args.uncommitted:
        strict = args.uncommitted
        cells = [cell for cell in cells if not kept.is_right(cell[0].name, *cell[1:], committed=strict)]
    if args.minutes or args.part != "1/1":
        random.Random(0).shuffle(cells)
    part, parts = map(int, args.part.split("/"))
    found = run(cells[part - 1 :: parts], args, kept)
    if found:
        write_page(kept)
    wrong = [record for record in found if record["problems"]]
    print(f"{len(found)} cells, {len(wrong)} of them wrong")
    return 1 if wrong else 0


def run(cells: list[Cell], args: argparse.Namespace, kept: records.Records) -> list[dict[str, Any]]:
    """What came of the cells, as far as the time goes."""
    if reason := clusters.missing():
        print(f"left out, all of it: {reason}")
        return []
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="failures-") as temporary:
        folder = Path(temporary)
        with clusters.hosts(folder / "hosts") as hosts:
            slurm = None if clusters.missing(slurm=True) else clusters.Slurm(hosts)
            mpis = {MPIS[name]: place for name in MPIS if (place := getattr(args, name))}
            jobs = Jobs(hosts, folder, slices.make_slices(folder / "slices"), mpis, slurm, start=args.start)
            for starter in STARTERS:
                if why := jobs.missing(starter):
                    print(f"left out, {starter}: {why}")
            for cell in cells:
                starter = cell[1]
                if time.monotonic() > end or left_out(*cell) or jobs.missing(starter):
                    continue
                found.append(tried(jobs, cell, kept))
    return found


def tried(jobs: Jobs, cell: Cell, kept: records.Records) -> dict[str, Any]:
    """The record of a cell, tried again where it is not right."""
    death, starter, count = cell
    tries = 0
    while tries < TRIES:
        tries += 1
        outcome = jobs.run(death, starter, count)
        word = "WRONG" if outcome.problems else "right"
        print(
            f"{word} {death.name} | {starter} | {count}: {outcome.code} {outcome.seconds:.1f} s "
            f"{outcome.first_line[:150]}"
        )
        for problem in outcome.problems:
            print(f"      {problem}")
        if outcome.problems:
            print("      " + outcome.errors.replace("\n", "\n      "))
        sys.stdout.flush()
        if not outcome.problems:
            break
    return kept.add(death.name, starter, count, tries, outcome)


def say_left_out() -> None:
    """What tests/launcher/clusters/test_failures.py does not try."""
    cells = [(d, s, h) for d in DEATHS for h in HOSTS for s in STARTERS if not left_out(d, s, h)]
    tried_here = 0 if clusters.missing() else len(QUICK)
    print(
        f"failures: {tried_here} of {len(cells)} deaths are tried; scripts/failures.py tries all "
        "(docs/failures.md)"
    )
    for slurm in (False, True):
        if reason := clusters.missing(slurm=slurm):
            print(f"failures: left out {'with Slurm' if slurm else 'all'}: {reason}")


def write_page(kept: records.Records) -> None:
    """Writes docs/failures.md."""
    PAGE.write_text(page.written(kept.last))
    print(f"wrote {PAGE}")


def matches(cell: Cell, text: str) -> bool:
    """Whether a cell is one of those that ``--only`` names."""
    wanted = [*text.split(":"), "", ""][:3]
    return all(
        not want or want == have
        for want, have in zip(wanted, (cell[0].name, cell[1], str(cell[2])), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
