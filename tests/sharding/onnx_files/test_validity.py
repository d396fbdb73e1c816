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


@pytest.mark.parametrize("opset", [18, 20, 21])
@pytest.mark.parametrize(
    ("attributes", "inputs", "why"),
    [
        ("epsilon = 0.1", "x, s, b", "Required attribute 'num_groups' is missing"),
        ('num_groups = "4"', "x, s, b", "num_groups'. Expected: 'INT', actual: 'STRING'"),
        (
            "num_groups = 4, other = 3",
            "x, s, b",
            "Unrecognized attribute: other for",
        ),
        ("num_groups = 4", "x", "has input size 1 not in range"),
        ("num_groups = 0", "x, s, b", "num_groups: expected 1 or more, found 0"),
        ("num_groups = 5", "x, s, b", "12 channels cannot be cut into 5 groups"),
        ("num_groups = 4", "x, x, b", r"its scale has the shape \['n', 12, 5\]; expected \["),
        ("num_groups = 4", "x, s, t", r"its bias has the shape \[6\]; expected \["),
    ],
)
def test_group_normalizations_that_cannot_be(
    tmp_path: Path, opset: int, attributes: str, inputs: str, why: str
) -> None:
    """The versions in which ONNX withdrew the operator are checked as the others."""
    length = 4 if opset < 21 else 12
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (float[n, 12, 5] x, float[{length}] s, '
        f"float[{length}] b, float[6] t) => (float[n, 12, 5] y) "
        f"{{ z = Relu(x) y = GroupNormalization<{attributes}>({inputs}) }}"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=why):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")


def test_a_withdrawn_group_normalization_has_no_newer_attributes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[n, 12, 5] x, float[4] s, float[4] b) => '
        "(float[n, 12, 5] y) { y = GroupNormalization<num_groups = 4, stash_type = 1>(x, s, b) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="Unrecognized attribute: stash_type"):
        sharding.slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")
