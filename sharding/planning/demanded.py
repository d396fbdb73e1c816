"""Placements that a user, an annotation or a saved plan demands, applied to a graph's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sharding.common.documents import DocumentError
from sharding.common.text import counted
from sharding.demands.annotations import annotated_demands, annotated_mesh, annotated_stages
from sharding.demands.demand import meet
from sharding.errors import SliceError
from sharding.planning.saved_plan import check_source, plan_demands, read_saved_plan, saved_stages
from sharding.slices.mesh import Mesh
from sharding.slices.placement import Placement

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.demands.options import SliceOptions
    from sharding.reading.read import Source
    from sharding.search.steps import Step


def demanded_options(source: Source, ranks: int, options: SliceOptions) -> SliceOptions:
    """The options with what a saved plan or the model's annotations say of the mesh and the micro-batches.

    A saved plan's mesh is followed, and must not contradict one that is asked for. Annotations say it where
    neither a mesh nor another strategy is asked for. Raises `SliceError`.
    """
    if options.plan is not None:
        saved = read_saved_plan(options.plan)
        check_source(options.plan, saved, source)
        if options.steering is not None:
            raise SliceError(
                "A saved plan leaves nothing to steer: give a plan or a steering file, not both."
            )
        if saved.mesh.size != ranks or (options.mesh is not None and options.mesh != saved.mesh):
            asked = counted(ranks, "rank") + (f" with the mesh {options.mesh}" if options.mesh else "")
            raise DocumentError(
                f"{options.plan} is a plan for {counted(saved.mesh.size, 'rank')} with the mesh "
                f"{saved.mesh}, but asked for are {asked}."
            )
        pieces = saved.micro_batches if saved.mesh.length("pipeline") > 1 else None
        pieces = pieces if options.micro_batches is None else options.micro_batches
        dims = {**saved.lengths, **options.dims}
        return replace(options, mesh=saved.mesh, micro_batches=pieces, dims=dims)
    if options.annotations and options.mesh is None and options.strategy in {"tensor", "auto"}:
        mesh = annotated_mesh(source, ranks)
        if mesh is not None:
            return replace(options, mesh=mesh)
    return options


def pin(source: Source, graph: Sequence[Step], options: SliceOptions) -> Mapping[ir.Value, Placement]:
    """Leaves each step only the options that agree with what is demanded, and returns the values that must be
    brought to a placement as soon as they are produced. Raises `SliceError` for what cannot be done.

    A saved plan stands for itself. Else annotations and steering both hold. ``options.mesh`` is the mesh of
    the job; without one, all ranks are one tensor group.
    """
    world = graph[0].view.world if graph else 1
    mesh = options.mesh or Mesh.of(tensor=world)
    fixed: dict[ir.Value, Placement] = {}
    if options.plan is not None:
        demands = plan_demands(options.plan, source, graph, mesh)
    else:
        demands = annotated_demands(source, graph, mesh) if options.annotations else []
        if options.steering is not None:
            from sharding.demands.steering import steered_demands

            demands += steered_demands(options.steering, source, graph)
    if world > 1:
        for step, demand, where in demands:
            fixed |= meet(step, demand, where)
    return fixed


def demanded_stages(source: Source, graph: Sequence[Step], options: SliceOptions) -> list[int | None]:
    """The pipeline stage that a saved plan or the annotations say for each step; empty if they say none."""
    mesh = options.mesh
    if mesh is None or mesh.length("pipeline") == 1:
        return []
    if options.plan is not None:
        return list(saved_stages(options.plan, graph))
    if not options.annotations:
        return []
    return annotated_stages(source, graph, mesh.length("pipeline") * mesh.length("tensor"))
