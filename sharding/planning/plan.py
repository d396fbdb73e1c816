"""What a slicing does: who holds what, which collectives run, what stays whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.bounds import MAX_RANKS
from sharding.common.encryption import Key
from sharding.demands.annotations import is_annotated
from sharding.demands.options import SliceOptions
from sharding.errors import OptionError, SliceError
from sharding.graph.fold import SMALL_ELEMENTS
from sharding.graph.state_size import StateSize, joined_shape, state_size
from sharding.graph.symbols import shown_shape
from sharding.onnx_files.kinds import refuse_others_of
from sharding.onnx_files.tensors import WeightTensor, dtype_name
from sharding.pipeline.profile import read_profile
from sharding.pipeline.stages import Stages, Wishes, plan_stages
from sharding.planning.demanded import demanded_options, demanded_stages, pin
from sharding.planning.emit import emit_rank
from sharding.planning.expected import expected_sizes
from sharding.planning.found_state import found_state
from sharding.planning.held_whole import hold_whole
from sharding.planning.kept_state import solve_with_state
from sharding.planning.rank_graph import Collective
from sharding.planning.sums import rounds, without_sums
from sharding.planning.unsplit import hardly_splits, nothing_splits
from sharding.reading.read import Source, read_model
from sharding.search.reshard import COLLECTIVES
from sharding.search.solve import counted_weights
from sharding.search.states import Placed, place
from sharding.search.steps import Step, steps
from sharding.slices.batch import BatchAxes
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Placement, Split, held_bytes, parse_placement
from sharding.slices.state import StatePair, placed

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Plan:
    """How a model is sliced for a mesh of ranks.

    The fields to show are `weights`, `collectives`, `whole`, and with strategies besides tensor parallelism
    `mesh`, `stages`, `micro_batches`, `batch` and `reason`.
    """

    source: Source
    world_size: int
    """All ranks: the size of the mesh."""
    steps: Sequence[Step]
    choices: Sequence[int]
    """The number of the chosen option of each step, for as many ranks as the tensor axis has."""
    stage_held: tuple[dict[str, tuple[Placement, ...]], ...]
    """For each stage every constant in use and how it is held; more than one placement where uses differ."""
    collectives: tuple[Collective, ...]
    """The collectives of one inference, in order, stage by stage."""
    whole: dict[str, int]
    """Operator name -> nodes that compute with a weight worth splitting and hold it whole."""
    whole_weights: tuple[str, ...]
    """The names of those weights."""
    mesh: Mesh
    pipeline: Stages
    micro_batches: int = 1
    batch: BatchAxes = field(default_factory=BatchAxes)
    """The axes that data groups and micro-batches cut; empty where nothing is cut."""
    reason: str = ""
    """Why this strategy, in one sentence; empty unless ``auto`` chose it."""
    link_seconds: float = 0.0
    """Estimated seconds in which an inference waits for what goes between hosts, where they are known."""
    state: tuple[StatePair, ...] = ()
    """The inputs that are fed what outputs gave in the step before, and how ranks hold both."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """What open lengths count as that are neither a batch nor of the usual `SYMBOL_LENGTH`."""
        return self.source.sizes.lengths

    @property
    def stages(self) -> tuple[int, ...]:
        """The (first) pipeline stage of each step."""
        return self.pipeline.of

    @property
    def tensor_size(self) -> int:
        """The ranks that share each stage's weights."""
        return self.mesh.length("tensor")

    @property
    def strategy(self) -> str:
        """The mesh axes in use, such as ``data+tensor``."""
        return "+".join(name for name, size in self.mesh.axes if size > 1) or "tensor"

    @property
    def held(self) -> dict[str, tuple[Placement, ...]]:
        """Every constant in use and all the ways in which ranks hold it."""
        found: dict[str, dict[Placement, None]] = {}
        for stage in self.stage_held:
            for name, placements in stage.items():
                found.setdefault(name, {}).update(dict.fromkeys(placements))
        return {name: tuple(placements) for name, placements in found.items()}

    @property
    def placed(self) -> Placed:
        """The names of state inputs and outputs, and how ranks hold them."""
        found = {pair: parse_placement(pair.placement) or REPLICATED for pair in self.state}
        return {name: where for pair, where in found.items() for name in (pair.input, pair.output)}

    def state_size(self, dims: Mapping[str, int]) -> StateSize | None:
        """What ranks keep from one step to the next; ``dims``: lengths that symbols stand for."""
        graph = self.source.model.graph
        inputs = {value.name: value for value in graph.inputs}
        outputs = {value.name: value for value in graph.outputs}
        places = dict(zip(outputs, self.pipeline.output_stages(self.steps, graph.outputs), strict=True))
        kept = [
            (
                pair,
                places[pair.output],
                dtype_name(inputs[pair.input].dtype),
                joined_shape(shown_shape(inputs[pair.input]), shown_shape(outputs[pair.output])),
            )
            for pair in self.state
        ]
        return state_size(kept, self.tensor_size, dims)

    def weight_stages(self, name: str) -> tuple[int, ...]:
        """The stages that hold a weight."""
        return tuple(number for number, held in enumerate(self.stage_held) if name in held)

    @property
    def weights(self) -> dict[str, tuple[Placement, ...]]:
        """How the weights are held: of the constants, those that are neither scalars nor shape arithmetic."""
        return {name: held for name, held in self.held.items() if _is_weight(self.source.weights[name])}

    @property
    def split_weights(self) -> list[str]:
        """Names of the weights of which each rank holds a part only."""
        return [name for name, held in self.weights.items() if REPLICATED not in held]

    def stage_weight_bytes(self, stage: int) -> int:
        """Bytes of weights that each rank of a stage holds (the same for each, for parts are equal)."""
        return sum(
            held_bytes(self.source.weights[name].nbytes, placement, self.tensor_size)
            for name, placements in self.stage_held[stage].items()
            for placement in placements
        )

    def rank_weight_bytes(self) -> int:
        """Bytes of weights of the rank that holds most."""
        return max(map(self.stage_weight_bytes, range(self.pipeline.count)))

    def split_share(self) -> float:
        """The part of the split weights' bytes that one tensor rank holds."""
        names = set(self.split_weights)
        sizes = {name: self.source.weights[name].nbytes for name in names}
        total = sum(sizes.values())
        largest: dict[str, int] = {}
        for stage in self.stage_held:
            for name in names.intersection(stage):
                here = sum(held_bytes(sizes[name], where, self.tensor_size) for where in stage[name])
                largest[name] = max(largest.get(name, 0), here)
        return sum(largest.values()) / total if total else 1.0

    @property
    def warning(self) -> str:
        """What to know of a plan of which almost nothing is split; empty for others."""
        held = [self.stage_weight_bytes(stage) for stage in range(self.pipeline.count)]
        total = sum(self.source.weights[name].nbytes for stage in self.stage_held for name in stage)
        return hardly_splits(sum(held), total, self.tensor_size, self.whole)

    def seconds(self) -> float:
        """Estimated seconds of one inference of one row: all stages, one after the other."""
        return sum(self.pipeline.seconds) + self.link_seconds

    def collective_counts(self) -> dict[str, int]:
        """Operator -> collectives of this kind in one inference."""
        return dict(Counter(item.op for item in self.collectives))

    def rows(self) -> list[tuple[str, str]]:
        """What the command shows, as (what, value)."""
        from sharding.planning.plan_table import rows

        return rows(self)

    def to_json(self) -> dict[str, object]:
        """The plan as plain JSON values."""
        from sharding.planning.plan_json import to_json

        return to_json(self)


@WHOLE_FILES
def plan_model(
    model: str | Path,
    ranks: int,
    *,
    options: SliceOptions | None = None,
    allow_replicated: bool = False,
    key: Key | None = None,
) -> Plan:
    """Plans how to slice an ONNX file for a number of ranks; writes nothing.

    ``allow_replicated`` is a short form of the option of that name, ``key`` that of an encrypted model.
    Raises `ModelError` for a file that cannot be read, and `SliceError` for an impossible number of ranks, a
    mesh or strategy that the model does not allow or, unless replication is allowed, where tensor parallelism
    finds no weight to split.
    """
    options = options or SliceOptions()
    if allow_replicated:
        options = replace(options, allow_replicated=True)
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MAX_RANKS:
        raise SliceError(
            f"The number of ranks must be a whole number from 1 to {MAX_RANKS}, but is {ranks!r}."
        )
    from sharding.planning.strategy import asked_mesh, check_memory, choose

    asked_mesh(options, ranks)  # before the model is read, which may take long
    source = read_model(model, key)
    _refuse_sliced(source)
    refuse_others_of(source.model.graph, source.path)
    source = replace(source, state=found_state(source, options.state), asked=frozenset(options.state))
    options = demanded_options(source, ranks, options)
    mesh = asked_mesh(options, ranks)
    planner = Planner(source, options)
    if mesh is None:
        return choose(planner, ranks)
    plan = planner.plan(mesh)
    check_memory(plan, options.memory)
    return plan


class Planner:
    """Plans one model for meshes; what several of them need is found once."""

    def __init__(self, source: Source, options: SliceOptions) -> None:
        self.source = replace(source, sizes=expected_sizes(source, options.dims))
        self.options = options
        self.measured = read_profile(options.profile) if options.profile else {}
        self._solved: dict[tuple[int, int], tuple[list[Step], list[int]]] = {}

    def plan(self, mesh: Mesh, *, strict: bool = True) -> Plan:
        """The plan for a mesh; `SliceError` where the model does not allow it. Not ``strict``: micro-batches
        that need no cut stages or batch are let be."""
        world, count = mesh.length("tensor"), mesh.length("pipeline")
        batch, micro_batches = self._batch(mesh, strict=strict)
        here = replace(self.options, mesh=mesh)
        graph, choices = self._solve(world, count, here)
        demanded = demanded_stages(self.source, graph, here)
        wishes = Wishes(self.measured, demanded, self.options.memory)
        stages = plan_stages(self.source, graph, choices, world, count, wishes=wishes)
        plan = _describe(self.source, graph, choices, mesh, stages)
        if world > 1 and not self.options.allow_replicated and not _splits_something(plan):
            raise SliceError(nothing_splits(plan))
        return replace(plan, batch=batch, micro_batches=micro_batches)

    def _solve(self, world: int, stages: int, options: SliceOptions) -> tuple[list[Step], list[int]]:
        # Only annotations look at the number of stages: it says which devices a stage has.
        key = (world, stages if options.annotations and is_annotated(self.source) else 1)
        if key not in self._solved:
            graph = steps(self.source, world)
            if options.sums == "whole" or (options.sums == "auto" and rounds(self.source.model.graph)):
                without_sums(graph)
            demands = pin(self.source, graph, options)
            found = solve_with_state(self.source, graph, world, demands)
            asked = demands or options.steering is not None or options.plan is not None
            whole = world > 1 and not asked  # what was asked for stands, and all else is cut
            self._solved[key] = graph, hold_whole(self.source, graph, found, world) if whole else found
        return self._solved[key]

    def _batch(self, mesh: Mesh, *, strict: bool) -> tuple[BatchAxes, int]:
        """The batch's axes, where something cuts them, and the number of micro-batches."""
        asked, count = self.options.micro_batches, mesh.length("pipeline")
        if count == 1 and asked is not None and asked > 1 and strict:
            raise OptionError(
                f"{asked} micro-batches need pipeline stages to work on them, but the mesh {mesh} has one "
                f"stage: leave out --micro-batches, or choose --strategy pipeline."
            )
        pieces = asked if asked is not None and count > 1 else count
        if mesh.length("data") == 1 and pieces == 1:
            return BatchAxes(), 1
        found = self.batch
        if isinstance(found, BatchAxes):
            return found, pieces
        if mesh.length("data") > 1 or (asked is not None and asked > 1):
            what = "data parallelism" if mesh.length("data") > 1 else f"{asked} micro-batches"
            raise SliceError(f"{self.source.path}: {what} would cut the batch, but {found}")
        return BatchAxes(), 1

    @cached_property
    def batch(self) -> BatchAxes | str:
        """The batch's axes, or why rows cannot be computed apart."""
        from sharding.pipeline.batch import batch_axes

        return batch_axes(self.source)


def _refuse_sliced(source: Source) -> None:
    for node in source.model.graph:
        if node.domain == OWN_DOMAIN or (node.domain == MICROSOFT and node.op_type in COLLECTIVES):
            raise SliceError(
                f"{source.path} holds the collective {node.op_type} ({node.name!r}): it is one rank's part "
                f"already; slice the whole model instead."
            )


def _splits_something(plan: Plan) -> bool:
    return any(isinstance(where, Split) for name in plan.split_weights for where in plan.weights[name])


LOOKING_UP = frozenset({"GroupQueryAttention", "RotaryEmbedding"})
"""Operators that look up positions in tables, which each rank needs whole to turn its own heads."""


def _describe(source: Source, graph: list[Step], choices: list[int], mesh: Mesh, stages: Stages) -> Plan:
    world = mesh.length("tensor")
    source = replace(source, state=tuple(p for p in source.state if p.input not in stages.apart))
    where = place(source, graph, choices, world)
    state = tuple(placed(pair, where[pair.input]) for pair in source.state)
    stage_held: list[dict[str, tuple[Placement, ...]]] = []
    collectives: list[Collective] = []
    for stage in range(stages.count):
        first = emit_rank(source, graph, choices, 0, world, stages=stages, stage=stage, state=where)
        held: dict[str, tuple[Placement, ...]] = {}
        for part in first.weights:
            held[part.source] = (*held.get(part.source, ()), part.placement)
        stage_held.append(held)
        collectives += first.collectives
    worth_splitting = counted_weights(source)
    whole: Counter[str] = Counter()
    for step, choice in zip(graph, choices, strict=True):
        option = step.options[choice]
        held_at = zip(step.inputs, option.inputs, strict=True)
        if option.divides_work and step.node.op_type in LOOKING_UP:
            continue
        if any(
            value is not None
            and value.is_initializer()
            and value.name in worth_splitting
            and there == REPLICATED
            for value, there in held_at
        ):
            whole[step.node.op_type] += 1
    names = dict.fromkeys(
        name
        for held in stage_held
        for name, there in held.items()
        if name in worth_splitting and REPLICATED in there
    )
    if world == 1:
        whole, names = Counter(), {}
    return Plan(
        source, mesh.size, graph, choices, tuple(stage_held), tuple(collectives), dict(whole), tuple(names),
        mesh, stages, state=state,
    )  # fmt: skip


def model_tensors(values: Sequence[ir.Value]) -> list[tuple[str, str, tuple[int | str | None, ...]]]:
    """Name, element type and shape (as the file names its axes) of model inputs or outputs."""
    return [(value.name or "", dtype_name(value.dtype), shown_shape(value) or ()) for value in values]


def _is_weight(weight: WeightTensor) -> bool:
    small = weight.tensor.size <= SMALL_ELEMENTS
    return weight.tensor.size > 1 and not weight.is_text and not (small and weight.is_integer)
