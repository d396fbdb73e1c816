"""Zeros before a MaxPool, written so that no runtime takes them for the MaxPool's own padding.

ONNX Runtime's Pad_Fusion moves zeros of a Pad into the ``pads`` of the MaxPool behind it. Those stand for
minus infinity: where all else in a window is negative, the largest is then another number than 0. It lets a
MaxPool alone whose ``auto_pad`` is VALID, or that gives the places of the largest, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.onnx_files.walk import graphs_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

AS_IT_IS = frozenset(
    {"Identity", "Dropout", "Cast", "Add", "Sub", "Mul", "Div", "Expand", "Slice", "Reshape"}
)
"""What ONNX Runtime takes away between the two where it does nothing; then it fuses the Pad."""
FIRST_INDICES = 8
"""The first opset whose MaxPool gives places."""


def keep_zeros(model: onnx.ModelProto) -> None:
    """Rewrites each MaxPool of padded values in place; all it gives stays the same."""
    opset = next((item.version for item in model.opset_import if not item.domain), 1)
    for graph in graphs_in(model.graph):
        makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            if node.op_type == "MaxPool" and not node.domain and _is_padded(node.input[0], makers):
                _guard(node, opset)


def _is_padded(name: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    maker = makers.get(name)
    while maker is not None and maker.op_type in AS_IT_IS:
        maker = makers.get(maker.input[0])
    return maker is not None and maker.op_type == "Pad"


def _guard(node: onnx.NodeProto, opset: int) -> None:
    import onnx

    given = {item.name: item for item in node.attribute}
    padded = "pads" in given and any(given["pads"].ints)
    stretched = "ceil_mode" in given and given["ceil_mode"].i
    if len(node.output) > 1 and node.output[1]:
        return
    if "auto_pad" in given and given["auto_pad"].s not in {b"", b"NOTSET"}:
        return
    if not padded and not stretched:
        kept = [item for item in node.attribute if item.name not in {"pads", "auto_pad"}]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("auto_pad", "VALID")])
    elif opset >= FIRST_INDICES:
        del node.output[1:]
        node.output.append(f"{node.output[0]}/places")
