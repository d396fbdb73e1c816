"""Rank models made elsewhere: ONNX Runtime's names and operators, one file for each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from ranks.errors import ModelError, ShardError
from ranks.run import executor
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks, same_everywhere
from tests.ranks.rank_models import joined, model, node, value
from tests.sharding import graphs


def _decoder(rank: int, size: int, element: int = 1) -> onnx.ModelProto:
    """A rank's part of one attention layer with a cache, as ONNX Runtime's tools export it.

    The cache holds the rank's own heads; vocabulary logits are gathered along the last axis, and without an
    axis along axis 1: the default of ONNX Runtime's schema.
    """
    dtype = helper.tensor_dtype_to_np_dtype(element)
    rng = np.random.default_rng(rank)
    local = 8 // size
    kind = {1: "float", 10: "float16"}[element]
    text = f"""<ir_version: 8, opset_import: ["" : 16, "com.microsoft" : 1, "com.microsoft.nchwc" : 1]>
    rank_{rank} ({kind}[batch, n, 8] x, {kind}[batch, past, {local}] past_key)
    => ({kind}[batch, n, {6 * size}] logits, {kind}[batch, total, {local}] present_key, {kind}[] stacked) {{
      query = MatMul(x, q)
      key = MatMul(x, k)
      present_key = Concat<axis = 1>(past_key, key)
      turned = Transpose<perm = [0, 2, 1]>(present_key)
      scores = MatMul(query, turned)
      weights = Softmax<axis = -1>(scores)
      context = MatMul(weights, present_key)
      part = MatMul(context, o)
      hidden = com.microsoft.AllReduce(part)
      share = MatMul(hidden, head)
      logits = com.microsoft.AllGather<group_size = {size}, axis = -1>(share)
      stacked = com.microsoft.AllGather<group_size = {size}>(share)
    }}"""
    shapes = {"q": (8, local), "k": (8, local), "o": (local, 8), "head": (8, 6)}
    weights = {name: (rng.standard_normal(shape) / 3).astype(dtype) for name, shape in shapes.items()}
    return graphs.model(text, weights)


def _feeds(size: int, dtype: Any) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    shapes = {"x": (2, 3, 8), "past_key": (2, 4, 8 // size)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize(("element", "tolerance"), [(1, 1e-4), (10, 2e-2)])
@pytest.mark.parametrize("field", ["{}", "{r}", "{rank}"])
def test_a_decoder_with_a_cache_runs_as_it_is(
    element: int, tolerance: float, field: str, tmp_path: Path
) -> None:
    size = 2
    models = [_decoder(rank, size, element) for rank in range(size)]
    for rank, item in enumerate(models):
        onnx.save(item, tmp_path / f"rank_{rank}_decoder.onnx")
    feeds = _feeds(size, helper.tensor_dtype_to_np_dtype(element))

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(tmp_path / f"rank_{field}_decoder.onnx", communicator=world, threads=1)
        assert loaded.path.name == f"rank_{world.rank}_decoder.onnx"
        assert loaded.stats.collectives == 3
        return [loaded.run(feeds) for _ in range(3)]

    everyone = on_ranks(size, work)
    whole = ort.InferenceSession(joined(models).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in whole.get_outputs()]
    wanted = dict(zip(names, whole.run(None, feeds), strict=True))
    for rank, runs in enumerate(everyone):
        for run in runs:
            for name, found in zip(["logits", "present_key", "stacked"], run, strict=True):
                right = wanted[f"{rank}/{name}"].astype(np.float32)
                assert np.abs(found.astype(np.float32) - right).max() <= tolerance * np.abs(right).max()
    logits = [[run[0] for run in runs] for runs in everyone]
    assert same_everywhere(logits), "each rank's cache is its own, the logits are everyone's"


def test_ranks_without_a_file(tmp_path: Path) -> None:
    for rank in range(2):
        onnx.save(_decoder(rank, 2), tmp_path / f"rank_{rank}_decoder.onnx")

    def work(world: FakeCommunicator) -> str:
        with pytest.raises(ShardError) as caught:
            executor.load(tmp_path / "rank_{}_decoder.onnx", communicator=world)
        return str(caught.value)

    for message in on_ranks(3, work):
        assert "This job has 3 ranks" in message
        assert "rank_0_decoder.onnx, rank_1_decoder.onnx: rank 2 has none" in message


def test_files_of_another_group_size(tmp_path: Path) -> None:
    for rank in range(3):
        onnx.save(_decoder(rank, 2), tmp_path / f"rank_{rank}_decoder.onnx")

    def work(world: FakeCommunicator) -> None:
        with pytest.raises(ModelError, match="is for a group of 2, but this group has 3 ranks"):
            executor.load(tmp_path / "rank_{}_decoder.onnx", communicator=world)

    on_ranks(3, work)


@pytest.mark.parametrize("operator", ["ShardedMoE", "DistributedMatMul", "DistributedReduceSum"])
@pytest.mark.parametrize("with_others", [False, True])
def test_operators_of_nccl_builds_only(operator: str, with_others: bool, tmp_path: Path) -> None:
    nodes = [helper.make_node(operator, ["x"], ["y"], name="block/7", domain="com.microsoft")]
    if with_others:
        nodes.append(node("AllReduce", ["y"], ["z"]))
    onnx.save(model(nodes, [value("x", [2])], [nodes[-1].output[0]]), tmp_path / "rank_0_m.onnx")
    with pytest.raises(
        ModelError, match=rf"{operator} \(node 'block/7'\), .* only in builds of ONNX Runtime with NCCL"
    ):
        executor.load(tmp_path / "rank_0_m.onnx", communicator=FakeCommunicator(None, 0, 2, 1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("declared", [[1, "length"], [1, 4, 1], ["n", "m", "k", "j"], [], None], ids=str)
def test_declared_shapes_are_not_insisted_on(declared: list[Any] | None, tmp_path: Path) -> None:
    """Of the output, and of a value between segments: ONNX Runtime alone would only warn of them."""
    models = []
    for rank in range(2):
        nodes = [
            node("MatMul", ["x", "w"], ["a"]),
            node("AllReduce", ["a"], ["b"]),
            node("Shape", ["b"], ["s"]),
            node("Concat", ["s", "one"], ["to"], axis=0),
            node("Reshape", ["b", "to"], ["c"]),
            node("AllReduce", ["c"], ["d"]),
            node("Tanh", ["d"], ["y"]),
        ]
        rng = np.random.default_rng(rank)
        weights = {"w": rng.standard_normal((3, 4)).astype(np.float32), "one": np.array([1])}
        made = model(nodes, [value("x", ["n", 3])], [value("y", declared)], weights)
        made.graph.value_info.extend(value(name, declared) for name in ("b", "c", "d"))
        models.append(made)
        onnx.save(made, tmp_path / f"rank_{rank}_model.onnx")
    for item in models:
        del item.graph.value_info[:]  # the whole model, in which nothing is declared
    whole = ort.InferenceSession(joined(models).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = [{"x": np.full((rows, 3), rows, np.float32) / 4} for rows in (2, 2, 2, 5, 5, 2)]

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(tmp_path / "rank_{}_model.onnx", communicator=world, threads=1)
        return [array for each in feeds for array in loaded.run(each)]

    everyone = on_ranks(2, work)
    assert same_everywhere(everyone)
    for found, each in zip(everyone[0], feeds, strict=True):
        right = whole.run(["0/y"], each)[0]
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, atol=1e-6)
