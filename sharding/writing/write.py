"""The slice folder of a plan: rank models, data files and manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.version import version
from sharding.errors import SliceError
from sharding.graph.values import shape_of
from sharding.importers.write import Progress
from sharding.planning.plan import Plan, model_tensors
from sharding.reading.head import find_head
from sharding.slices import manifest as manifests
from sharding.slices import never_empty
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.folder import check_output as check_output  # noqa: PLC0414 - part of this module's interface
from sharding.slices.folder import new_folder
from sharding.slices.manifest import FileEntry, Manifest, RankEntry
from sharding.slices.placement import REPLICATED, Placement
from sharding.slices.state import LOGITS_FROM
from sharding.writing.layout import Layout
from sharding.writing.rank_model import rank_model
from sharding.writing.stream import HashedFile, worker, write_data

if TYPE_CHECKING:
    import onnx_ir as ir

_LOGITS_FROM = manifests.TensorEntry(LOGITS_FROM, "int64", (1,))
"""Called with the bytes of weights written so far and in all."""


@WHOLE_FILES
def write_slices(
    plan: Plan, output: str | Path, progress: Progress | None = None, *, rank: int | None = None
) -> Manifest:
    """Writes rank models, weights and manifest; ``output`` appears at once, complete, or not at all.

    With ``rank`` only what that rank runs is written. Its manifest names the files of that rank, and those of
    ranks that were written into ``output`` from the same plan before; others have none.

    A slice folder that is already there is replaced (with ``rank``: unless it is of the same plan). Raises
    `SliceError` if ``output`` is anything else, or cannot be written.
    """
    output = Path(output)
    if rank is not None and not 0 <= rank < plan.world_size:
        raise SliceError(f"There is no rank {rank}: the ranks are 0..{plan.world_size - 1}.")
    mesh = plan.mesh
    ranks = [
        mesh.rank(data=0, pipeline=stage, tensor=place)
        for stage in range(plan.pipeline.count)
        for place in range(plan.tensor_size)
    ]
    if rank is not None:
        ranks = [_first_group(plan, rank)]
    layout = Layout(plan)
    models: dict[int, bytes] = {}
    read: dict[int, list[str]] = {}
    for number in ranks:
        models[number], read[number] = rank_model(plan, layout, number)
    files = [file for file in layout.sizes if any(file in names for names in read.values())]
    total = sum(layout.sizes[file] for file in files)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    needed = total + sum(map(len, models.values()))
    with new_folder(output, needed, merge=rank is not None) as folder:
        plan.source.hashed()  # once, before its weights are read, and not before there is room for them
        entries = write_data(layout, folder, files, advance)
        entries |= _write_models(folder, models)
        written = {
            number: (entries[_model_file(number)], *(entries[file] for file in read[number]))
            for number in ranks
        }
        result = _manifest(plan, written)
        manifests.write_manifest(folder, result)
    if progress is not None:
        progress(total, total)
    return result if rank is None else manifests.read_manifest(output)


def _first_group(plan: Plan, rank: int) -> int:
    """Ranks that differ only in their data group run the same files: those of the first group."""
    return plan.mesh.rank(**{**plan.mesh.coordinates(rank), "data": 0})


def _model_file(rank: int) -> str:
    return f"rank_{rank}.onnx"


def _write_models(folder: Path, models: dict[int, bytes]) -> dict[str, FileEntry]:
    files = []
    total = sum(map(len, models.values()))
    with worker(total, "hash") as hashing, worker(total, "write") as writing:
        for rank, data in models.items():
            file = HashedFile(folder / _model_file(rank), writing, hashing)
            files.append(file)
            try:
                file.write(memoryview(data)).result()
            finally:
                file.file.close()
    return {file.path.name: file.entry() for file in files}


def tensor_entries(values: Sequence[ir.Value]) -> tuple[manifests.TensorEntry, ...]:
    import onnx_ir as ir

    return tuple(
        manifests.TensorEntry(*item, open_rank=value.shape is None and isinstance(value.type, ir.TensorType))
        for value, item in zip(values, model_tensors(values), strict=True)
    )


def _manifest(plan: Plan, written: dict[int, tuple[FileEntry, ...]]) -> Manifest:
    """``written``: the files of ranks of the first data group."""
    entries = []
    for rank in range(plan.world_size):
        first = _first_group(plan, rank)
        size = plan.stage_weight_bytes(plan.mesh.coordinates(rank)["pipeline"])
        entries.append(RankEntry(rank, _model_file(first), size, written.get(first, ())))
    weights = {
        name: manifests.WeightEntry(
            str(_widest(held)),
            weight.dtype,
            weight.shape,
            weight.nbytes,
            plan.weight_stages(name),
            plan.source.made_of.get(name, ()),
        )
        for name, held in plan.weights.items()
        for weight in [plan.source.weights[name]]
    }
    graph = plan.source.model.graph
    fed = [value for value in graph.inputs if value.name not in plan.source.defaults]
    optional = [value for value in graph.inputs if value.name in plan.source.defaults]
    return Manifest(
        source=plan.source.hashed(),
        world_size=plan.world_size,
        ranks=tuple(entries),
        weights=weights,
        collectives=tuple(
            manifests.CollectiveEntry(item.op, item.tensor, item.dtype, item.shape, item.stage, item.within)
            for item in plan.collectives
        ),
        inputs=tensor_entries(fed),
        optional_inputs=(*tensor_entries(optional), *([_LOGITS_FROM] if find_head(plan.source) else [])),
        outputs=tensor_entries(graph.outputs),
        whole=dict(sorted(plan.whole.items())),
        strategy=plan.strategy,
        mesh=plan.mesh,
        micro_batches=plan.micro_batches,
        batch=plan.batch,
        created_by=f"shardrun {version()}",
        reason=plan.reason,
        lengths=dict(plan.lengths),
        state=plan.state,
        never_empty=_never_empty(fed, graph),
    )


def _never_empty(fed: Sequence[ir.Value], graph: ir.Graph) -> tuple[never_empty.NeverEmpty, ...]:
    return never_empty.find(
        [(value.name or "", shape_of(value) or ()) for value in fed],
        (
            never_empty.Operator(
                node.domain,
                node.op_type,
                [shape_of(value) if value is not None else None for value in node.inputs],
                node.attributes["equation"].as_string() if "equation" in node.attributes else "",
            )
            for node in graph
            if never_empty.is_fatal(node.domain, node.op_type)
        ),
    )


def _widest(held: tuple[Placement, ...]) -> Placement:
    return REPLICATED if REPLICATED in held else held[0]
