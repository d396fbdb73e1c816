"""What ONNX Runtime's quantisers make of an exported model: 8-bit and 4-bit weights.

A variant is built from the model that `BASES` names, and has its example inputs.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _copy_feeds(base: Path, path: Path) -> None:
    for feeds in base.parent.glob("feeds_*.npz"):
        shutil.copy(feeds, path.parent)


def _int8_dynamic(base: Path, path: Path) -> None:
    """`quantize_dynamic`: weights in int8, activations measured in every inference."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(base, path, weight_type=QuantType.QInt8)


def _int8_static(base: Path, path: Path) -> None:
    """`quantize_static`: QDQ, a scale for each channel of a weight, activations' scales from example inputs.

    Only products with weights are quantised, as is advised for transformers: the masks' huge values would
    leave no resolution to what is added to them.
    """
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Examples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
        def __init__(self) -> None:
            self.left = [dict(np.load(file)) for file in sorted(base.parent.glob("feeds_*.npz"))]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    quantize_static(
        base,
        path,
        Examples(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _four_bit(*, symmetric: bool) -> Callable[[Path, Path], None]:
    """`MatMulNBits` in blocks of 32 along the contracted axis; asymmetric blocks have zero points."""

    def build(base: Path, path: Path) -> None:
        import onnx
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(base), block_size=32, is_symmetric=symmetric, accuracy_level=0
        )
        quantizer.process()
        onnx.save(quantizer.model.model, path)

    return build


BASES = {
    "bert_int8_dynamic": "bert",
    "bert_int8_static": "bert",
    "bert_4bit": "bert",
    "llama_int8_dynamic": "llama",
    "llama_int8_static": "llama",
    "llama_4bit": "llama",
    "resnet50_int8": "resnet50",
}

_BUILDERS = {
    "bert_int8_dynamic": _int8_dynamic,
    "bert_int8_static": _int8_static,
    "bert_4bit": _four_bit(symmetric=True),
    "llama_int8_dynamic": _int8_dynamic,
    "llama_int8_static": _int8_static,
    "llama_4bit": _four_bit(symmetric=False),
    "resnet50_int8": _int8_static,
}


def build(name: str, base: Path, path: Path) -> None:
    """Build the variant `name` at `path` from the model at `base`."""
    _BUILDERS[name](base, path)
    _copy_feeds(base, path)
