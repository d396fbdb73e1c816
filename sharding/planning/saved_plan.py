"""A plan in a file: the choice for every node that does not stay whole, to be followed again.

JSON with one line a node, so that two plans can be compared line by line::

    {"format": "shardrun-plan", "version": 1,
     "source": {"file": "model.onnx", "sha256": "..."},
     "ranks": 4, "mesh": {"data": 1, "pipeline": 2, "tensor": 2}, "micro_batches": 2,
     "stages": {"h_5": 1},
     "nodes": {"h_1": "MatMul(replicated, split:1) -> split:2"}}

Nodes are named by their first output. ``stages`` names the nodes, in order, where the pipeline stage is not
that of the node before. ``lengths``, left out where there are none, are the open lengths planned for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sharding.common.bounds import MAX_MICRO_BATCHES, MAX_RANKS
from sharding.common.documents import DocumentError, quote, read_document
from sharding.common.storage import why_unwritable
from sharding.demands.demand import Demand, first_output, label_of
from sharding.slices.folder import replace_file
from sharding.slices.manifest_fields import SHA256
from sharding.slices.mesh import AXES, Mesh
from sharding.slices.placement import REPLICATED, Placement, parse_placement

if TYPE_CHECKING:
    from sharding.planning.plan import Plan
    from sharding.reading.read import Source
    from sharding.search.steps import Step

WHAT = "saved plan"
FORMAT, VERSION = "shardrun-plan", 1
MAX_BYTES = 256 << 20
_KEYS = ("format", "version", "source", "ranks", "mesh", "micro_batches", "stages", "nodes")
_MAY_LACK = "lengths"
_CHOICE = re.compile(r"([^()]{1,200})\(([^()]*)\) -> ([^()]*)")


@dataclass(frozen=True)
class SavedPlan:
    """What a plan's file says."""

    file: str
    sha256: str
    mesh: Mesh
    micro_batches: int = 1
    stages: Mapping[str, int] = field(default_factory=dict)
    """First output of a node -> the stage of it and those after it."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """First output of a node -> its operator and placements."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Open lengths that it was planned for."""


def plan_text(plan: Plan) -> str:
    """What a plan's file says."""
    nodes = {}
    for step, choice in zip(plan.steps, plan.choices, strict=True):
        option = step.options[choice]
        if {*option.inputs, *option.outputs} != {REPLICATED}:
            nodes[first_output(step.node)] = _choice_text(step, option.inputs, option.outputs)
    source = plan.source.hashed()
    head = {
        "format": FORMAT,
        "version": VERSION,
        "source": {"file": source.file, "sha256": source.sha256},
        "ranks": plan.mesh.size,
        "mesh": dict(plan.mesh.axes),
        "micro_batches": plan.micro_batches,
        **({_MAY_LACK: dict(plan.lengths)} if plan.lengths else {}),
        "stages": _beginnings(plan),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    rows = [f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(text)}" for name, text in nodes.items()]
    lines.append(' "nodes": {' + ("\n" + ",\n".join(rows) + "\n " if rows else "") + "}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def save_plan(plan: Plan, path: Path) -> None:
    """Writes a plan's file, whole or not at all. Raises `DocumentError` if it cannot be written."""

    def fill(file: BinaryIO) -> None:
        file.write(plan_text(plan).encode("utf-8", "surrogateescape"))

    try:
        replace_file(path, fill)
    except OSError as error:
        raise DocumentError(f"{path}: the plan cannot be written: {why_unwritable(error)}.") from None


def _choice_text(step: Step, inputs: Sequence[Placement], outputs: Sequence[Placement]) -> str:
    return f"{step.node.op_type}({', '.join(map(str, inputs))}) -> {', '.join(map(str, outputs))}"


def _beginnings(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    current = 0
    for step, stage in zip(plan.steps, plan.stages, strict=True):
        if stage != current:
            found[first_output(step.node)] = current = stage
    return found


def read_saved_plan(path: Path) -> SavedPlan:
    """Reads a plan's file. Raises `DocumentError`: the place in it, what was expected and what was found."""
    data, _ = read_document(path, WHAT, max_bytes=MAX_BYTES)

    def wrong(where: str, expected: str, found: object) -> DocumentError:
        return DocumentError(f"{path}: {where}: expected {expected}, found {quote(found)}.")

    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise wrong("$.format", f"{FORMAT!r}, as `shardrun slice --save-plan` writes it", found)
    if data.get("version") != VERSION or data["version"] is True:
        raise wrong("$.version", f"{VERSION}", data.get("version"))
    if set(data) - {_MAY_LACK} != set(_KEYS):
        raise wrong("$", f"the keys {', '.join(_KEYS)}", sorted(data))
    source = data["source"]
    if (
        not isinstance(source, dict)
        or set(source) != {"file", "sha256"}
        or not isinstance(source["file"], str)
    ):
        raise wrong("$.source", "the model's file and sha256", source)
    if not isinstance(source["sha256"], str) or not SHA256.fullmatch(source["sha256"]):
        raise wrong("$.source.sha256", "64 hexadecimal digits", source["sha256"])
    mesh = data["mesh"]
    if not isinstance(mesh, dict) or set(mesh) != set(AXES) or not all(map(_is_size, mesh.values())):
        raise wrong("$.mesh", f"the sizes of {', '.join(AXES)}, from 1 to {MAX_RANKS}", mesh)
    found_mesh = Mesh(tuple(mesh.items()))
    if type(data["ranks"]) is not int or data["ranks"] != found_mesh.size or found_mesh.size > MAX_RANKS:
        raise wrong("$.ranks", f"the product of the mesh's sizes, at most {MAX_RANKS}", data["ranks"])
    pieces = data["micro_batches"]
    if type(pieces) is not int or not 1 <= pieces <= MAX_MICRO_BATCHES:
        raise wrong("$.micro_batches", f"a whole number from 1 to {MAX_MICRO_BATCHES}", pieces)
    for key in ("stages", "nodes"):
        if not isinstance(data[key], dict):
            raise wrong(f"$.{key}", "a mapping by the first outputs of nodes", data[key])
    for name, stage in data["stages"].items():
        if type(stage) is not int or not 0 <= stage < found_mesh.length("pipeline"):
            raise wrong(f"$.stages.{name}", f"a stage below {found_mesh.length('pipeline')}", stage)
    for name, text in data["nodes"].items():
        if not isinstance(text, str) or not _CHOICE.fullmatch(text):
            raise wrong(f"$.nodes.{name}", "OPERATOR(PLACEMENT, ...) -> PLACEMENT, ...", text)
    lengths = data.get(_MAY_LACK, {})
    if not isinstance(lengths, dict) or not all(type(n) is int and n > 0 for n in lengths.values()):
        raise wrong(f"$.{_MAY_LACK}", "a mapping of open lengths to whole numbers from 1 up", lengths)
    return SavedPlan(
        source["file"], source["sha256"], found_mesh, pieces, data["stages"], data["nodes"], lengths
    )


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANKS


def check_source(path: Path, saved: SavedPlan, source: Source) -> None:
    """Raises `DocumentError` if the plan is another model's."""
    found = source.hashed().sha256
    if saved.sha256 != found:
        raise DocumentError(
            f"{path} is the plan of {saved.file!r} with SHA-256 {saved.sha256[:16]}..., but {source.path} "
            f"has {found[:16]}...: save a plan of this model, or slice that one."
        )


def plan_demands(
    path: Path, source: Source, graph: Sequence[Step], mesh: Mesh
) -> list[tuple[Step, Demand, str]]:
    """What a saved plan asks of each step, with the words that begin an error about it.

    Raises `DocumentError`: another model, another mesh, or nodes that the model has not.
    """
    saved = read_saved_plan(path)
    check_source(path, saved, source)
    if saved.mesh.length("tensor") != mesh.length("tensor"):
        raise DocumentError(f"{path} is a plan for the mesh {saved.mesh}, but {mesh} is asked for.")
    known = {first_output(step.node): step for step in graph}
    for key, names in (("nodes", saved.nodes), ("stages", saved.stages)):
        for name in names:
            if name not in known:
                raise DocumentError(f"{path}: $.{key}: {source.path} has no node that makes {quote(name)}.")
    demands = []
    for step in graph:
        where = f"{path}: {label_of(step.node)}"
        text = saved.nodes.get(first_output(step.node))
        demand = _whole(step) if text is None else _parsed(step, text, where)
        demands.append((step, demand, where))
    return demands


def _whole(step: Step) -> Demand:
    return _exactly([REPLICATED] * len(step.inputs), [REPLICATED] * len(step.node.outputs))


def _exactly(inputs: Sequence[Placement | None], outputs: Sequence[Placement | None]) -> Demand:
    demand = Demand(exact=True)
    demand.inputs.update((index, item) for index, item in enumerate(inputs) if item is not None)
    demand.outputs.update((index, item) for index, item in enumerate(outputs) if item is not None)
    return demand


def _parsed(step: Step, text: str, where: str) -> Demand:
    match = _CHOICE.fullmatch(text)
    assert match is not None
    placements = [
        [parse_placement(item) for item in part.split(", ")] if part else [] for part in (match[2], match[3])
    ]
    inputs, outputs = placements
    if match[1] != step.node.op_type:
        raise DocumentError(f"{where}: the plan has another operator there: {quote(text)}.")
    if None in inputs or None in outputs:
        raise DocumentError(
            f"{where}: expected placements such as split:1 or replicated, found {quote(text)}."
        )
    if len(inputs) != len(step.inputs) or len(outputs) != len(step.node.outputs):
        raise DocumentError(
            f"{where}: expected placements of {len(step.inputs)} inputs and {len(step.node.outputs)} "
            f"outputs, found {quote(text)}."
        )
    return _exactly(inputs, outputs)


def saved_stages(path: Path, graph: Sequence[Step]) -> list[int]:
    """The stage of each step in a saved plan."""
    saved = read_saved_plan(path)
    found: list[int] = []
    current = 0
    for step in graph:
        current = saved.stages.get(first_output(step.node), current)
        found.append(current)
    return found
