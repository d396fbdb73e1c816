"""SparseAttention, which fills buffers in place: sessions against plain ONNX Runtime with bound buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from launcher import start

HEADS, PAIRS, SIZE, ROOM, WIDTH = 8, 4, 16, 32, 32


def save(path: Path) -> None:
    random = np.random.default_rng(1)
    weights, nodes = [], []

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) * 0.3).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    weights += [
        numpy_helper.from_array(np.array([[0, 1, 3], [0, 1, 2]], np.int32), "rows"),
        numpy_helper.from_array(np.array([[0, 0, 1], [0, 1, -1]], np.int32), "columns"),
    ]
    for name, heads in (("q", HEADS), ("k", PAIRS), ("v", PAIRS)):
        nodes.append(helper.make_node("MatMul", ["x", weight(f"w{name}", WIDTH, heads * SIZE)], [name]))
    given = ["q", "k", "v", "past_key", "past_value", "rows", "columns", "total", "lengths"]
    nodes += [
        helper.make_node(
            "SparseAttention", given, ["a", "present_key", "present_value"], "attention",
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=PAIRS, sparse_block_size=16,
        ),
        helper.make_node("MatMul", ["a", weight("wo", HEADS * SIZE, WIDTH)], ["y"]),
    ]  # fmt: skip
    cache = ["batch", PAIRS, ROOM, SIZE]
    value = helper.make_tensor_value_info
    inputs = [
        value("x", TensorProto.FLOAT, ["batch", "n", WIDTH]),
        *(value(f"past_{name}", TensorProto.FLOAT, cache) for name in ("key", "value")),
        value("total", TensorProto.INT32, [1]),
        value("lengths", TensorProto.INT32, ["batch"]),
    ]
    outputs = [
        value("y", TensorProto.FLOAT, ["batch", "n", WIDTH]),
        *(value(f"present_{name}", TensorProto.FLOAT, cache) for name in ("key", "value")),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "sparse", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


class Plain:
    """The whole model over two buffers that it reads and writes."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        made = onnxruntime.OrtValue.ortvalue_from_numpy
        zeros = np.zeros((1, PAIRS, ROOM, SIZE), np.float32)
        self.caches = {name: made(zeros.copy()) for name in ("key", "value")}

    def step(self, feeds: dict[str, Any]) -> Any:
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, value in self.caches.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        binding.bind_output("y")
        self.session.run_with_iobinding(binding)
        return np.array(binding.get_outputs()[-1].numpy())  # in the order in which they were bound


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_steps_and_forks(tmp_path: Path, ranks: int) -> None:
    path = tmp_path / "model.onnx"
    save(path)
    plain, random, filled = Plain(path), np.random.default_rng(2), 0
    steps, want = [], []
    for count in (5, *[1] * 15):
        filled += count
        feeds = {
            "x": random.standard_normal((1, count, WIDTH)).astype(np.float32),
            "total": np.array([filled], np.int32), "lengths": np.array([filled], np.int32),
        }  # fmt: skip
        steps.append(feeds)
        want.append(plain.step(feeds))
    with start(path, ranks=ranks, launcher="local", threads=1) as group:
        placements = {pair.placement for pair in group.session_host.known.states.values()}
        assert placements == ({"split:1"} if ranks > 1 else {"replicated"})
        session = group.session()

        def check(one: Any, number: int) -> None:
            (found,) = one.predict(steps[number]).values()
            assert np.abs(found - want[number]).max() <= 1e-4 * np.abs(want[number]).max()

        for number in range(8):
            check(session, number)
        fork = session.fork()
        for number in range(8, len(steps)):
            check(session, number)
            check(fork, number)
