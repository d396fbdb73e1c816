"""Which pod a host's name means, with a program in the place of kubectl."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job.rank_table import make_rank_table
from launcher.starters.known.kubernetes import STARTER
from tests.launcher.starters.test_mpirun import write_program

POD = {
    "metadata": {"name": "web-0-x7k2p", "namespace": "mine"},
    "spec": {"hostname": "web-0", "subdomain": "web"},
    "status": {"phase": "Running", "podIP": "203.0.113.7"},
}
BARE = {"metadata": {"name": "bare"}, "spec": {}, "status": {"phase": "Running"}}


@pytest.fixture(autouse=True)
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pods.json").write_text(json.dumps({"items": [POD, BARE]}))
    program = write_program(tmp_path / "bin" / "kubectl", f"cat {tmp_path / 'pods.json'}")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("web-0", "web-0-x7k2p"), ("web-0-x7k2p", "web-0-x7k2p"), ("203.0.113.7", "web-0-x7k2p"),
        ("web-0.web", "web-0-x7k2p"), ("web-0.web.mine", "web-0-x7k2p"),
        ("web-0.web.mine.svc.cluster.local", "web-0-x7k2p"), ("bare", "bare"), ("bare.any.other.svc", "bare"),
        ("web-0.db", None), ("web-0.web.other", None), ("web-0.web.other.svc", None), ("web-1.web", None),
    ],
)  # fmt: skip
def test_the_pod_of_a_host(host: str, pod: str | None) -> None:
    """A pod of another service or namespace may have the same name."""
    launcher = STARTER.make()
    table = make_rank_table([(host, 1)])
    if pod is None:
        with pytest.raises(LaunchError, match=f"^No running pod is {host}; there are: bare, web-0-x7k2p"):
            launcher.check(table)
        return
    launcher.check(table)
    command, environment = launcher.on_host(host, "a.module", {})
    assert command[1:5] == ["exec", "-i", pod, "--"] and environment is None


def test_hosts_of_this_pod_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And pods that were found are not asked for again."""
    launcher = STARTER.make()
    table = make_rank_table([("localhost", 1), ("web-0", 1)])
    assert launcher.place(2, table) is table
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    launcher.check(table)
    launcher.check(make_rank_table([("localhost", 2)]))
    with pytest.raises(LaunchError, match="There is no kubectl on PATH, by which to reach the pods"):
        launcher.check(table)  # forgotten, since another job was without it
    with pytest.raises(ConfigError, match="--launcher kubernetes: say in which pods the ranks run"):
        launcher.check(None)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "echo 'error: pods is forbidden' >&2; exit 1",
            "cannot list the pods (error: pods is forbidden): this",
        ),
        ("exit 4", "cannot list the pods (exit code 4)"),
        ("echo '[]'", "lists no pods that can be read"),
        ("echo '{\"items\": []}'", "No running pod is web-0; there are: none. Correct --hosts."),
    ],
)
def test_pods_that_cannot_be_listed(tmp_path: Path, program: str, message: str) -> None:
    write_program(tmp_path / "bin" / "kubectl", program)
    with pytest.raises(LaunchError) as caught:
        STARTER.make().check(make_rank_table([("web-0", 1)]))
    assert message in str(caught.value)
