"""State of which the model leaves open how large it is before the first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import sharding
from ranks.run import executor
from ranks.state.pairs import head_sizes
from tests.ranks import state_models
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

DECODER = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[batch, n] input_ids, float[batch, 4, past, size] past_key)
  => (float[batch, n, 64] logits, float[batch, 4, total, size] present_key)
  <int64[4] apart = {0, 0, 4, -1}, int64[3] together = {0, 0, 32}, int64[1] two = {2}> {
  e = Gather(table, input_ids)
  k = MatMul(e, keys)
  q = MatMul(e, queries)
  k4 = Reshape(k, apart)
  q4 = Reshape(q, apart)
  kt = Transpose<perm = [0, 2, 1, 3]>(k4)
  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  present_key = Concat<axis = 2>(past_key, kt)
  turned = Transpose<perm = [0, 1, 3, 2]>(present_key)
  scores = MatMul(qt, turned)
  shares = Softmax<axis = -1>(scores)
  mixed = MatMul(shares, present_key)
  back = Transpose<perm = [0, 2, 1, 3]>(mixed)
  flat = Reshape(back, together)
  logits = MatMul(flat, head)
}"""
"""Without a mask: a step of one token reads all before it."""


def test_caches_that_grow_by_joining(tmp_path: Path) -> None:
    model, random = onnx.parser.parse_model(DECODER), np.random.default_rng(0)
    shapes = {"table": (64, 32), "keys": (32, 32), "queries": (32, 32), "head": (32, 64)}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32) * 0.3
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    cache, want = np.zeros((1, 4, 0, 8), np.float32), []
    tokens = [[[5]], [[9]], [[33]]]
    for ids in tokens:
        logits, cache = plain.run(None, {"input_ids": np.array(ids), "past_key": cache})
        want.append(logits)
    sharding.slice_model(path, 2, tmp_path / "slices")

    def work(rank: FakeCommunicator) -> list[np.ndarray]:
        loaded = executor.load(tmp_path / "slices", communicator=rank, threads=1)
        with loaded.session() as session:
            return [session.predict({"input_ids": np.array(ids)})["logits"] for ids in tokens]

    for found in on_ranks(2, work):
        for one, other in zip(found, want, strict=True):
            assert np.abs(one - other).max() < 1e-4 * np.abs(other).max()


@pytest.mark.parametrize("packed", [True, False])
def test_attention_says_how_long_heads_are(tmp_path: Path, packed: bool) -> None:
    """Where nothing else of the file does; keys and values may lie behind the queries."""
    state_models.FORMS["buffered"](tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    names = {value.name for value in model.graph.input if value.name.startswith("past")}
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.shape.dim[3].dim_param = "size"
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention" and not packed:
            node.input[1] = node.input[2] = "elsewhere"
    parts = state_models.HEADS + 2 * state_models.GROUPS if packed else state_models.HEADS
    width = state_models.HIDDEN + 2 * state_models.GROUPS * state_models.SIZE
    assert head_sizes(model, ()) == (dict.fromkeys(names, width // parts) if width % parts == 0 else {})
