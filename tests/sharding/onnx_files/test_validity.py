"""Nodes that their operators do not allow."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import sharding
from sharding.errors import ModelError


@pytest.mark.parametrize("axes", [-1, -2, -(1 << 62)])
def test_batch_axes_below_zero_are_refused(tmp_path: Path, axes: int) -> None:
    """The onnx library and ONNX Runtime would end the process."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 3, 4] x, int64[2, 3, 1] i) => (float[n] y) '
        f"{{ y = GatherND<batch_dims = {axes}>(x, i) }}"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=f"GatherND.*batch_dims: expected 0 or more, found {axes}"):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")
