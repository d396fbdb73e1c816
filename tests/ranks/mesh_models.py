"""Rank models of a mesh written by hand, and the plain model that they amount to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sharding.slices.mesh import Mesh
from tests.ranks.rank_models import FLOAT, model, node, value

WIDTH, HIDDEN = 4, 12
INPUTS = [value("x", ["batch", WIDTH]), value("mask", [WIDTH, "batch"]), value("scale", [1])]
BATCH = {"inputs": {"x": 0, "mask": 1}, "outputs": {"mid": 0, "y": 0, "t": 1}}


def _weights(stages: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    shapes = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {
        f"{kind}{stage}": rng.standard_normal(shape).astype(np.float32) / 2
        for stage in range(stages)
        for kind, shape in shapes.items()
    }


def _outputs(stages: int) -> list[tuple[str, int]]:
    """``mid`` leaves the first stage, the others the last; ``s`` has no batch axis, ``t`` not the first."""
    last = stages - 1
    return [("y", last), ("mid", 0), ("s", last), ("t", last)]


def whole(stages: int) -> onnx.ModelProto:
    """``stages`` blocks of two products, after each of which ``mask`` is added."""
    nodes, here = [node("Transpose", ["mask"], ["rows"])], "x"
    for stage in range(stages):
        nodes += [
            node("MatMul", [here, f"up{stage}"], [f"u{stage}"]),
            node("Tanh", [f"u{stage}"], [f"a{stage}"]),
            node("MatMul", [f"a{stage}", f"down{stage}"], [f"d{stage}"]),
            node("Add", [f"d{stage}", "rows"], [f"h{stage}"]),
        ]
        here = f"h{stage}"
    nodes += [
        node("Identity", ["h0"], ["mid"]),
        node("Mul", [here, "scale"], ["y"]),
        node("Add", ["scale", "scale"], ["s"]),
        node("Transpose", ["y"], ["t"]),
    ]
    return model(nodes, INPUTS, [value(name, None) for name, _ in _outputs(stages)], _weights(stages))


def stage_model(mesh: Mesh, rank: int, *, micro_batches: int = 1) -> onnx.ModelProto:
    """What this rank runs: its stage's block, the hidden units split over the tensor group."""
    place, stages, parts = mesh.coordinates(rank), mesh.length("pipeline"), mesh.length("tensor")
    stage, share = place["pipeline"], HIDDEN // parts
    mine = slice(place["tensor"] * share, (place["tensor"] + 1) * share)
    weights = _weights(stages)
    nodes, here, names = [], "x", [name for name, home in _outputs(stages) if home == stage]
    if stage:
        here = f"h{stage - 1}"
        nodes.append(node("Recv", [], [here], peer=stage - 1, dtype=FLOAT, announce=1, shape=[-1, WIDTH]))
    nodes += [
        node("Transpose", ["mask"], ["rows"]),
        node("MatMul", [here, f"up{stage}"], [f"u{stage}"]),
        node("Tanh", [f"u{stage}"], [f"a{stage}"]),
        node("MatMul", [f"a{stage}", f"down{stage}"], [f"part{stage}"]),
        node("AllReduce", [f"part{stage}"], [f"d{stage}"]),
        node("Add", [f"d{stage}", "rows"], [f"h{stage}"]),
    ]
    if stage == 0:
        nodes.append(node("Identity", ["h0"], ["mid"]))
    if stage == stages - 1:
        nodes += [
            node("Mul", [f"h{stage}", "scale"], ["y"]),
            node("Add", ["scale", "scale"], ["s"]),
            node("Transpose", ["y"], ["t"]),
        ]
    else:
        nodes.append(node("Send", [f"h{stage}"], [], peer=stage + 1, announce=1))
    own = {
        f"up{stage}": np.ascontiguousarray(weights[f"up{stage}"][:, mine]),
        f"down{stage}": np.ascontiguousarray(weights[f"down{stage}"][mine]),
    }
    result = model(nodes, INPUTS, [value(name, None) for name in names], own)
    describe(result, mesh, rank, micro_batches, _outputs(stages), BATCH)
    return result


def describe(
    result: onnx.ModelProto,
    mesh: Mesh,
    rank: int,
    micro_batches: int,
    outputs: list[tuple[str, int]],
    batch: dict[str, dict[str, int]],
) -> None:
    """Writes the metadata that slicing writes."""
    del result.metadata_props[:]
    properties = {
        "shardrun.rank": str(rank),
        "shardrun.world_size": str(mesh.size),
        "shardrun.mesh": str(mesh),
        "shardrun.micro_batches": str(micro_batches),
        "shardrun.layout": json.dumps({"outputs": outputs, "batch": batch}),
    }
    for key, text in properties.items():
        result.metadata_props.add(key=key, value=text)


def save_mesh(mesh: Mesh, folder: Path, **options: Any) -> list[Path]:
    """One file per rank; ranks that differ on the data axis alone share theirs."""
    paths = []
    for rank in range(mesh.size):
        file = folder / f"rank_{mesh.group(rank, 'data')[0]}.onnx"
        if not file.exists():
            onnx.save(stage_model(mesh, rank, **options), file)
        paths.append(file)
    return paths


def feeds_of(rows: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, WIDTH)).astype(np.float32),
        "mask": rng.standard_normal((WIDTH, rows)).astype(np.float32),
        "scale": np.array([1.5], np.float32),
    }
