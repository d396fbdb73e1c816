"""Every way from one placement to another, run on real data: the whole value must come back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from sharding.graph.values import shape_of
from sharding.rules.base import Option
from sharding.search.cost import BYTES_PER_SECOND, reshard_seconds
from sharding.search.reshard import COLLECTIVES, reshard
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.turns import in_turns

PLACES: list[Placement] = [REPLICATED, Split(1), Split(2), Split(1, 2), Split(2, 3), Split(1, 3)]
COLLECTIVE = {
    ("whole", "whole"): [],
    ("whole", "split"): [],
    ("sum", "whole"): ["AllReduce"],
    ("sum", "split"): ["AllReduce"],
    ("split", "whole"): ["AllGather"],
}


def _kind(placement: Placement) -> str:
    return "split" if isinstance(placement, Split) else "sum" if placement == PARTIAL else "whole"


@pytest.mark.parametrize(
    ("source", "target", "ranks", "opset"), in_turns([*PLACES, PARTIAL], PLACES, [2, 3], [9, 18]), ids=str
)
def test_reshard(tmp_path: Path, source: Placement, target: Placement, ranks: int, opset: int) -> None:
    """Each way is written in both opsets, in one of them for 2 ranks and in the other for 3."""
    text = (
        "g (float[n, 36, 36] x) => (float[n, 36, 36] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    )
    path = graphs.save(tmp_path / "model.onnx", text, {}, opset=opset)
    plan = sharding.plan_model(path, ranks, allow_replicated=True)
    first, second, _ = plan.steps

    def place(e: Any, values: Any) -> list[Any]:
        if source == PARTIAL:
            share = np.asarray(1 / 2 if e.rank == 0 else 1 / (2 * (ranks - 1)), np.float32)
            return e.op("Mul", [values[0], e.constant(share)])
        copy = e.copy(values)[0]
        return [reshard(e, copy, REPLICATED, source, shape_of(first.node.outputs[0]) or ())]

    first.options = [Option((REPLICATED,), (source,), place)]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 36, 36)}, 1e-6)

    kept = target if isinstance(target, Split) else REPLICATED
    expected = list(COLLECTIVE.get((_kind(source), _kind(target)), []))
    if isinstance(source, Split) and isinstance(target, Split) and source != target:
        expected = ["AllToAll" if source.axis != target.axis else "AllGather"]
    if isinstance(kept, Split):
        expected.append("AllGather")
    assert lockstep.collectives(tmp_path / "slices") == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (Split(1), REPLICATED, [("AllGather", ("n", 12, 36))]),
        (Split(2, 3), REPLICATED, [("AllGather", ("n", 36, 12))]),
        (PARTIAL, REPLICATED, [("AllReduce", ("n", 36, 36))]),
        (Split(1), Split(2), [("AllToAll", (3, "n", 12, 12)), ("AllGather", ("n", 36, 12))]),
    ],
    ids=str,
)
def test_what_each_rank_puts_in(
    tmp_path: Path, source: Placement, target: Placement, expected: list[tuple[str, tuple[int | str, ...]]]
) -> None:
    """The rank models say the shape of what one of three ranks gives."""
    text = "g (float[n, 36, 36] x) => (float[n, 36, 36] y) { a = Identity(x) y = Identity(a) }"
    plan = sharding.plan_model(graphs.save(tmp_path / "model.onnx", text, {}), 3, allow_replicated=True)
    first, second = plan.steps
    first.options = [Option((REPLICATED,), (source,), lambda e, values: [_cut_to(e, values, source)])]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0]), tmp_path / "slices")
    graph = onnx.load(tmp_path / "slices" / "rank_0.onnx", load_external_data=False).graph
    shapes = {
        value.name: tuple(axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in graph.value_info
    }
    found = [(node.op_type, shapes[node.input[0]]) for node in graph.node if node.op_type in COLLECTIVES]
    assert found == expected


def _cut_to(e: Any, values: Any, source: Placement) -> Any:
    whole = e.copy(values)[0]
    return whole if source == PARTIAL else reshard(e, whole, REPLICATED, source, ("n", 36, 36))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Split(1, copies=2), REPLICATED),
        (Split(1, 3, 2), REPLICATED),
        (Split(1, 3, 4), Split(1, 3)),
        (Split(1, copies=4), Split(1, copies=2)),
        (Split(1, copies=2), Split(2)),
    ],
    ids=str,
)
def test_parts_that_several_ranks_hold(tmp_path: Path, source: Split, target: Placement) -> None:
    """Of neighbours with the same part one counts, and each takes its own piece of what they share."""
    text = "g (float[n, 24, 8] x) => (float[n, 24, 8] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    path = graphs.save(tmp_path / "model.onnx", text, {})
    plan = sharding.plan_model(path, 4, allow_replicated=True)
    first, second, _ = plan.steps

    def place(e: Any, values: Any) -> list[Any]:
        return [reshard(e, e.copy(values)[0], REPLICATED, source, ("n", 24, 8))]

    first.options = [Option((REPLICATED,), (source,), place)]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 24, 8)}, 1e-6)


def test_copies_are_gathered_too() -> None:
    """All ranks send what they hold, also those that hold the same: twice as much with two copies."""
    size, world = 1 << 30, 4
    once, twice = (reshard_seconds(Split(0, 3, copies), REPLICATED, size, world) for copies in (1, 2))
    assert twice - once == pytest.approx(size * (world - 1) / world / BYTES_PER_SECOND)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8])
def test_a_dequantized_weight_that_is_cut_has_its_zero_point(tmp_path: Path, kind: Any) -> None:
    """ONNX Runtime before 1.28 takes an absent one behind a Slice for uint8's."""
    low = 0 if kind is np.uint8 else -99
    weights = {"w": np.random.default_rng(3).integers(low, 99, (12, 8)).astype(kind), "s": np.float32(0.01)}
    text = "g (float[n, 12] x) => (float[n, 8] y) { d = DequantizeLinear(w, s) m = Neg(d) y = MatMul(x, m) }"
    path = graphs.save(
        tmp_path / "model.onnx", text, {k: np.asarray(v) for k, v in weights.items()}, opset=21
    )
    plan = sharding.plan_model(path, 2, allow_replicated=True)
    plan.steps[0].options = [Option((Split(1), REPLICATED), (Split(1),))]
    plan.steps[1].options = [Option((Split(0),), (Split(0),))]
    plan.steps[2].options = [Option((Split(1), Split(0)), (PARTIAL,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 12)}, 1e-5)
    nodes = onnx.load(tmp_path / "slices" / "rank_0.onnx", load_external_data=False).graph.node
    (written,) = [node for node in nodes if node.op_type == "DequantizeLinear"]
    assert len(written.input) == (2 if kind is np.uint8 else 3)
