"""A plan as JSON: each field of a small one."""

from __future__ import annotations

from pathlib import Path

import sharding
from tests.sharding import graphs

TEXT = "g (float[batch, 64] x) => (float[batch, 64] y) { a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2) }"
STATE = """g (float[batch, new, 8] x, float[batch, past, 8] past_key_0)
=> (float[batch, all, 8] present_key_0) {
  k = MatMul(x, w) present_key_0 = Concat<axis = 1>(past_key_0, k)
}"""


def test_all_that_a_plan_says(tmp_path: Path) -> None:
    weights = {"w1": graphs.array(64, 16), "w2": graphs.array(16, 64)}
    found = sharding.plan_model(graphs.save(tmp_path / "m.onnx", TEXT, weights), 4).to_json()
    (stage,) = found.pop("stages")  # type: ignore[misc]
    assert stage.pop("seconds") > 0  # type: ignore[union-attr]
    assert stage == {"nodes": ["", "", ""], "weight_bytes": 2048}
    assert found == {
        "source": "m.onnx",
        "world_size": 4,
        "strategy": "tensor",
        "mesh": {"data": 1, "pipeline": 1, "tensor": 4},
        "micro_batches": 1,
        "lengths": {},
        "batch": {"inputs": {}, "outputs": {}},
        "reason": "",
        "rank_weight_bytes": 2048,
        "split_share": 0.25,
        "weights": {
            name: {"placement": [where], "dtype": "float32", "shape": shape, "bytes": 4096, "stages": [0]}
            for name, where, shape in (("w1", "split:1", [64, 16]), ("w2", "split:0", [16, 64]))
        },
        "collectives": [
            {"op": "AllReduce", "tensor": "y", "dtype": "float32", "shape": ["batch", 64], "stage": 0}
        ],
        "whole": {},
        "whole_weights": [],
        "warning": "",
    }


def test_state_is_there_where_the_model_has_some(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "m.onnx", STATE, {"w": graphs.array(8, 8)})
    plan = sharding.plan_model(path, 2)
    (pair,) = plan.to_json()["state"]  # type: ignore[misc]
    assert (pair["input"], pair["output"]) == ("past_key_0", "present_key_0")
