"""What stands between Ray and the ranks, with a stand-in for Ray: rooms, actors, and what comes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import LaunchError
from launcher.job.rank_table import make_rank_table
from launcher.starters import ray_cluster
from launcher.starters.ray import _Remote, why_gone
from launcher.starters.ray_cluster import Actor, Room, _handlers_kept

NODES = [
    {
        "Alive": alive, "NodeID": f"id{at}",
        "NodeManagerAddress": f"10.0.0.{at}", "NodeManagerHostname": f"n{at}",
        "Resources": {"CPU": cores, "GPU": gpus},
    }
    for at, (alive, cores, gpus) in enumerate([(True, 4.0, 1.0), (False, 99.0, 99.0), (True, 2.0, 2.0)])
]  # fmt: skip


class RayError(Exception):
    """As Ray's own."""


class Group:
    """A placement group whose bundles get these nodes after so many questions."""

    def __init__(self, nodes: Sequence[int], waits: int = 0) -> None:
        self.nodes, self.waits = nodes, waits

    def wait(self, seconds: float) -> bool:
        self.waits -= 1
        return self.waits < 0


class Ray:
    """As much of Ray as a room asks for."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, given: Group | BaseException) -> None:
        self.asked: list[dict[str, float]] = []
        self.removed: list[object] = []

        def group(bundles: list[dict[str, float]], strategy: str) -> Group:
            self.asked = bundles
            if isinstance(given, BaseException):
                raise given
            return given

        self.util = SimpleNamespace(
            placement_group=group,
            placement_group_table=lambda one: {
                "bundles_to_node_id": {at: f"id{node}" for at, node in enumerate(one.nodes)}
            },
            remove_placement_group=self.removed.append,
        )

    def nodes(self) -> list[dict[str, Any]]:
        return NODES


class Cluster:
    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def room(cluster: Cluster, size: int, gpus: int = 0, hosts: Sequence[tuple[str, int]] = ()) -> Room:
    return Room(cluster, 1, gpus, size, make_rank_table(hosts) if hosts else None)  # type: ignore[arg-type]


def test_ranks_of_a_node_are_neighbours(caplog: pytest.LogCaptureFixture) -> None:
    group = Group([2, 0, 2, 0])
    cluster = Cluster(Ray(group))
    made = room(cluster, 4)
    assert cluster.ray.asked == [{"CPU": 1}] * 4
    assert [(device.rank, device.host) for device in made.table.devices] == [
        (0, "10.0.0.2"), (1, "10.0.0.2"), (2, "10.0.0.0"), (3, "10.0.0.0")
    ]  # fmt: skip
    assert made._bundles == [0, 2, 1, 3] and not caplog.records
    made.close()
    made.close()
    assert cluster.ray.removed == [group]


def test_the_nodes_of_a_rank_table_are_asked_for() -> None:
    cluster = Cluster(Ray(Group([2, 0])))
    made = room(cluster, 2, gpus=1, hosts=[("n2", 1), ("10.0.0.0", 1)])
    assert cluster.ray.asked == [
        {"CPU": 1, "GPU": 1, "node:10.0.0.2": 0.001}, {"CPU": 1, "GPU": 1, "node:10.0.0.0": 0.001}
    ]  # fmt: skip
    assert made._bundles == [0, 1]
    with pytest.raises(LaunchError, match=r"has no node n1: it has 10\.0\.0\.0, 10\.0\.0\.2; use these"):
        room(cluster, 1, hosts=[("n1", 1)])


def test_a_cluster_that_is_too_small_or_busy(caplog: pytest.LogCaptureFixture) -> None:
    room(Cluster(Ray(Group([0, 2, 2], waits=3))), 3, gpus=1)
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for Ray to have room for 3 ranks; Ctrl-C gives up"
    ]
    with pytest.raises(
        LaunchError, match=r"\(2 nodes\) has room for 3 ranks of 1 core and 1 GPU, but 4 are to"
    ):
        room(Cluster(Ray(Group([]))), 4, gpus=1)
    for problem, kind in ((RayError("no\nroom"), LaunchError), (KeyboardInterrupt(), KeyboardInterrupt)):
        cluster = Cluster(Ray(problem))
        with pytest.raises(kind):
            room(cluster, 1)
        assert cluster.closed == 1


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A way to an actor that runs a program here, and the end where its errors come."""
    ends: list[int] = []

    def make(actor: Any) -> tuple[_Remote, int]:
        ray = SimpleNamespace(get=lambda answer: answer, kill=lambda one: None)
        reader, writer = os.pipe()
        where = SimpleNamespace(cluster=SimpleNamespace(ray=ray), actor=lambda rank, command: actor)
        one = _Remote(where, 3, [], writer)  # type: ignore[arg-type]
        os.close(writer)
        ends.append(reader)
        return one, reader

    yield make
    for end in ends:
        os.close(end)


def actor_of(take: Any) -> Any:
    told: list[bytes] = []
    return SimpleNamespace(
        take=SimpleNamespace(remote=take), tell=SimpleNamespace(remote=told.append), told=told,
        hang_up=SimpleNamespace(remote=lambda: told.append(b"hung up")),
    )  # fmt: skip


def test_what_comes_of_an_actor(remote: Any) -> None:
    parts = iter([[("stderr", b"e")], [("stdout", b"a"), ("stdout", b"b\n")], [("stdout", b"c"), ("end", 7)]])
    one, errors = remote(actor_of(lambda: next(parts)))
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0)
    assert one.stdout.read() == b"ab\nc" and one.wait(0) == 7
    assert os.read(errors, 99) == b"e" and os.read(errors, 99) == b""
    actor = actor_of(None)
    one, _ = remote(actor)
    one.stdin.write(b"words")
    one.stdin.close()
    one.stdin.close()
    assert actor.told == [b"words", b"hung up"]


def test_an_actor_that_is_gone(remote: Any) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("The actor died because its node has died.")

    one, errors = remote(actor_of(gone))
    assert one.stdout.read() == b"" and one.wait(0) == 1
    assert os.read(errors, 99) == b"Its Ray node has died.\n" and os.read(errors, 99) == b""
    assert one.lost(1) == "its Ray node has died"
    actor = actor_of(None)
    actor.tell.remote = gone
    one, _ = remote(actor)
    with pytest.raises(OSError, match="node has died"):
        one.stdin.write(b"x")


def test_a_rank_without_an_actor() -> None:
    def refuse(rank: int, command: object) -> None:
        raise ValueError("no such\nworker.")

    where: Any = SimpleNamespace(cluster=SimpleNamespace(ray=None), actor=refuse)
    with pytest.raises(LaunchError, match=r"^Ray starts no actor for rank 3: no such worker\.$"):
        _Remote(where, 3, [], 2)


def test_what_runs_in_a_worker() -> None:
    code = "import sys; t = sys.stdin.read(); sys.stderr.write('e'); print(t); sys.exit(5)"
    actor = Actor([sys.executable, "-c", code])
    actor.tell(b"hello")
    actor.hang_up()
    actor.tell(b"too late")
    found: dict[str, Any] = {"stdout": b"", "stderr": b""}
    while "end" not in found:
        for name, data in actor.take():
            found[name] = data if name == "end" else found[name] + data
    assert found == {"stdout": b"hello\n", "stderr": b"e", "end": 5}


def test_parts_are_not_larger_than_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come is taken together, up to a size, and nothing after the end."""
    monkeypatch.setattr(ray_cluster, "_CHUNK", 4)
    actor = Actor(["true"])
    actor._agent.wait()
    assert actor.take() == [("end", 0)]
    for part in [("stdout", b"ab"), ("stdout", b"cd"), ("stderr", b"ef"), ("end", 1), ("stdout", b"x")]:
        actor._said.put(part)
    assert actor.take() == [("stdout", b"ab"), ("stdout", b"cd"), ("stderr", b"ef")]
    assert actor.take() == [("end", 1)]


def test_ray_takes_no_handler_of_ours() -> None:
    before = signal.getsignal(signal.SIGTERM), sys.excepthook
    with pytest.raises(KeyError), _handlers_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.excepthook = print
        raise KeyError
    assert (signal.getsignal(signal.SIGTERM), sys.excepthook) == before


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("The actor died because its node has died. Node IP: 1.2.3.4", "its Ray node has died"),
        ("Node died", "its Ray node has died"),
        ("The actor x is unavailable: y", "its Ray actor, or the Ray node that this was on, is gone"),
        ("killed by `ray.kill`", "its Ray actor was killed by ray.kill"),
        (
            "died unexpectedly. Worker exit detail: Worker is killed by SIGKILL. Some common causes are: x",
            "its Ray actor has died (Worker is killed by SIGKILL)",
        ),
        ("x" * 300 + ".", f"its Ray actor has died ({'x' * 200})"),
        ("other words.", "its Ray actor has died (other words)"),
    ],
)
def test_why_an_actor_is_gone(said: str, why: str) -> None:
    assert why_gone(said) == why


def test_what_ray_says_of_a_death_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stand in this program's standard output; other versions of Ray may have no such function."""
    module = SimpleNamespace(print_to_stdstream=print)
    cluster = SimpleNamespace(_loud=None)
    monkeypatch.setitem(sys.modules, "ray._private.worker", module)
    ray_cluster.Cluster._hush(cluster)  # type: ignore[arg-type]
    assert cluster._loud == (module, print)
    assert module.print_to_stdstream is not print
    for odd in (SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "ray._private.worker", odd)  # type: ignore[arg-type]
        cluster = SimpleNamespace(_loud=None)
        ray_cluster.Cluster._hush(cluster)  # type: ignore[arg-type]
        assert cluster._loud is None and not hasattr(odd, "print_to_stdstream")
