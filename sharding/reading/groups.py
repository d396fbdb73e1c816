"""Whether group normalizations get whole groups of channels: ONNX Runtime looks only when it runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import ModelError
from sharding.graph.values import shape_of
from sharding.onnx_files.validity import WITHDRAWN

if TYPE_CHECKING:
    import onnx_ir as ir


def check_groups(model: ir.Model, path: Path) -> None:
    """Checks that group normalizations get whole groups of channels, and a scale and a bias for each group
    (in withdrawn versions) or each channel, so far as shapes are known."""
    withdrawn = model.opset_imports.get("", 1) in WITHDRAWN["GroupNormalization"]
    for node in model.graph:
        if (node.domain, node.op_type) != ("", "GroupNormalization"):
            continue
        what = f"{path} is not valid: node {node.name or node.op_type!r}"
        groups = node.attributes["num_groups"].as_int()
        data, *factors = map(shape_of, node.inputs)
        channels = data[1] if data is not None and len(data) > 1 else None
        if isinstance(channels, int) and channels % groups:
            raise ModelError(f"{what}: {channels} channels cannot be cut into {groups} groups.")
        wanted, kind = (groups, "group") if withdrawn else (channels, "channel")
        for name, shape in zip(("scale", "bias"), factors, strict=False):
            if shape is None or not isinstance(wanted, int):
                continue
            if len(shape) != 1 or (isinstance(shape[0], int) and shape[0] != wanted):
                raise ModelError(
                    f"{what}: its {name} has the shape {list(shape)}; expected [{wanted}], "
                    f"one number for each {kind}."
                )
