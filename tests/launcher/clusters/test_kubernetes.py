"""The kubernetes starter with a stand-in for kubectl, whose pods are the two hosts: what it is asked is what
Kubernetes documents of `kubectl get` and `kubectl exec`. No cluster of Kubernetes has been met."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import clusters
from tests.clusters import NAMES
from tests.launcher.clusters.conftest import Cluster
from tests.launcher.clusters.test_two_hosts import DYING, TWO, row, script

FIRST, SECOND = NAMES
KUBECTL = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
if words == ["get", "pods", "-o", "json"]:
    print(open({pods!r}).read())
elif words[:2] == ["exec", "-i"] and words[3] == "--":
    import shlex
    host = {{"job-1-x7k2p": {second!r}}}[words[2]]
    os.execvp({ssh!r}, ["ssh", "-T", host, shlex.join(words[4:])])
else:
    sys.exit(f"error: unknown command {{words}}")
"""


@pytest.fixture
def path(cluster: Cluster, tmp_path: Path) -> str:
    """A PATH with kubectl; the first host has no ssh there."""

    def pod(name: str, host: str, phase: str = "Running") -> dict[str, object]:
        return {
            "metadata": {"name": name}, "spec": {"hostname": host},
            "status": {"phase": phase, "podIP": clusters.ADDRESSES.get(host)},
        }  # fmt: skip

    pods = tmp_path / "pods.json"
    listed = [pod("job-0-a8b1c", FIRST), pod("job-1-x7k2p", SECOND), pod("job-2-old", "gone", "Failed")]
    pods.write_text(json.dumps({"items": listed}))
    program = tmp_path / "kubectl"
    text = KUBECTL.format(
        python=sys.executable, pods=str(pods), second=SECOND, ssh=str(cluster.hosts.bin / "ssh")
    )
    program.write_text(text)
    program.chmod(0o755)
    return os.pathsep.join([str(tmp_path), os.environ["PATH"]])


def test_ranks_run_in_pods(cluster: Cluster, path: str) -> None:
    done = cluster.run("run", cluster.slices, *TWO, "--launcher", "kubernetes", "--verify", PATH=path)
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "hosts") == f"{FIRST} (rank 0); {SECOND} (rank 1)"
    assert row(done.stdout, "collectives by") == "gloo" and "DIFFERS" not in done.stdout


def test_files_are_copied_to_pods(cluster: Cluster, path: str, tmp_path: Path) -> None:
    cache = {"SHARDRUN_CACHE": str(tmp_path / "cache")}
    done = cluster.run("run", cluster.slices, *TWO, "--launcher", "kubernetes", "--stage", PATH=path, **cache)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "cache" / "slices").glob("whole-1-*/rank_1.onnx"))


def test_a_rank_in_a_pod_is_the_first_cause(cluster: Cluster, path: str) -> None:
    text = script(cluster, DYING.format("sys.exit(7)"))
    words = ("exec", *TWO, "--launcher", "kubernetes", "--collectives", "gloo", text)
    done = cluster.run(*words, PATH=path)
    assert done.returncode == 7
    assert done.stderr.startswith(f"shardrun: error: rank 1 on host {SECOND} ended with exit code 7."), (
        done.stderr
    )


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            ("--hosts", f"{FIRST}:1,10.78.0.9:1"),
            "No running pod is 10.78.0.9; there are: job-0-a8b1c, job-1-x7k2p.",
        ),
        (("--ranks", 2), "--launcher kubernetes: say in which pods the ranks run"),
    ],
)
def test_pods_that_are_not_there(
    cluster: Cluster, path: str, hosts: tuple[object, ...], message: str
) -> None:
    done = cluster.run("run", cluster.slices, *hosts, "--launcher", "kubernetes", PATH=path)
    assert done.returncode in {1, 2} and message in done.stderr and len(done.stderr.splitlines()) == 1
