"""Parts that neighbouring ranks hold alike: cut, moved, and offered by every rule, on real data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharding
from sharding.graph.values import shape_of
from sharding.onnx_files.tensors import cut
from sharding.rules import RULES
from sharding.rules.base import NodeView, Option, Rule
from sharding.search.copies import copied_lengths, copied_options, options_with_copies
from sharding.search.cost import NODE_SECONDS, reshard_seconds, weight_cost
from sharding.search.reshard import reshard
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split, held_bytes, parse_placement
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep, proof
from tests.sharding.llama import sized
from tests.sharding.rule_cases import CASES

LIFTED = [
    *("Add", "Concat", "Expand", "Gather", "MatMul", "Mul", "Neg", "Reshape", "Shape", "Size", "Slice"),
    *("Softmax", "Split", "Transpose", "Unsqueeze", "Where"),
]


@pytest.mark.parametrize("operator", LIFTED)
def test_every_lifted_option_is_exact(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule for two groups of two ranks, as options of four ranks."""
    monkeypatch.setitem(RULES, ("", operator), _lifted(RULES["", operator], 4))
    proved = 0
    for case in CASES:
        if (case.domain, case.op_type) == ("", operator) and proof.runnable(case):
            proved += len(proof.prove(case, 4))
    assert proved > 0


def _lifted(rule: Rule, world: int) -> Rule:
    def options(view: NodeView) -> list[Option]:
        return options_with_copies(view, 2) if view.world == world else rule(view)

    return options


@pytest.mark.parametrize("text", ["split:1*2", "split:0/3*2", "split:2*3"])
def test_cutting(tmp_path: Path, text: str) -> None:
    """By the definition: equal blocks, each of world / copies parts, rank r holding part r // copies."""
    placement = parse_placement(text)
    assert isinstance(placement, Split) and str(placement) == text
    array = graphs.array(36, 36, 36)
    parts = proof.cut(array, placement, 6)
    whole = graphs.save(
        tmp_path / "model.onnx",
        "g (float[36, 36, 36] x) => (float[36, 36, 36] y) { y = Add(x, w) }",
        {"w": array},
        external=True,
    )
    weight = sharding.plan_model(whole, 6, allow_replicated=True).source.weights["w"]
    for rank in range(6):
        np.testing.assert_array_equal(cut(array, placement, rank, 6), parts[rank])
        np.testing.assert_array_equal(weight.part(placement, rank, 6), parts[rank])
    assert held_bytes(array.nbytes, placement, 6) == parts[0].nbytes


PLACES: list[Placement] = [REPLICATED, Split(1), Split(2), Split(1, 1, 2), Split(1, 3, 2), Split(2, 1, 2)]
COLLECTIVES: dict[tuple[str, str], list[str]] = {
    ("split:1*2", "split:1"): [],
    ("split:2*2", "split:2"): [],
    ("split:1", "split:2"): ["AllToAll"],
    ("split:2", "split:1"): ["AllToAll"],
}


@pytest.mark.parametrize("target", PLACES, ids=str)
@pytest.mark.parametrize("source", [*PLACES, PARTIAL], ids=str)
def test_reshard(tmp_path: Path, source: Placement, target: Placement) -> None:
    text = (
        "g (float[n, 36, 36] x) => (float[n, 36, 36] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    )
    path = graphs.save(tmp_path / "model.onnx", text, {})
    plan = sharding.plan_model(path, 4, allow_replicated=True)
    first, second, _ = plan.steps
    first.options = [Option((REPLICATED,), (source,), _placed(source, shape_of(first.node.outputs[0]) or ()))]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 36, 36)}, 1e-6)
    expected = []
    if source == PARTIAL:
        expected = ["AllReduce"]
    elif isinstance(source, Split) and source != target:
        expected = COLLECTIVES.get((str(source), str(target)), ["AllGather"])
    expected = expected + (["AllGather"] if isinstance(target, Split) else [])
    assert lockstep.collectives(tmp_path / "slices") == expected


def test_a_part_that_is_held_by_none_whole_is_gathered(tmp_path: Path) -> None:
    """Six ranks: a third of what is held in halves lies across two of them."""
    source, target = Split(1, 1, 3), Split(1, 1, 2)
    text = "g (float[n, 36] x) => (float[n, 36] y) { a = Identity(x) b = Identity(a) y = Identity(b) }"
    path = graphs.save(tmp_path / "model.onnx", text, {})
    plan = sharding.plan_model(path, 6, allow_replicated=True)
    first, second, _ = plan.steps
    first.options = [Option((REPLICATED,), (source,), _placed(source, shape_of(first.node.outputs[0]) or ()))]
    second.options = [Option((target,), (target,))]
    write_slices(replace(plan, choices=[0, 0, 0]), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 36)}, 1e-6)
    assert lockstep.collectives(tmp_path / "slices") == ["AllGather", "AllGather"]


def _placed(source: Placement, shape: Any) -> Callable[[Any, Any], list[Any]]:
    def place(e: Any, values: Any) -> list[Any]:
        if source == PARTIAL:
            return e.op("Mul", [values[0], e.constant(np.asarray(1 / 4, np.float32))])
        return [reshard(e, e.copy(values)[0], REPLICATED, source, shape)]

    return place


def test_costs() -> None:
    """A part of a larger part is a slice; copies are sent too; copies of a weight count as cut, but last."""
    assert reshard_seconds(Split(1, 1, 2), Split(1), 1 << 20, 4) == NODE_SECONDS
    gathered = reshard_seconds(Split(1), REPLICATED, 1 << 20, 4)
    assert reshard_seconds(Split(1), Split(1, 1, 2), 1 << 20, 4) >= gathered
    assert reshard_seconds(Split(1, 1, 2), REPLICATED, 1 << 20, 4) > gathered
    assert weight_cost(64, Split(1), 4) < weight_cost(64, Split(1, 1, 2), 4) < weight_cost(64, REPLICATED, 4)


def test_only_graphs_with_axes_that_are_too_short_get_them(tmp_path: Path) -> None:
    def lengths(ranks: int, kv_heads: int) -> dict[int, set[int]]:
        path = sized(kv_heads=kv_heads, size=16).save(tmp_path / "model.onnx")
        return copied_lengths(
            step.view for step in sharding.plan_model(path, ranks).steps if _has_rule(step.view)
        )

    def _has_rule(view: NodeView) -> bool:
        return (view.domain, view.op_type) in RULES

    assert lengths(4, 4) == {} and lengths(2, 2) == {}
    # Two heads of 16; repeated, eight heads.
    assert {2, 32, 8} <= lengths(4, 2)[2]
    assert lengths(8, 2).keys() == {4}
    assert lengths(6, 2).keys() == {3, 4} or lengths(6, 2).keys() == {3}


def test_a_rule_is_asked_once_however_many_lengths_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the ranks, and for groups of them."""
    path = sized(kv_heads=2, size=16).save(tmp_path / "model.onnx")
    views = [step.view for step in sharding.plan_model(path, 4).steps if step.view.op_type == "Reshape"]
    asked, rule = list[NodeView](), RULES["", "Reshape"]
    monkeypatch.setitem(RULES, ("", "Reshape"), lambda view: asked.append(view) or rule(view))
    assert copied_lengths(views).keys() == {2}
    assert len(asked) <= 2 * len(views)


@pytest.mark.parametrize("shape", [(32, 4), (128,)], ids=str)
def test_scales_of_a_quantized_weight_go_with_it(shape: tuple[int, ...]) -> None:
    """ONNX Runtime's quantizer wrote them with one axis, and writes them with two."""
    view = NodeView(
        op_type="MatMulNBits",
        domain="com.microsoft",
        version=1,
        world=4,
        attributes={"K": 64, "N": 32, "block_size": 16, "bits": 4},
        shapes=[("batch", "sequence", 64), (32, 4, 8), shape],
        dtypes=[np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.float32)],
        constants=[None] * 3,
        present=[True] * 3,
        output_shapes=[("batch", "sequence", 32)],
    )
    placements = [option.inputs for option in copied_options(view, {2: {32}})]
    assert (REPLICATED, Split(0, 1, 2), Split(0, 1, 2)) in placements


@pytest.mark.parametrize("cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("operator", ["GroupQueryAttention", "Attention"])
def test_fused_attention_with_fewer_key_heads_than_ranks(operator: str, cache: bool) -> None:
    """Queries are cut over all ranks; keys and values, and their cache, by group."""
    batch, length, size, past = 2, 3, 16, 4
    query = graphs.array(batch, length, 8 * size)
    key, value = (graphs.array(batch, length, 2 * size, seed=seed) for seed in (1, 2))
    caches = [graphs.array(batch, 2, past if cache else 0, size, seed=seed) for seed in (3, 4)]
    if operator == "GroupQueryAttention":
        total = past + length if cache else length
        ends = np.full(batch, total - 1, np.int32)
        inputs = [query, key, value, *(caches if cache else [None, None]), ends, np.asarray(total, np.int32)]
        if cache:  # more than one new token per row would have to be the first ones
            inputs[:3] = [query[:, :1], key[:, :1], value[:, :1]]
            inputs[5:7] = [np.full(batch, past, np.int32), np.asarray(past + 1, np.int32)]
        counts = {"num_heads": 8, "kv_num_heads": 2}
        case = proof.Case(operator, inputs, counts, opset=1, outputs=3, domain=proof.MICROSOFT)
    else:
        counts = {"q_num_heads": 8, "kv_num_heads": 2}
        inputs = [query, key, value, None, *caches] if cache else [query, key, value]
        case = proof.Case(operator, inputs, counts, opset=23, outputs=3 if cache else 1)
    if not proof.runnable(case):
        pytest.skip("the installed ONNX Runtime does not run Attention of opset 23")
    options = proof.prove(case, 4)
    shared = Split(2, copies=2)
    assert any(option.inputs[:3] == (Split(2), shared, shared) for option in options)
