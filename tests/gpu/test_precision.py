"""Precision modes and plans on a CUDA device, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from tests.sharding import graphs

RANDOM = np.random.default_rng(2)
X, W = (RANDOM.standard_normal((256, 256)).astype(np.float32) for _ in range(2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    text = "g (float[n, 256] x) => (float[n, 256] y) { [product] y = MatMul(x, w) }"
    return graphs.save(tmp_path / "m.onnx", text, {"w": W}, opset=17)


def error(path: Path, mode: str = "", **options: Any) -> float:
    context = ranks.Context()
    context.target = ["gpu"]
    if mode:
        context.gpu.precision_mode = mode
    model = ranks.Model()
    model.build_from_file(str(path), ranks.ModelType.MINDIR, context, **options)
    got = model.predict([X])[0].get_data_to_numpy()
    assert got.dtype == np.float32
    want = X.astype(np.float64) @ W
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_enforced_float32_is_no_tf32(path: Path) -> None:
    assert error(path, "enforce_fp32") < 2e-6


def test_preferred_float16(path: Path) -> None:
    assert 5e-5 < error(path, "preferred_fp16") < 5e-3


def test_a_plan(path: Path) -> None:
    half = {"execution_plan": {"product": "data_type:float16"}}
    assert 5e-5 < error(path, "enforce_fp32", config_dict=half) < 5e-3
    whole = {"execution_plan": {"product": "data_type:float32"}}
    # TF32 is for the whole session: only the mode switches it off.
    assert error(path, "preferred_fp16", config_dict=whole) < 2e-3
