"""Layers of MindIR that have no conversion: each is refused in a sentence that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from tests.sharding.importers.mindir_runs import Declared, open_axes, open_lengths, run

DRAWN = np.random.default_rng(7)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return DRAWN.standard_normal(shape).astype(np.float32)


IMAGE, WEIGHT, ROWS = drawn(2, 4, 7, 6), drawn(3, 4, 3, 2), drawn(3, 4)
REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "the channels last, transposed": (
        "Conv2DBackpropInput", (IMAGE, drawn(4, 2, 3, 3), (2, 2, 9, 8)), {"format": "NHWC"},
        "a transposed convolution with the channels last has no conversion",
    ),
    "a layout": ("Conv2D", (IMAGE, WEIGHT), {"format": "NC1HWC0"}, "data_format"),
    "strides": ("Conv2D", (IMAGE, WEIGHT), {"stride": (1, 2, 3)}, "stride must have 2 numbers"),
    "pads": (
        "Conv2D", (IMAGE, WEIGHT), {"pad_mode": "pad", "pad": (1, 2, 3)}, "pad must have 4 numbers",
    ),
    "a weight of open lengths": (
        "Conv2D", (IMAGE, open_lengths(WEIGHT)), {}, "the weight's shape must be known",
    ),
    "groups": ("GroupNorm", (IMAGE, 3), {}, "4 channels cannot be cut into 3 groups"),
    "no group": ("GroupNorm", (IMAGE, 0), {}, "4 channels cannot be cut into 0 groups"),
    "lengths of a transform": ("FFT2", (ROWS, (2, 2), (0,)), {}, "2 lengths for 1 axes"),
    "direction": (
        "DynamicRNN", (drawn(2, 1, 3), drawn(5, 8), drawn(8)), {"direction": "BIDIRECTIONAL"},
        "direction 'BIDIRECTIONAL' has no conversion; only 'UNIDIRECTIONAL' has",
    ),
    "peepholes": (
        "DynamicRNN", (drawn(2, 1, 3), drawn(5, 8), drawn(8), np.array([2])), {},
        "sequence lengths and peepholes have no conversion",
    ),
    "a matrix of open lengths": (
        "DynamicRNN", (drawn(2, 1, 3), open_lengths(drawn(5, 8)), drawn(8)), {},
        "the weight's shape must be known",
    ),
    "lengths of sequences": (
        "DynamicGRUV2",
        (drawn(2, 1, 3), drawn(3, 6), drawn(2, 6), drawn(6), drawn(6), np.array([2])), {},
        "sequence lengths have no conversion",
    ),
    "an order of gates": (
        "DynamicGRUV2", (drawn(2, 1, 3), drawn(3, 6), drawn(2, 6)), {"gate_order": "hzr"},
        "gate_order 'hzr' is none of rzh, zrh",
    ),
    "two axes in time": (
        "DynamicGRUV2", (drawn(2, 3), drawn(3, 6), drawn(2, 6)), {},
        "the weight's shape must be known, and the input have three axes",
    ),
    "softmax of any number of axes": (
        "Softmax", (open_axes(ROWS), ()), {}, "it needs an operand whose number of axes is known",
    ),
    "a gradient": (
        "SparseSoftmaxCrossEntropyWithLogits", (ROWS, np.int32([0, 1, 2])), {"is_grad": True},
        "its gradient (is_grad) has no conversion",
    ),
    "neither a size nor scales": (
        "UpsampleNearest2D", (IMAGE, None, None), {}, "it has neither a size nor scales",
    ),
    "a regularized system": (
        "Lstsq", (drawn(4, 3), drawn(4, 1), True, 0.5), {}, "l2_regularizer must be 0",
    ),
    "a length that is open": (
        "LstsqV2", (Declared(drawn(4, 3), (-1, 3)), drawn(4, 1), "gels"), {},
        "the matrix's lengths must be known for gels",
    ),
    "symmetric matrices": ("Eigh", (drawn(2, 3, 3),), {}, "it is for a single matrix, found 3 axes"),
    "adaptive lengths": (
        "AdaptiveAvgPool2D", (IMAGE, (1, 2, 3)), {}, "output_size must have 2 numbers, found 3",
    ),
    "several layers": (
        "LSTM", (drawn(2, 1, 3), drawn(1, 1, 2), drawn(1, 1, 2), drawn(48)),
        {"num_layers": 2, "hidden_size": 2}, "several layers in one LSTM have no conversion",
    ),
    "a projection": (
        "LSTM", (drawn(2, 1, 3), drawn(1, 1, 2), drawn(1, 1, 2), drawn(48)),
        {"num_layers": 1, "hidden_size": 2, "proj_size": 1}, "a projection (proj_size) has no conversion",
    ),
    "weights of another length": (
        "LSTM", (drawn(2, 1, 3), drawn(1, 1, 2), drawn(1, 1, 2), drawn(47)),
        {"num_layers": 1, "hidden_size": 2, "input_size": 3}, "its weights have 47 numbers; expected 48",
    ),
    "one channel each of open lengths": (
        "DepthwiseConv2dNative", (IMAGE, open_lengths(drawn(2, 4, 3, 2))), {},
        "the weight's shape must be known",
    ),
    "one channel each, and the channels last": (
        "DepthwiseConv2dNative", (IMAGE, drawn(2, 4, 3, 2)), {"data_format": "NHWC"},
        "a convolution of each channel with the channels last has no conversion",
    ),
    "a crop that a run tells": (
        "CropAndResize", (IMAGE, drawn(1, 4), np.int32([0]), (np.array(2), 3)), {},
        "crop_size must be two integers that are known before a run",
    ),
    "windows of open channels": (
        "Im2Col", (open_lengths(IMAGE),), {"ksizes": (2, 2)}, "the number of channels must be known",
    ),
    "windows of two axes": (
        "FractionalMaxPool3DWithFixedKsize", (drawn(2, 4, 4), drawn(1, 2, 3), (2, 2, 2), (1, 1, 1)), {},
        "it needs an operand with four or five axes",
    ),
    "moved windows with the channels last": (
        "DeformableOffsets", (IMAGE, drawn(2, 27, 7, 6)), {"format": "NHWC", "ksize": (3, 3)},
        "the channels last have no conversion",
    ),
    "unpooled with the channels last": (
        "MaxUnpool2D", (IMAGE, np.zeros(IMAGE.shape, np.int64)),
        {"format": "NHWC", "types": (("float32", (2, 4, 14, 12)),)}, "the channels last have no conversion",
    ),
    "unpooled to open lengths": (
        "MaxUnpool2D", (IMAGE, np.zeros(IMAGE.shape, np.int64)), {"types": (("float32", (2, 4, -1, -1)),)},
        "the result's lengths must be known",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    kind, operands, settings, why = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        run(tmp_path, kind, *operands, **settings)
    assert f"{kind}: " in str(caught.value) and why in str(caught.value)
