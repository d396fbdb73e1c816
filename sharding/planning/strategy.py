"""Which mesh a slicing gets: as asked, or the one that ``auto`` finds best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sharding.common.text import counted, human_bytes
from sharding.demands.choices import STRATEGIES
from sharding.demands.options import SliceOptions
from sharding.errors import OptionError, SliceError
from sharding.graph.sizes import tensor_bytes
from sharding.pipeline.hosts import Crossing, Exchange, Passed, in_words, orders
from sharding.slices.mesh import Mesh
from sharding.slices.placement import Split

TIE = 0.05
"""Estimates closer than this part are equal."""
MAX_MIXED = 64
"""Up to this many ranks ``auto`` looks at mixes of strategies too."""

if TYPE_CHECKING:
    from sharding.planning.plan import Plan, Planner
    from sharding.slices.topology import Topology


def asked_mesh(options: SliceOptions, ranks: int) -> Mesh | None:
    """The mesh that the options say; None where ``auto`` is to choose.

    Raises `OptionError` for options that no mesh of this many ranks fulfils.
    """
    if options.strategy not in STRATEGIES:
        raise OptionError(
            f"The strategy must be one of {', '.join(STRATEGIES)}, but is {options.strategy!r}."
        )
    pieces = options.micro_batches
    if pieces is not None and (not isinstance(pieces, int) or isinstance(pieces, bool) or pieces < 1):
        raise OptionError(f"The number of micro-batches must be a whole number from 1 up, but is {pieces!r}.")
    if options.mesh is not None:
        if options.mesh.size != ranks:
            raise OptionError(
                f"The mesh {options.mesh} has {options.mesh.size} ranks, but {ranks} are asked for: the "
                f"product of its axes must be the number of ranks."
            )
        return options.mesh
    return None if options.strategy == "auto" else Mesh.of(**{options.strategy: ranks})


def check_memory(plan: Plan, memory: int | None) -> None:
    """Raises `SliceError` where a rank of a plan that was asked for holds more of weights than it may."""
    if memory is not None and (size := plan.rank_weight_bytes()) > memory:
        raise SliceError(
            f"{plan.source.path}: {plan.strategy} over {counted(plan.world_size, 'rank')} needs "
            f"{human_bytes(size)} of weights on a rank, more than the {human_bytes(memory)} allowed: use "
            f"more ranks, more memory, or the strategy auto, which looks for one that fits."
        )


def choose(planner: Planner, ranks: int) -> Plan:
    """The best of the meshes of this many ranks that the model allows, with the reason.

    It is the fastest for one row of a batch by the estimates, of those whose ranks' weights fit into
    ``options.memory``; what comes within `TIE` of it counts as equal, and then the least weights on a rank
    decide. Raises `SliceError` where the model allows none, or none fits.
    """
    plans: dict[Mesh, Plan] = {}
    refused: list[SliceError] = []
    for mesh in _meshes(ranks):
        try:
            plan = planner.plan(mesh, strict=False)
        except SliceError as error:
            refused.append(error)
            continue
        plans |= {on.mesh: on for on in _on_hosts(plan, planner.options.topology)}
    if not plans:
        raise refused[0]
    memory = planner.options.memory
    fitting = [plan for plan in plans.values() if memory is None or plan.rank_weight_bytes() <= memory]
    if not fitting:
        least = min(plans.values(), key=lambda plan: plan.rank_weight_bytes())
        raise SliceError(
            f"{planner.source.path}: no strategy for {counted(ranks, 'rank')} needs at most "
            f"{human_bytes(memory or 0)} of weights on each; the least is "
            f"{human_bytes(least.rank_weight_bytes())} ({least.strategy}): use more ranks or more memory."
        )
    fastest = min(plan.seconds() for plan in fitting)
    near = [plan for plan in fitting if plan.seconds() <= (1 + TIE) * fastest]
    # Of a mesh's orders the one that waits least for the link; the estimate alone decides what is near.
    best = min(near, key=lambda plan: (plan.rank_weight_bytes(), _axes_in_use(plan.mesh), plan.link_seconds))
    return replace(best, reason=_reason(best, plans, planner, ranks))


def _on_hosts(plan: Plan, topology: Topology | None) -> list[Plan]:
    """The plan with what it takes across hosts, for each order of the mesh's axes."""
    if topology is None or len(topology.hosts) != plan.world_size:
        return [plan]
    exchanges, passed = exchanges_of(plan)
    return [
        replace(plan, mesh=mesh, link_seconds=Crossing(mesh, topology).seconds(exchanges, passed))
        for mesh in orders(plan.mesh)
    ]


def exchanges_of(plan: Plan) -> tuple[list[Exchange], list[Passed]]:
    """What an inference exchanges in tensor groups, and what it passes from stage to stage."""
    sizes = plan.source.sizes
    exchanges = [
        Exchange(
            item.op, item.stage, tensor_bytes(item.dtype, [sizes.length(axis) for axis in item.shape], {})
        )
        for item in plan.collectives
        if item.op != "Send"
    ]
    passed = []
    for crossing in plan.pipeline.crossings:
        size = sizes.bytes(crossing.value)
        if isinstance(crossing.placement, Split):
            size //= plan.tensor_size
        passed.append(Passed(crossing.source, crossing.target, size))
    return exchanges, passed


def _reason(best: Plan, plans: Mapping[Mesh, Plan], planner: Planner, ranks: int) -> str:
    alone = planner.plan(Mesh.of(), strict=False)
    memory = planner.options.memory

    def describe(plan: Plan) -> str:
        share = plan.rank_weight_bytes() / max(1, alone.rank_weight_bytes())
        speed = alone.seconds() / plan.seconds() if plan.seconds() else 1.0
        size = f"{share:.2f} of the weights" if share < 1 else f"all {human_bytes(plan.rank_weight_bytes())}"
        fits = memory is None or plan.rank_weight_bytes() <= memory
        over = "" if fits else f", more than {human_bytes(memory or 0)}"
        return f"{size} on each rank{over} and an estimated {speed:.2g}x"

    sentence = [f"{best.strategy}: {describe(best)}"]
    for axis in ("tensor", "pipeline", "data"):
        mesh = Mesh.of(**{axis: ranks})
        if mesh not in plans:
            sentence.append(f"{axis} is not possible")
        elif mesh != best.mesh:
            sentence.append(f"{axis} would give {describe(plans[mesh])}")
    if (topology := planner.options.topology) is not None and len(topology.hosts) == ranks > 1:
        sentence.append(in_words(best.mesh, topology))
    return "; ".join(sentence) if ranks > 1 else sentence[0]


def _axes_in_use(mesh: Mesh) -> int:
    return sum(size > 1 for _, size in mesh.axes)


def _meshes(ranks: int) -> list[Mesh]:
    """Pure strategies first; then, for not too many ranks, every mix."""
    pure = [Mesh.of(**{axis: ranks}) for axis in ("tensor", "pipeline", "data")]
    if ranks == 1:
        return pure[:1]
    if ranks > MAX_MIXED:
        return pure
    divisors = [size for size in range(1, ranks + 1) if ranks % size == 0]
    mixes = [
        Mesh.of(data=data, pipeline=pipeline, tensor=ranks // data // pipeline)
        for data in divisors
        for pipeline in divisors
        if ranks // data % pipeline == 0
    ]
    return pure + [mesh for mesh in mixes if _axes_in_use(mesh) > 1]
