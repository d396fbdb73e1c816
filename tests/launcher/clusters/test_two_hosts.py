"""Ranks on two hosts that share nothing but files: over ssh, by mpirun, and by Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import ADDRESSES, NAMES
from tests.launcher.clusters.conftest import Cluster

FIRST, SECOND = NAMES
TWO = ("--hosts", f"{FIRST}:1,{SECOND}:1")
IN_TWO_NODES = ("salloc", "--quiet", "--nodes=2", "--ntasks=2")
WHERE = """
import os
from ranks.identity.identity import identify
me = identify()
cores = len(os.sched_getaffinity(0))
print(me.rank, me.world_size, me.local_rank, me.host, os.environ["SHARDRUN_TARGET"], os.environ["A"], cores)
"""
DYING = """
import os, signal, sys, time
from ranks.identity.identity import identify
if identify().rank == 1:
    time.sleep(0.3)
    {}
time.sleep(60)
"""


def script(cluster: Cluster, text: str) -> Path:
    path = cluster.folder / "script.py"
    path.write_text(text)
    return path


def row(text: str, name: str) -> str:
    found = re.search(rf"^{name}  +(.*?)\s*$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("launcher", ["ssh", "mpirun"])
def test_a_job(cluster: Cluster, launcher: str) -> None:
    done = cluster.run("run", cluster.slices, *TWO, "--launcher", launcher, "--verify")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "hosts") == f"{FIRST} (rank 0); {SECOND} (rank 1)"
    assert row(done.stdout, "collectives by") == {"ssh": "gloo", "mpirun": "mpi"}[launcher]
    assert done.stdout.count(" ok") and "DIFFERS" not in done.stdout


@pytest.mark.parametrize("launcher", ["ssh", "mpirun"])
def test_variables_reach_all_hosts(cluster: Cluster, launcher: str) -> None:
    """A user's own ones by their names, ours by themselves; two ranks of a host have a core each."""
    path = script(cluster, WHERE)
    words = ("--hosts", f"{FIRST},{SECOND}", "--ranks", 3, "--launcher", launcher, "--env", "A")
    done = cluster.run("exec", *words, path, SHARDRUN_TARGET="cpu", A="b")
    assert done.returncode == 0, done.stderr
    lines = sorted(re.sub(r"^\[\d+@\w+\] +", "", line) for line in done.stdout.splitlines())
    if len(os.sched_getaffinity(0)) == 2:
        assert lines == [f"0 3 0 {FIRST} cpu b 1", f"1 3 1 {FIRST} cpu b 1", f"2 3 0 {SECOND} cpu b 2"]
    places = [f"0 3 0 {FIRST} cpu b", f"1 3 1 {FIRST} cpu b", f"2 3 0 {SECOND} cpu b"]
    assert [line.rpartition(" ")[0] for line in lines] == places


def test_an_allocation_is_used_whole(slurm: Cluster) -> None:
    """Without a word of hosts, ranks or launcher."""
    model = slurm.folder / "model.onnx"
    if not model.exists():
        from tests.launcher.cli_tools import save_mlp

        save_mlp(model)
    done = slurm.run("run", model, "--verify", before=IN_TWO_NODES)
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "ranks") == "2"
    assert row(done.stdout, "hosts") == f"{FIRST} (rank 0); {SECOND} (rank 1)"


@pytest.mark.parametrize("launcher", ["mpirun", "ssh", "slurm"])
def test_in_an_allocation_by_name(slurm: Cluster, launcher: str) -> None:
    done = slurm.run(
        "exec", "--ranks", 2, "--launcher", launcher, "--collectives", "gloo", "--env", "A=b",
        script(slurm, WHERE), before=IN_TWO_NODES, SHARDRUN_TARGET="cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"[0@{FIRST}] 0 2 0 {FIRST} cpu b" in done.stdout
    assert f"[1@{SECOND}] 1 2 0 {SECOND} cpu b" in done.stdout


def test_what_is_not_used_is_said(slurm: Cluster) -> None:
    job = "Slurm job [0-9]+ has"
    done = slurm.run("exec", "--ranks", 1, script(slurm, "print('done')"), before=IN_TWO_NODES)
    assert done.returncode == 0 and "done" in done.stdout
    assert re.search(f"{job} 2 hosts, but 1 starts: {SECOND} is not used", done.stderr)
    done = slurm.run(
        "exec", "--ranks", 2, "--launcher", "local", script(slurm, "print('done')"), before=IN_TWO_NODES
    )
    assert re.search(f"{job} 2 hosts, but --launcher local starts all ranks on this one", done.stderr)


def test_nodes_of_its_own(slurm: Cluster) -> None:
    done = slurm.run(
        *("exec", "--nodes", 2, "--ranks", 3, "--env", "A=b", "--collectives", "gloo", script(slurm, WHERE)),
        SHARDRUN_TARGET="cpu",
    )
    assert done.returncode == 0, done.stderr
    hosts = sorted(re.findall(r"\d 3 \d (\S+) cpu b", done.stdout))
    assert hosts in ([FIRST, FIRST, SECOND], [FIRST, SECOND, SECOND])
    assert slurm.slurm is not None
    slurm.slurm.idle()


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("sys.exit(7)", f"rank 1 on host {SECOND} ended with exit code 7."),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"rank 1 on host {SECOND} was killed by SIGKILL."),
        ("os._exit(0)", f"rank 1 on host {SECOND} ended with exit code 0 before it was done"),
    ],
)
@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_the_first_cause_on_another_host(slurm: Cluster, launcher: str, ending: str, message: str) -> None:
    before = IN_TWO_NODES if launcher == "slurm" else ()
    hosts = ("--ranks", 2) if launcher == "slurm" else TWO
    path = script(slurm, DYING.format(ending))
    done = slurm.run("exec", *hosts, "--launcher", launcher, "--collectives", "gloo", path, before=before)
    assert done.returncode not in {0, 2}
    assert done.stderr.startswith(f"shardrun: error: {message}"), done.stderr


LEAVES = """
import os, subprocess, time
subprocess.Popen(["sleep", "100"], close_fds=False)
if os.fork() == 0:
    time.sleep(100)
print("done", flush=True)
{}
"""


@pytest.mark.parametrize("end", ["", "os._exit(3)"])
def test_what_ranks_have_started_ends_with_them(slurm: Cluster, end: str) -> None:
    """Slurm here knows processes by their parents, and leaves those; while they hold a rank's output open it
    waits for them."""
    before = ("salloc", "--quiet", "--nodes=1", "--ntasks=2")
    done = slurm.run("exec", "--launcher", "slurm", script(slurm, LEAVES.format(end)), before=before)
    # Of two that fail the first ends the other, which may not have come so far.
    said = done.stdout.count("done")
    assert said == 2 or (end and said == 1), done.stdout
    assert bool(done.returncode) == bool(end), done.stderr
    assert not [pid for name in (FIRST, SECOND) for pid in slurm.hosts.processes(name) if is_left(pid)]


def is_left(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return words.startswith(b"sleep\x00100\x00") or b"ranks.boot" in words
    except OSError:
        return False


SILENT = "10.78.0.9"
SAYS_NOTHING = f"""
import socket, time
server = socket.create_server(({SILENT!r}, 22))
time.sleep(10**6)
"""


def test_a_host_that_says_nothing(cluster: Cluster) -> None:
    """Its sshd accepts, and waits. The time is the user's own; else it is ours. One sentence is all that is
    shown of it before mpirun's own."""
    add, drop = (
        cluster.hosts.command(SECOND, ["ip", "addr", word, f"{SILENT}/24", "dev", "eth0"])
        for word in ("add", "del")
    )
    subprocess.run(add, check=True)
    server = subprocess.Popen(cluster.hosts.command(SECOND, [sys.executable, "-c", SAYS_NOTHING]))
    try:
        done = cluster.run(
            "run", cluster.slices, "--hosts", f"{FIRST}:1,{SILENT}:1", "--launcher", "mpirun",
            PRTE_MCA_plm_ssh_agent="ssh -o ConnectTimeout=2",
        )  # fmt: skip
    finally:
        for pid in cluster.hosts.processes(SECOND):
            with contextlib.suppress(OSError):
                if SILENT in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        server.wait()
        subprocess.run(drop, check=True)
    assert done.returncode == 1
    said = r"host 10\.78\.0\.9 cannot be reached over ssh \(Connection .*timed out.*\), so mpirun starts no"
    assert re.match(rf"shardrun: error: {said}", done.stderr), done.stderr


def test_a_host_that_ssh_does_not_know(cluster: Cluster) -> None:
    """Known hosts are respected: nobody is asked, and nothing is trusted."""
    known = cluster.hosts.folder / "ssh" / "known_hosts"
    text = known.read_text()
    try:
        known.write_text("".join(line for line in text.splitlines(True) if not line.startswith(SECOND)))
        done = cluster.run("exec", *TWO, "--launcher", "ssh", script(cluster, "print('ran')"))
    finally:
        known.write_text(text)
    assert done.returncode == 1
    assert f"host {SECOND} cannot be reached over ssh (Host key verification failed), so" in done.stderr
    assert "Host key verification failed." in done.stderr


@contextlib.contextmanager
def without(cluster: Cluster, host: str, folder: Path) -> Iterator[None]:
    """On this host a folder is another one, empty and full, as long as the context lasts."""
    full = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs", folder]
    subprocess.run(cluster.hosts.command(host, full), check=True)
    try:
        yield
    finally:
        subprocess.run(cluster.hosts.command(host, ["umount", "--lazy", folder]), check=True)


def test_a_python_that_is_missing_on_a_node(slurm: Cluster) -> None:
    """Slurm says it in words of its own, before or after the exit code, and at times not at all."""
    with without(slurm, SECOND, Path(sys.executable).parent):
        done = slurm.run("run", slurm.slices, "--launcher", "slurm", before=IN_TWO_NODES)
        staged = slurm.run("run", slurm.slices, "--launcher", "slurm", "--stage", before=IN_TWO_NODES)
    first, install = done.stderr.partition("\n")[0], "install the same at the same place on all hosts."
    assert done.returncode == staged.returncode == 1
    assert first.startswith(f"shardrun: error: rank 1 on host {SECOND} ") and first.endswith(install)
    assert f"{sys.executable} can" in first, first
    assert staged.stderr.startswith(f"shardrun: error: files cannot be copied to host {SECOND}, which lacks")


def test_no_room_for_a_daemon(cluster: Cluster) -> None:
    """Open MPI's keeps files there, and nobody gets to read what it says. The folder named instead does."""
    other = cluster.folder / "other"
    other.mkdir()
    named = ("--mpi-args", f"--prtemca prte_remote_tmpdir_base {other}")
    with without(cluster, SECOND, cluster.hosts.folder / f"tmp-{SECOND}"):
        done = cluster.run("run", cluster.slices, *TWO, "--launcher", "mpirun")
        better = cluster.run("run", cluster.slices, *TWO, "--launcher", "mpirun", *named)
    start = f"shardrun: error: mpirun starts no ranks on host {SECOND}: its daemon there ended with exit code"
    assert done.returncode == 1 and done.stderr.startswith(start), done.stderr
    assert "is full or cannot be written" in done.stderr.partition("\n")[0]
    assert better.returncode == 0, better.stderr


BY_WAY = """
import logging, sys
from launcher.group.starting import run_program
from launcher.job.places.host_list import parse_hosts
from launcher.job.places.placement import Placement
from launcher.starters.agents import fan_out

logging.basicConfig(level=logging.DEBUG)
fan_out.TREE_FROM, fan_out.FIRST_WIDTH = 2, 1
places = Placement(hosts=parse_hosts(sys.argv[2]))
run_program(["exec", sys.argv[1]], launcher="ssh", placement=places, timeout=60)
"""
FROM = """
import os
print(os.environ["RANK"], os.environ["SSH_CONNECTION"].split()[0])
"""


def test_hosts_reach_others(cluster: Cluster) -> None:
    """The second host, under its two names, is reached once from here and once from itself."""
    (cluster.folder / "by_way.py").write_text(BY_WAY)
    far = f"{SECOND}:1,{ADDRESSES[SECOND]}:1"
    done = cluster.python(cluster.folder / "by_way.py", script(cluster, FROM), far)
    assert done.returncode == 0, done.stderr
    lines = sorted(re.sub(r"^\[\d+@\w+\] +", "", line).split() for line in done.stdout.splitlines())
    assert lines == [["0", ADDRESSES[FIRST]], ["1", ADDRESSES[SECOND]]], done.stderr
    assert "is reached from here" not in done.stderr


def test_a_world_of_its_own_is_refused(slurm: Cluster) -> None:
    """With a plugin that the library does not understand, MPI makes each task a world of one, in silence."""
    done = slurm.run(
        *("run", slurm.slices, "--collectives", "mpi", "--timeout", "30"),
        before=("srun", "--nodes=2", "--ntasks=2", "--mpi=pmi2", "--kill-on-bad-exit=1"),
    )
    assert done.returncode != 0
    assert "made a world of 1, but PMI_RANK and PMI_SIZE say that 2 ranks were started" in done.stderr
    assert "choose another `srun --mpi=`" in done.stderr
