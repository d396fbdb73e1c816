"""A Ray cluster of two hosts."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import ADDRESSES, NAMES
from tests.launcher.clusters.conftest import SECONDS, Cluster
from tests.launcher.clusters.test_two_hosts import DYING, row, script

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: at 70 MB it is no requirement of the tests (pip install 'shardrun[ray]')",
)
FIRST, SECOND = NAMES
ADDRESS = f"{ADDRESSES[FIRST]}:6379"
RAY = (sys.executable, "-m", "ray.scripts.scripts")
ASK = ("--launcher", "ray", "--ray-address", ADDRESS)
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
TOKEN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def ray(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The variables of whoever uses the cluster: a token of its own, nothing in the user's folder."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # the paths of Ray's sockets must be short
    variables = {**VARIABLES, "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": str(folder)}
    first = ("--head", "--port=6379", "--include-dashboard=false")
    try:
        for host, more in ((FIRST, first), (SECOND, (f"--address={ADDRESS}",))):
            size = ("--num-cpus=1", "--object-store-memory=80000000")
            own = {**variables, "RAY_TMPDIR": str(folder / host)}
            words = (*RAY, "start", f"--node-ip-address={ADDRESSES[host]}", *size, *more)
            done = _run(cluster, host, words, own)
            assert done.returncode == 0, done.stderr
        yield variables
    finally:
        for host in NAMES:
            _run(cluster, host, (*RAY, "stop", "--force"), variables)
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    cluster: Cluster, host: str, words: tuple[str, ...], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cluster.hosts.command(host, words, **variables), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def test_a_job(cluster: Cluster, ray: dict[str, str]) -> None:
    done = cluster.run("run", cluster.slices, *ASK, "--verify", **ray)
    assert done.returncode == 0, done.stderr
    hosts = row(done.stdout, "hosts")
    assert all(name in hosts for name in NAMES) and hosts.count("(rank ") == 2
    assert row(done.stdout, "collectives by") == "gloo"
    assert done.stdout.count(" ok") and "DIFFERS" not in done.stdout


def test_hosts_that_are_named(cluster: Cluster, ray: dict[str, str]) -> None:
    """Ray then has no choice, and the ranks keep their order."""
    text = "import os\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'], os.uname().nodename)"
    hosts = ("--hosts", f"{SECOND}:1,{FIRST}:1")
    done = cluster.run("exec", *hosts, *ASK, script(cluster, text), **ray)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[0@{SECOND}] 0 0 {SECOND}", f"[1@{FIRST}] 1 0 {FIRST}"]


def test_the_first_cause(cluster: Cluster, ray: dict[str, str]) -> None:
    killing = DYING.format("os.kill(os.getpid(), signal.SIGKILL)")
    done = cluster.run("exec", "--ranks", 2, *ASK, script(cluster, killing), **ray)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("shardrun: error: rank 1 on host sh")
    assert "was killed by SIGKILL." in done.stderr


def test_another_token(cluster: Cluster, ray: dict[str, str]) -> None:
    variables = {**ray, "RAY_AUTH_TOKEN": TOKEN[::-1]}
    done = cluster.run("exec", "--ranks", 2, *ASK, script(cluster, ""), **variables)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"shardrun: error: The Ray cluster at '{ADDRESS}' cannot be used: " in done.stderr
    assert "set RAY_AUTH_MODE=token here too" in done.stderr
