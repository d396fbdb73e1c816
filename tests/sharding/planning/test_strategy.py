"""Which mesh `auto` takes of those that a model allows, by what each is estimated to take."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.demands.options import SliceOptions
from sharding.errors import OptionError, SliceError
from sharding.planning import strategy
from sharding.slices.mesh import Mesh
from sharding.slices.topology import Link, Topology

SOURCE = SimpleNamespace(path=Path("model.onnx"))


@dataclass
class Made:
    """A plan that takes so many seconds, and of whose weights a rank holds so many bytes."""

    mesh: Mesh
    estimate: float
    held: int
    link_seconds: float = 0.0
    reason: str = ""
    source: Any = field(default_factory=lambda: SOURCE)

    @property
    def world_size(self) -> int:
        return self.mesh.size

    @property
    def strategy(self) -> str:
        return "+".join(name for name, size in self.mesh.axes if size > 1) or "alone"

    def seconds(self) -> float:
        return self.estimate + self.link_seconds

    def rank_weight_bytes(self) -> int:
        return self.held


def planner(plans: dict[str, tuple[float, int]], **options: Any) -> Any:
    """One that makes these plans, and refuses other meshes. One process takes 8 s and holds 1000 bytes."""
    known = {"alone": (8.0, 1000), **plans}

    def plan(mesh: Mesh, *, strict: bool) -> Made:
        assert not strict
        made = Made(mesh, 0, 0)
        if made.strategy not in known:
            raise SliceError(f"no {made.strategy}")
        made.estimate, made.held = known[made.strategy]
        return made

    return SimpleNamespace(plan=plan, options=SliceOptions(**options), source=SOURCE)


@pytest.mark.parametrize(
    ("plans", "memory", "best"),
    [
        ({"tensor": (2.0, 250), "pipeline": (3.0, 250), "data": (4.0, 1000)}, None, "tensor"),
        ({"tensor": (3.0, 250), "pipeline": (2.0, 600)}, None, "pipeline"),
        ({"tensor": (2.1, 250), "pipeline": (2.0, 600)}, None, "tensor"),  # as fast, and holds less
        ({"tensor": (2.11, 250), "pipeline": (2.0, 600)}, None, "pipeline"),
        ({"tensor": (2.0, 250), "pipeline+tensor": (2.0, 250)}, None, "tensor"),  # simpler
        ({"tensor": (2.0, 250), "pipeline+tensor": (1.0, 400)}, None, "pipeline+tensor"),
        ({"tensor": (2.0, 250), "data": (1.0, 1000)}, 999, "tensor"),
        ({"tensor": (2.0, 250), "data": (1.0, 1000)}, 1000, "data"),
        ({"pipeline": (9.0, 500)}, None, "pipeline"),
    ],
)
def test_the_fastest_that_fits(plans: dict[str, tuple[float, int]], memory: int | None, best: str) -> None:
    found: Any = strategy.choose(planner(plans, memory=memory), 4)
    assert found.strategy == best and found.reason.startswith(f"{best}: ")


def test_why_it_was_chosen() -> None:
    plans = {"tensor": (2.0, 250), "data": (1.0, 1000)}
    assert strategy.choose(planner(plans, memory=500), 4).reason == (
        "tensor: 0.25 of the weights on each rank and an estimated 4x; pipeline is not possible; "
        "data would give all 1 kB on each rank, more than 500 B and an estimated 8x"
    )
    assert strategy.choose(planner({}), 1).reason == "alone: all 1 kB on each rank and an estimated 1x"


def test_none_that_fits() -> None:
    plans = {"tensor": (2.0, 250), "pipeline": (3.0, 200)}
    with pytest.raises(SliceError, match=re.escape(
        "model.onnx: no strategy for 4 ranks needs at most 199 B of weights on each; the least is 200 B "
        "(pipeline): use more ranks or more memory."
    )):  # fmt: skip
        strategy.choose(planner(plans, memory=199), 4)
    with pytest.raises(SliceError, match="no tensor"):  # the first reason
        strategy.choose(planner({}), 4)


@pytest.mark.parametrize(
    ("hosts", "order"), [((0, 0, 1, 1), "pipeline=2,tensor=2"), ((0, 1, 0, 1), "tensor=2,pipeline=2")]
)
def test_on_hosts_the_order_that_waits_least_for_the_link(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[int, ...], order: str
) -> None:
    """Groups that exchange much stay on a host; of a topology of other ranks nothing follows."""
    exchanges = [strategy.Exchange("AllReduce", 0, 1 << 20)]
    monkeypatch.setattr(strategy, "exchanges_of", lambda plan: (exchanges, []))
    monkeypatch.setattr(strategy, "in_words", lambda mesh, topology: f"on {topology.count} hosts")
    topology = Topology(hosts, Link(1e6, 1e-3))
    made = strategy.choose(planner({"pipeline+tensor": (2.0, 250)}, topology=topology), 4)
    assert str(made.mesh) == f"data=1,{order}" and made.reason.endswith("; on 2 hosts")
    others = Topology((0, 1), Link(1e6, 1e-3))
    made = strategy.choose(planner({"pipeline+tensor": (2.0, 250)}, topology=others), 4)
    assert made.link_seconds == 0 and "hosts" not in made.reason


@pytest.mark.parametrize(
    ("ranks", "meshes"),
    [
        (1, ["1 1 1"]),
        (2, ["1 1 2", "1 2 1", "2 1 1"]),
        (3, ["1 1 3", "1 3 1", "3 1 1"]),
        (4, ["1 1 4", "1 2 2", "1 4 1", "2 1 2", "2 2 1", "4 1 1"]),
        (64, None),
        (65, ["1 1 65", "1 65 1", "65 1 1"]),
        (128, ["1 1 128", "1 128 1", "128 1 1"]),
    ],
)
def test_meshes_that_are_looked_at(ranks: int, meshes: list[str] | None) -> None:
    found = strategy._meshes(ranks)
    shown = sorted(
        " ".join(str(mesh.length(axis)) for axis in ("data", "pipeline", "tensor")) for mesh in found
    )
    assert all(mesh.size == ranks for mesh in found) and len(set(shown)) == len(shown)
    assert shown == sorted(meshes) if meshes is not None else len(shown) == 28


@pytest.mark.parametrize(
    ("options", "mesh"),
    [
        ({}, Mesh.of(tensor=4)),
        ({"strategy": "pipeline"}, Mesh.of(pipeline=4)),
        ({"strategy": "data", "micro_batches": 1}, Mesh.of(data=4)),
        ({"strategy": "auto"}, None),
        ({"strategy": "auto", "mesh": Mesh.of(data=2, tensor=2)}, Mesh.of(data=2, tensor=2)),
    ],
)
def test_the_mesh_that_is_asked_for(options: dict[str, Any], mesh: Mesh | None) -> None:
    assert strategy.asked_mesh(SliceOptions(**options), 4) == mesh


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "expert"}, "strategy must be one of .*, but is 'expert'"),
        ({"micro_batches": 0}, "whole number from 1 up, but is 0"),
        ({"micro_batches": True}, "whole number from 1 up, but is True"),
        ({"micro_batches": 2.0}, "whole number from 1 up, but is 2.0"),
        ({"mesh": Mesh.of(tensor=3)}, "has 3 ranks, but 4 are asked for"),
        ({"mesh": Mesh.of(tensor=8)}, "has 8 ranks, but 4 are asked for"),
    ],
)
def test_meshes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        strategy.asked_mesh(SliceOptions(**options), 4)


def test_memory_of_a_plan_that_was_asked_for() -> None:
    made: Any = Made(Mesh.of(tensor=4), 1.0, 500)
    strategy.check_memory(made, 500)
    strategy.check_memory(made, None)
    with pytest.raises(SliceError, match=r"tensor over 4 ranks needs 500 B .* more than the 499 B allowed"):
        strategy.check_memory(made, 499)
