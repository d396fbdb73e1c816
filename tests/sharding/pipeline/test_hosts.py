"""Meshes on hosts against a simulation that sends each message by itself, and against all other meshes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from sharding.demands.options import SliceOptions
from sharding.pipeline.hosts import Crossing, Exchange, Passed
from sharding.planning.plan import Plan, Planner, plan_model
from sharding.planning.strategy import TIE, exchanges_of
from sharding.reading.read import read_model
from sharding.slices.mesh import Mesh
from sharding.slices.topology import Link, Topology
from tests.sharding.llama import Llama

pytestmark = pytest.mark.usefixtures("read_once")

SLOW, FAST = Link(125e6, 2e-4), Link(12.5e9, 5e-6)
SIZES = {"batch": 1, "seq": 256}


class Network:
    """Hosts that send messages in rounds: a round takes as long as the host with most to send."""

    def __init__(self, link: Link) -> None:
        self.link, self.seconds = link, 0.0

    def play(self, turns: dict[int, list[tuple[int, int, float]]]) -> None:
        """Messages (from, to, bytes) by round; a host sends its own of all rounds one after the other."""
        loads: Counter[int] = Counter()
        for messages in turns.values():
            for source, target, size in messages:
                if source != target:
                    loads[source] += size  # type: ignore[assignment]
        if loads:
            self.seconds += len(turns) * self.link.latency + max(loads.values()) / self.link.bandwidth


def ring(op: str, size: float, hosts: list[int]) -> list[list[tuple[int, int, float]]]:
    """The messages between the hosts of one group, round by round; ``hosts`` has that of each rank."""
    ranks = Counter(hosts)
    names = list(ranks)
    count = len(names)
    if count == 1:
        return []
    after = {name: names[(at + 1) % count] for at, name in enumerate(names)}
    if op == "AllReduce":  # each host passes on a share of the sum, twice round but for the last step
        return [[(name, after[name], size / count) for name in names] for _ in range(2 * (count - 1))]
    if op == "AllGather":  # each host passes on what the widest has, until all have seen it
        return [[(name, after[name], size * max(ranks.values())) for name in names] for _ in range(count - 1)]
    if op == "AllToAll":
        part = size / len(hosts)
        return [
            [(name, names[(at + turn) % count], part * ranks[name] * ranks[names[(at + turn) % count]])
             for at, name in enumerate(names)]
            for turn in range(1, count)
        ]  # fmt: skip
    raise AssertionError(op)


def simulated(mesh: Mesh, topology: Topology, exchanges: list[Exchange], passed: list[Passed]) -> float:
    network = Network(topology.link)
    hosts = topology.hosts

    def stage(number: int) -> list[list[int]]:
        groups: dict[int, list[int]] = defaultdict(list)
        for rank in range(mesh.size):
            at = mesh.coordinates(rank)
            if at["pipeline"] == number:
                groups[at["data"]].append(rank)
        return [sorted(group, key=lambda rank: mesh.coordinates(rank)["tensor"]) for group in groups.values()]

    for item in exchanges:
        turns: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
        for group in stage(item.stage):
            for turn, messages in enumerate(ring(item.op, item.bytes, [hosts[rank] for rank in group])):
                turns[turn] += messages
        network.play(turns)
    for value in passed:
        messages = [
            (hosts[one], hosts[other], float(value.bytes))
            for here, there in zip(stage(value.here), stage(value.there), strict=True)
            for one, other in zip(here, there, strict=True)
        ]
        network.play({0: messages} if any(a != b for a, b, _ in messages) else {})
    return network.seconds


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = Llama(layers=4, heads=8, kv_heads=4, size=32, inner=512, words=64)
    return sizes.save(tmp_path_factory.mktemp("llama") / "model.onnx")


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 2, 3), (0, 0, 1, 2)])
@pytest.mark.parametrize("op", ["AllReduce", "AllGather", "AllToAll"])
def test_exchanges_take_what_their_messages_do(hosts: tuple[int, ...], op: str) -> None:
    topology = Topology(hosts, Link(1e6, 1e-3))
    for axes in itertools.permutations((("tensor", 2), ("pipeline", 2))):
        for mesh in (
            Mesh.of(**dict(axes)),
            Mesh.of(tensor=4),
            Mesh.of(data=2, tensor=2),
            Mesh.of(pipeline=4),
        ):
            exchanges = [Exchange(op, stage, 48_000) for stage in range(mesh.length("pipeline"))]
            stages = range(mesh.length("pipeline") - 1)
            passed = [Passed(stage, stage + 1, 12_000) for stage in stages]
            found = Crossing(mesh, topology).seconds(exchanges, passed)
            assert found == pytest.approx(simulated(mesh, topology, exchanges, passed), rel=1e-3), mesh


@pytest.fixture(scope="module")
def plans(llama: Path) -> list[tuple[Mesh, Plan]]:
    """The plan for every mesh of four ranks in every order of its axes; none asks where the hosts are."""
    planner = Planner(read_model(llama), SliceOptions(dims=SIZES))
    used = {}
    for names in itertools.permutations(("data", "pipeline", "tensor")):
        for sizes in itertools.product(range(1, 5), repeat=3):
            if sizes[0] * sizes[1] * sizes[2] == 4:
                mesh = Mesh.of(**dict(zip(names, sizes, strict=True)))
                used.setdefault(axes_of(mesh), mesh)
    return [(mesh, planner.plan(mesh, strict=False)) for mesh in used.values()]


def axes_of(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in mesh.axes if size > 1)


@pytest.mark.parametrize(
    ("hosts", "link"),
    [((0, 0, 1, 1), SLOW), ((0, 0, 1, 1), FAST), ((0, 1, 0, 1), SLOW), ((0, 0, 0, 0), FAST)],
    ids=["slow", "fast", "slow, in turns", "one"],
)
def test_the_choice_is_the_best_of_all(
    llama: Path, plans: list[tuple[Mesh, Plan]], link: Link, hosts: tuple[int, ...]
) -> None:
    topology = Topology(hosts, link)
    chosen = plan_model(llama, 4, options=SliceOptions(strategy="auto", dims=SIZES, topology=topology))
    everything = {
        axes_of(mesh): (sum(plan.pipeline.seconds) + simulated(mesh, topology, *exchanges_of(plan)), plan)
        for mesh, plan in plans
    }
    assert len(everything) == 9
    assert chosen.seconds() == pytest.approx(everything[axes_of(chosen.mesh)][0], rel=1e-3)
    best = min(seconds for seconds, _ in everything.values())
    assert chosen.seconds() <= (1 + TIE) * best * 1.001
    near = [plan for seconds, plan in everything.values() if seconds <= (1 + TIE) * best * 0.999]
    assert chosen.rank_weight_bytes() <= min(plan.rank_weight_bytes() for plan in near)


def test_a_slow_link_keeps_tensor_groups_within_hosts(llama: Path) -> None:
    """Whichever way the ranks are numbered; over a fast one, or on one host, all ranks share each layer."""
    bytes_of_all = sum(weight.nbytes for weight in read_model(llama).weights.values())
    for hosts, memory in (((0, 0, 1, 1), int(0.4 * bytes_of_all)), ((0, 1, 0, 1), None)):
        topology = Topology(hosts, SLOW)
        options = SliceOptions(strategy="auto", dims=SIZES, topology=topology, memory=memory)
        plan = plan_model(llama, 4, options=options)
        # Where a host can hold all of the model, nothing needs to cross.
        across = "data" if memory is None else "pipeline"
        assert plan.mesh.length("tensor") == plan.mesh.length(across) == 2
        crossing = Crossing(plan.mesh, topology)
        assert not crossing.crosses("tensor") and crossing.crosses(across)
        assert f"2 hosts, 1 Gbit/s, 0.2 ms between them: tensor within a host, {across} across" in plan.reason
    for other in (Topology((0, 0, 1, 1), FAST), Topology((0, 0, 0, 0), SLOW), None):
        options = SliceOptions(strategy="auto", dims=SIZES, topology=other)
        assert plan_model(llama, 4, options=options).mesh == Mesh.of(data=1, pipeline=1, tensor=4)


def test_the_estimate_of_a_plan_by_hand() -> None:
    """Four ranks on two hosts, one sum of 1 MB: each host sends half of it twice, in two rounds."""
    topology = Topology((0, 0, 1, 1), Link(125e6, 2e-4))
    whole = Crossing(Mesh.of(tensor=4), topology).seconds([Exchange("AllReduce", 0, 1_000_000)], [])
    assert whole == pytest.approx(2 * 2e-4 + 1e6 / 125e6)
    # Two groups that both cross share the cable.
    both = Crossing(Mesh.of(tensor=2, data=2), topology).seconds([Exchange("AllReduce", 0, 1_000_000)], [])
    assert both == pytest.approx(2 * 2e-4 + 2e6 / 125e6)
    assert (
        Crossing(Mesh.of(data=2, tensor=2), topology).seconds([Exchange("AllReduce", 0, 1_000_000)], []) == 0
    )
