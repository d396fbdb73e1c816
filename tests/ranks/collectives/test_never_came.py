"""Ranks that end with exit code 0 before they join, which mpirun takes for a success: the others end too."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ranks.collectives import siblings
from ranks.common import sources
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import need

SECONDS = 100
"""The ranks would wait for ever, or four times as long."""
_LATE = siblings._LOOK_SECONDS * siblings._LOOKS + 3
ENDS = """
import os, sys, time
from pathlib import Path
file = Path(os.environ["ENDED"])
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    written = Path(f"{file}.new")
    written.write_text(str(os.getpid()))
    written.rename(file)
    os._exit(0)
while not file.exists():
    time.sleep(0.01)
status = Path("/proc", file.read_text(), "status")
try:
    while "State:\tZ" not in status.read_text():
        time.sleep(0.01)  # where it has called MPI_Init before that, Open MPI itself notices
except OSError:  # it has been waited for
    pass
"""
JOINS = """
from ranks.run import group
group.join()
"""
BEGINS = """
import mpi4py, sys, threading
mpi4py.rc.initialize = False
from mpi4py import MPI
from ranks.collectives import beginning
from ranks.identity.identity import identify
said, end = threading.Event(), beginning.end
def go_on():
    print("others go on", flush=True)
    said.set()
def end_then(why):
    said.wait()
    end(why)
beginning.end = end_then
threading.Timer(0.5, go_on).start()
beginning.begin(MPI, identify(), float(sys.argv[1]))
"""


def run(
    program: str, collectives: str, ends: str = ENDS, seconds: float = SECONDS, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    """What came of the ranks of an mpirun that a user started."""
    need("mpi")
    environ = {
        **os.environ, **worlds.SETTINGS, "SHARDRUN_COLLECTIVES": collectives,
        "SHARDRUN_TIMEOUT": str(4 * SECONDS),
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    command = [str(worlds.mpirun()), "-n", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [*command, sys.executable, "-c", ends + program, str(seconds)],
            env={**environ, "ENDED": f"{folder}/ended"}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip


@pytest.mark.parametrize("collectives", ["mpi", "shm"])
def test_a_rank_of_this_host(collectives: str) -> None:
    done = run(JOINS, collectives)
    assert done.returncode == 1
    gone = "waits in vain: rank 1 on this host ended before all had joined, and what"
    assert f"shardrun: error: rank 0 on host {os.uname().nodename} {gone}" in done.stderr, done.stderr


def test_a_rank_of_which_nothing_is_known() -> None:
    """As where it is on another host. In the time-out's place, what other threads do is not held up."""
    done = run(BEGINS, "mpi", seconds=2)
    assert done.returncode == 1
    assert "others go on" in done.stdout
    waited = f"shardrun: error: rank 0 on host {os.uname().nodename} has waited 2 s in MPI_Init for the other"
    assert waited in done.stderr, done.stderr


def test_errors_stay_exceptions() -> None:
    """MPI's own way would be to end all ranks where a call fails."""
    more = """
try:
    MPI.COMM_WORLD.Send(b"", 77)
except MPI.Exception:
    print("refused", flush=True)
MPI.Finalize()
"""
    done = run(BEGINS + more, "mpi", ends="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 2


def test_ranks_of_another_launcher_inside_of_mpirun() -> None:
    """They have its variables, all the same ones; here one is late."""
    late = f"import os, time\nif os.environ['RANK'] == '1':\n    time.sleep({_LATE})\n{JOINS}"
    starts = f"""
import os, subprocess, sys
told = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="0")
command = [sys.executable, "-c", {late!r}]
ranks = [subprocess.Popen(command, env=dict(told, RANK=one, LOCAL_RANK=one)) for one in "01"]
sys.exit(max(rank.wait() for rank in ranks))
"""
    done = run(starts, "shm", ends="", ranks=1)
    assert done.returncode == 0, done.stderr


def test_the_end_takes_files_of_mpich_with_it() -> None:
    """It would remove them when all ranks have opened them, which they never do."""
    program = """
import mmap, sys
from ranks.collectives.beginning import end
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
end("enough")
"""
    path = Path(f"/dev/shm/mpich_shm_test{os.getpid()}")
    done = subprocess.run(
        [sys.executable, "-c", program, path], env={**os.environ, **worlds.SETTINGS},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "shardrun: error: enough\n")
    assert not path.exists()


def test_who_is_there() -> None:
    """Processes that are no ranks, and ranks that have ended, do not count. One that shows no variable, as
    it has written its title over them, may be a rank."""
    environ = {name: value for name, value in os.environ.items() if name != sources.OMPI_RANK}
    wait = [sys.executable, "-c", "input()"]
    started = [
        subprocess.Popen(wait, stdin=subprocess.PIPE, env=told)
        for told in ({**environ, sources.OMPI_RANK: "0"}, {**environ, sources.OMPI_RANK: "3"}, environ, {})
    ]
    try:
        assert siblings.present(os.getpid(), sources.OMPI_RANK) == ({0, 3}, 1)
        started[1].kill()
        os.waitid(os.P_PID, started[1].pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{started[1].pid}").exists()
        assert siblings.present(os.getpid(), sources.OMPI_RANK) == ({0}, 1)
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
