"""Cables that are cut: both sides notice that nothing comes any more, and nothing stays of the job."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from launcher.starters.mpirun import find
from tests.clusters import ADDRESSES, NAMES
from tests.launcher.clusters.conftest import Cluster
from tests.launcher.processes import wait_until

FIRST, SECOND = NAMES
TWO = ("--hosts", f"{FIRST}:1,{SECOND}:1")


@pytest.mark.parametrize("launcher", ["ssh", "mpirun"])
def test_a_cut_cable_is_named(cluster: Cluster, launcher: str) -> None:
    """Neither side hears of it: both notice that nothing comes any more, and nothing is left of the job."""
    path = cluster.folder / "script.py"
    path.write_text("import time; print('running', flush=True); time.sleep(100)")

    def cut() -> None:
        if wait_until(lambda: cluster.ranks(FIRST) and cluster.ranks(SECOND), 60):
            wait_until(lambda: False, 2.0)  # until they have said hello
        cluster.hosts.link(SECOND, "down")

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        words = ("exec", *TWO, "--launcher", launcher, "--collectives", "gloo", path)
        command = cluster.hosts.command(FIRST, [sys.executable, "-m", "launcher.cli", *words])
        done = subprocess.run(
            command, cwd=cluster.folder, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        assert wait_until(lambda: not cluster.ranks(SECOND), 20), cluster.ranks(SECOND)
        # Open MPI's daemon, which would try for a quarter of an hour to tell its mpirun.
        assert wait_until(lambda: not daemons(cluster, SECOND), 20), daemons(cluster, SECOND)
    finally:
        thread.join()
        cluster.hosts.link(SECOND, "up")
    assert done.returncode == 1
    told = f"^shardrun: error: rank 1 on host {SECOND} is gone: "
    assert re.search(told, done.stderr, re.MULTILINE), done.stderr


def daemons(cluster: Cluster, host: str) -> list[int]:
    """The daemons of an mpirun on a host."""
    return named(cluster, host, {"prted", "orted", "hydra_pmi_proxy"})


def named(cluster: Cluster, host: str, names: Collection[str]) -> list[int]:
    """The processes of such names on a host."""

    def is_one(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip() in names
        except OSError:
            return False

    return [pid for pid in cluster.hosts.processes(host) if is_one(pid)]


@contextlib.contextmanager
def silent(cluster: Cluster) -> Iterator[None]:
    """What is sent to a host that is cut off gets lost without a word, as it does behind routers. By itself
    this network says after three seconds that nobody is there, and every connection ends."""
    for host, other in ((FIRST, SECOND), (SECOND, FIRST)):
        read = cluster.hosts.command(other, ["cat", "/sys/class/net/eth0/address"])
        where = subprocess.run(read, check=True, capture_output=True, text=True).stdout.strip()
        entry = ("ip", "neigh", "replace", ADDRESSES[other], "lladdr", where, "dev", "eth0")
        subprocess.run(cluster.hosts.command(host, [*entry, "nud", "permanent"]), check=True)
    try:
        yield
    finally:
        for host, other in ((FIRST, SECOND), (SECOND, FIRST)):
            entry = ("ip", "neigh", "del", ADDRESSES[other], "dev", "eth0")
            subprocess.run(cluster.hosts.command(host, entry), check=True)


DAEMON_TO_BE = """\
#!/bin/sh
touch {begun}
while [ ! -e {go} ]; do sleep 0.05; done
exec {prted} "$@"
"""

WAITS = "before it is told anything"


class Starting:
    """A job of Open MPI whose daemon waits, before it does anything, for the file ``go``."""

    def __init__(self, cluster: Cluster, folder: Path, moment: str) -> None:
        self.cluster, self.moment = cluster, moment
        self.begun, self.go, self.program = (folder / name for name in ("begun", "go", "daemon-to-be"))
        prted = find().path.with_name("prted")
        self.program.write_text(DAEMON_TO_BE.format(begun=self.begun, go=self.go, prted=prted))
        self.program.chmod(0o755)
        self.found: list[bool] = []

    def reach_and_cut(self) -> None:
        """Lets it come as far as is asked for, and cuts the cable."""
        self.found.append(wait_until(self.begun.exists, 60))
        if self.moment == "before it has connected":
            self.cluster.hosts.link(SECOND, "down")
            self.go.touch()
        elif self.moment == WAITS:
            stopped = named(self.cluster, FIRST, {"mpirun", "prterun"})
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            self.go.touch()
            self.found.append(wait_until(lambda: any(map(is_connected, daemons(self.cluster, SECOND))), 60))
            self.cluster.hosts.link(SECOND, "down")
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        else:
            self.go.touch()
            self.found.append(wait_until(lambda: starts_a_rank(self.cluster, SECOND), 60))
            self.cluster.hosts.link(SECOND, "down")
        self.found.append(wait_until(lambda: daemons(self.cluster, SECOND), 60))


@pytest.mark.parametrize("moment", ["before it has connected", WAITS, "before its ranks say anything"])
def test_a_cable_cut_while_daemons_start(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """The job ends in time, and names the host. Its daemon ends with its ranks, or before it has connected as
    soon as its host's kernel gives up, which is told here to be brief. One that waits for its first word
    notices that the connection is gone, and stays: docs/failures.md."""
    if find().flavour != "openmpi":
        pytest.skip("this holds up the daemon of Open MPI 5, which is not here")
    job = Starting(cluster, tmp_path, moment)
    thread = threading.Thread(target=job.reach_and_cut)
    with silent(cluster), brief(cluster, SECOND):
        thread.start()
        try:
            done = cluster.run(
                "run", cluster.slices, *TWO, "--launcher", "mpirun", "--repeat", 10**9,
                PRTE_MCA_prte_launch_agent=str(job.program),
            )  # fmt: skip
            thread.join()
            assert all(job.found) and done.returncode == 1
            assert re.match(rf"shardrun: error: .*\bhost {SECOND}\b", done.stderr), done.stderr
            if moment != WAITS:
                assert wait_until(lambda: not daemons(cluster, SECOND), 60), daemons(cluster, SECOND)
        finally:
            thread.join()
            cluster.hosts.link(SECOND, "up")
            for pid in daemons(cluster, SECOND):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def brief(cluster: Cluster, host: str) -> Iterator[None]:
    """On this host the kernel soon gives up a connection that nobody answers."""
    name = "net.ipv4.tcp_syn_retries"
    read = cluster.hosts.command(host, ["sysctl", "-n", name])
    before = subprocess.run(read, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(cluster.hosts.command(host, ["sysctl", "-q", f"{name}=1"]), check=True)
    try:
        yield
    finally:
        subprocess.run(cluster.hosts.command(host, ["sysctl", "-q", f"{name}={before}"]), check=True)


def is_connected(pid: int) -> bool:
    """Whether a process has a connection to another host."""
    try:
        own = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(row[3] == "01" and row[1][:8] != row[2][:8] and f"socket:[{row[9]}]" in own for row in rows)


def starts_a_rank(cluster: Cluster, host: str) -> bool:
    for pid in cluster.hosts.processes(host):
        with contextlib.suppress(OSError):
            if b"\0ranks.boot\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False
