"""Zeros before a MaxPool: importers write them so that ONNX Runtime's Pad_Fusion leaves them zeros."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sharding.importers.padded_pooling import keep_zeros
from tests.sharding import graphs

NEGATIVE = -1 - np.abs(graphs.array(1, 4, 9, 8))
PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])
POOLS = {
    "plain": "MaxPool<kernel_shape = [3, 3]>(p)",
    "pads that are zero": "MaxPool<kernel_shape = [3, 3], pads = [0, 0, 0, 0], strides = [2, 2]>(p)",
    "its own pads": "MaxPool<kernel_shape = [3, 3], pads = [1, 0, 1, 0]>(p)",
    "rounded up": "MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(p)",
    "dilated": "MaxPool<kernel_shape = [2, 2], dilations = [2, 2], storage_order = 1>(p)",
    "not set": 'MaxPool<kernel_shape = [3, 3], auto_pad = "NOTSET">(p)',
}


def _run(model: onnx.ModelProto, *, optimized: bool) -> np.ndarray[Any, Any]:
    (found,) = graphs.session(model, optimized=optimized).run(None, {"x": NEGATIVE})
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("between", ["", "Identity(q)", "Mul(q, one)", "Cast<to = 1>(q)"])
@pytest.mark.parametrize("pool", POOLS)
def test_the_zeros_stay(tmp_path: Path, pool: str, between: str) -> None:
    first = f"q = Pad(x, pads) p = {between}" if between else "p = Pad(x, pads)"
    text = f"g (float[n, 4, h, w] x) => (float[n, 4, a, b] y) {{ {first} m = {POOLS[pool]} y = Tanh(m) }}"
    weights = {"pads": PADS, "one": np.array(1, np.float32)}
    used = {name: value for name, value in weights.items() if f", {name})" in text}
    model = onnx.load(graphs.save(tmp_path / "model.onnx", text, used))
    right = _run(model, optimized=False)
    assert (right == 0).any()
    for _ in range(2):  # what is guarded stays as it is
        keep_zeros(model)
        onnx.checker.check_model(model)
        for optimized in (True, False):
            np.testing.assert_array_equal(_run(model, optimized=optimized), right)


def test_others_stay_as_they_are(tmp_path: Path) -> None:
    """A MaxPool without a Pad before it, and one that says where its padding lies."""
    text = """g (float[n, 4, h, w] x) => (float[n, 4, a, b] y, float[n, 4, c, d] z) {
      y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)
      p = Pad(x, pads)
      z = MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_UPPER">(p)
    }"""
    model = onnx.load(graphs.save(tmp_path / "model.onnx", text, {"pads": PADS}))
    before = model.SerializeToString(deterministic=True)
    keep_zeros(model)
    assert model.SerializeToString(deterministic=True) == before
