"""Kills ranks, launchers, hosts and cables in every way, and writes docs/failures.md.

    python scripts/failures.py                          # every cell that this machine allows: half an hour
    python scripts/failures.py --only SIGKILL:ssh:2     # some: DEATH:STARTER:HOSTS, each may be left out
    python scripts/failures.py --minutes 20             # as many as fit, in an order that mixes them

It needs root, for the two hosts that it makes of Linux's namespaces; Slurm's programs for the cells of Slurm,
and an MPICH (``--mpich``, a folder with bin/mpirun) for those of MPICH. ``--records`` keeps what came of each
cell in a file, from which ``--page`` writes the page; two runs that share the work (``--part 1/2``, ``2/2``)
take half of the time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import clusters  # noqa: E402  # the path above is needed first
from tests.failures import page  # noqa: E402
from tests.failures.deaths import DEATHS, HOSTS, QUICK, STARTERS, Death, left_out  # noqa: E402
from tests.failures.jobs import Jobs  # noqa: E402
from tests.launcher import slices  # noqa: E402

PAGE = ROOT / "docs" / "failures.md"
Cell = tuple[Death, str, int]
TRIES = 2


def main() -> int:
    """Runs the cells; the exit code says whether all are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="DEATH:STARTER:HOSTS")
    parser.add_argument("--mpich", type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=0.0, metavar="M")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="append what came of each cell; what is right in it is kept",
    )
    parser.add_argument(
        "--left-out", action="store_true", help="say which cells the tests leave out, and run nothing"
    )
    parser.add_argument(
        "--page",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="write the page from these records, and run nothing",
    )
    args = parser.parse_args()
    if args.left_out:
        say_left_out()
        return 0
    if args.page:
        write_page([json.loads(line) for path in args.page for line in path.read_text().splitlines()])
        return 0
    cells = [(death, starter, count) for death in DEATHS for count in HOSTS for starter in STARTERS]
    if args.only:
        cells = [cell for cell in cells if any(matches(cell, item) for item in args.only)]
    if args.minutes or args.part != "1/1":
        random.Random(0).shuffle(cells)
    part, parts = map(int, args.part.split("/"))
    records = run(cells[part - 1 :: parts], args)
    if not args.only and not args.records:
        write_page(records)
    wrong = [record for record in records if record.get("problems")]
    print(f"{len(records)} records, {len(wrong)} of them wrong")
    return 1 if wrong else 0


def run(cells: list[Cell], args: argparse.Namespace) -> list[dict[str, Any]]:
    """What came of the cells, as far as the time goes."""
    if reason := clusters.missing():
        print(f"left out, all of it: {reason}")
        return []
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    records: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    if args.records and args.records.exists():
        known = [json.loads(line) for line in args.records.read_text().splitlines()]
    done = {(r["death"], r["starter"], r["hosts"]) for r in known if not r["problems"]}
    with tempfile.TemporaryDirectory(prefix="failures-") as place:
        folder = Path(place)
        with clusters.hosts(folder / "hosts") as hosts:
            slurm = None if clusters.missing(slurm=True) else clusters.Slurm(hosts)
            jobs = Jobs(hosts, folder, slices.make_slices(folder / "slices"), args.mpich, slurm)
            for starter in STARTERS:
                if why := jobs.missing(starter):
                    records.append({"missing": starter, "why": why})
            for cell in cells:
                death, starter, count = cell
                if time.monotonic() > end or left_out(*cell) or jobs.missing(starter):
                    continue
                if (death.name, starter, count) in done:
                    continue
                records.append(tried(jobs, cell))
                if args.records:
                    with args.records.open("a") as kept:
                        kept.write(json.dumps(records[-1]) + "\n")
    return records


def tried(jobs: Jobs, cell: Cell) -> dict[str, Any]:
    """A cell, tried again where it is not right."""
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
    return {"death": death.name, "starter": starter, "hosts": count, "tries": tries, **asdict(outcome)}


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


def write_page(records: list[dict[str, Any]]) -> None:
    """Writes docs/failures.md."""
    missing = {record["missing"]: record["why"] for record in records if "missing" in record}
    tried_ = {(r["death"], r["starter"], r["hosts"]): r for r in records if "death" in r}
    PAGE.write_text(page.written(tried_, missing))
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
