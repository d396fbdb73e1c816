"""SparseAttention, which fills buffers in place: sessions against plain ONNX Runtime with bound buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher import start
from tests.sharding import graphs

HEADS, PAIRS, SIZE, ROOM, WIDTH = 8, 4, 16, 32, 32


def save(path: Path) -> None:
    random = np.random.default_rng(1)
    shapes = {name: (WIDTH, heads * SIZE) for name, heads in (("wq", HEADS), ("wk", PAIRS), ("wv", PAIRS))}
    shapes["wo"] = (HEADS * SIZE, WIDTH)
    weights: dict[str, Any] = {
        name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()
    }
    weights["rows"] = np.array([[0, 1, 3], [0, 1, 2]], np.int32)
    weights["columns"] = np.array([[0, 0, 1], [0, 1, -1]], np.int32)
    cache = f"float[batch, {PAIRS}, {ROOM}, {SIZE}]"
    text = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    sparse (
      float[batch, n, {WIDTH}] x, {cache} past_key, {cache} past_value, int32[1] total, int32[batch] lengths
    ) => (float[batch, n, {WIDTH}] y, {cache} present_key, {cache} present_value) {{
      q = MatMul(x, wq)
      k = MatMul(x, wk)
      v = MatMul(x, wv)
      a, present_key, present_value = com.microsoft.SparseAttention <
        num_heads = {HEADS}, kv_num_heads = {PAIRS}, sparse_block_size = 16
      > (q, k, v, past_key, past_value, rows, columns, total, lengths)
      y = MatMul(a, wo)
    }}"""
    graphs.save(path, text, weights)


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
