"""What primitives without a CPU kernel in MindSpore compute, in torch: case of `scripts.mindir_op_cases` to a
function of its inputs. MindSpore documents these as the torch functions of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name of it

Tensor = torch.Tensor
REFERENCES: dict[str, Callable[..., Any]] = {
    "Exp2": torch.exp2,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Frac": torch.frac,
    "LogSigmoid": F.logsigmoid,
    "MishExt": F.mish,
    "SeLUExt": F.selu,
    "AsinExt": torch.asin,
    "AcosExt": torch.acos,
    "AtanExt": torch.atan,
    "AsinhExt": torch.asinh,
    "AcoshExt": torch.acosh,
    "IsNegInf": torch.isneginf,
    "Copy": torch.clone,
    "Clone": torch.clone,
    "Detach": torch.clone,
    "TExt": torch.t,
    "MedianExt": torch.median,
    "TraceExt": torch.trace,
    "BitwiseNot": torch.bitwise_not,
    "TypeAs": lambda x, y: x.to(y.dtype),
    "Fills": lambda x: torch.full_like(x, 2.5),
    "FullLike": lambda x: torch.full_like(x, 2.5),
    "AccumulateNV2": torch.add,
    "LogAddExp": torch.logaddexp,
    "LogAddExp2": torch.logaddexp2,
    "FloorDivScalar": lambda x: torch.div(x, 2, rounding_mode="floor"),
    "FmodTensor": torch.fmod,
    "FmodScalar": lambda x: torch.fmod(x, 3),
    "BitwiseAndTensor": torch.bitwise_and,
    "BitwiseAndScalar": lambda x: x & 3,
    "BitwiseOrTensor": torch.bitwise_or,
    "BitwiseOrScalar": lambda x: x | 3,
    "BitwiseXorTensor": torch.bitwise_xor,
    "BitwiseXorScalar": lambda x: x ^ 3,
    "EqualExt": lambda x: torch.tensor([True]),
    "Fmin": torch.fmin,
    "Fmax": torch.fmax,
    "SelectV2": torch.where,
    "EluExt": lambda x: F.elu(x, 0.5),
    "LeakyReLUExt": lambda x: F.leaky_relu(x, 0.1),
    "Hardtanh": lambda x: F.hardtanh(x, -0.5, 1.0),
    "Threshold": lambda x: F.threshold(x, 0.3, 9.0),
    "GeluExt": F.gelu,
    "GeluExt_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "Swiglu": lambda x: F.silu(x[..., :2]) * x[..., 2:],
    "Nansum": lambda x: torch.nansum(x, 0),
    "ArgMinExt": lambda x: torch.argmin(x, 0),
    "Var": lambda x: torch.var(x, 1),
    "Var_all": lambda x: torch.var(x, None, correction=0, keepdim=True),
    "Std": lambda x: torch.std(x, 1),
    "Std_all": lambda x: torch.std(x, None, correction=0, keepdim=True),
    "VarMean": lambda x: torch.var_mean(x, 1),
    "VarMean_all": lambda x: torch.var_mean(x, None, correction=0, keepdim=True),
    "StdMean": lambda x: torch.std_mean(x, 1),
    "StdMean_all": lambda x: torch.std_mean(x, None, correction=0, keepdim=True),
    "LogSumExp": lambda x: torch.logsumexp(x, 1, keepdim=True),
    "Norm_1.0": lambda x: torch.norm(x, 1.0, 1),
    "Norm_2.0": lambda x: torch.norm(x, 2.0, 1),
    "Norm_3.0": lambda x: torch.norm(x, 3.0, 1),
    "Norm_flo": lambda x: torch.norm(x, float("inf"), 1),
    "LinalgVectorNorm": lambda x: torch.linalg.vector_norm(x, 3, 1, keepdim=True),
    "LpNormV2": lambda x: torch.norm(x, 2, 1, keepdim=True),
    "CountNonZero": lambda x: torch.count_nonzero(x, 1),
    "CumsumExt": lambda x: torch.cumsum(x, 1),
    "Mm": torch.mm,
    "Mv": torch.mv,
    "Dot": torch.dot,
    "Outer": torch.outer,
    "Addmm": lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2.0),
    "Addbmm": torch.addbmm,
    "Einsum": lambda x, y: torch.einsum("bij,bjk->bik", x, y),
    "View": lambda x: x.view(4, 6),
    "StackExt": lambda x, y: torch.stack([x, y], 1),
    "SplitTensor": lambda x: torch.split(x, 3, 1),
    "SplitV": lambda x: torch.split(x, [1, 4, 2], 1),
    "Chunk": lambda x: torch.chunk(x, 3, 1),
    "Tile_fewer": lambda x: x.repeat(2, 1, 3),
    "RepeatInterleaveInt": lambda x: torch.repeat_interleave(x, 2, 1),
    "RepeatInterleaveTensor": lambda x: torch.repeat_interleave(x, torch.tensor([1, 0, 2]), 1),
    "ExpandAs": lambda x, y: x.expand_as(y),
    "Roll": lambda x: torch.roll(x, (1, -2), (0, 1)),
    "roll": lambda x: torch.roll(x, 2, 1),
    "ReflectionPad3D": lambda x: F.pad(x, (1, 2) * 3, "reflect"),
    "NewFull": lambda x: x.new_full((2, 3), 4),
    "LinSpaceExt": lambda x: torch.linspace(0, 1, 5) + x,
    "TrilExt": lambda x: torch.tril(x, 1),
    "DiagExt": lambda x: torch.diag(x, -1),
    "DiagExt_matrix": lambda x: torch.diag(x, 1),
    "SparseGatherV2": lambda x, i: x[i.long()],
    "IndexSelect": lambda x, i: torch.index_select(x, 1, i),
    "Take": torch.take,
    "SliceExt": lambda x: x[:, 1:3],
    "Narrow": lambda x: x[:, 1:3],
    "TopkExt": lambda x: torch.topk(x, 2, 0, False, True),
    "SortExt": lambda x: torch.sort(x, -1, True),
    "ArgSort": lambda x: torch.argsort(x, 1),
    "ScatterAddExt": lambda x, i, y: torch.scatter_add(x, 1, i, y),
    "Scatter": lambda x, i, y: torch.scatter(x, 1, i, y),
    "ScatterValue": lambda x, i: torch.scatter(x, 1, i, 7.0),
    "IndexAddExt": lambda x, i, y: torch.index_add(x, 1, i, y, alpha=2),
    "IndexFillScalar": lambda x, i: torch.index_fill(x, 1, i, 5.0),
    "ExtractImagePatches": lambda x: (
        F.unfold(x, 2, stride=2).view(2, 3, 4, 3, 3).transpose(1, 2).reshape(2, 12, 3, 3)
    ),
    "MaxPoolWithMask": lambda x: F.max_pool2d(x, 3, 2, 1),
    "MaxPoolWithIndices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "AvgPool1D": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "AvgPool2D": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "AdaptiveAvgPool1D": lambda x: F.adaptive_avg_pool1d(x, 3),
    "AdaptiveAvgPool2DExt": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "AdaptiveMaxPool1D": lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True),
    "BatchNormExt": lambda x, w, c, m, v: F.batch_norm(x, m, v, w, c, False, 0.1, 1e-3),
    "InstanceNorm2d_cell": F.instance_norm,
    "Conv2DExt": lambda x, w, c: F.conv2d(x, w, c, 2, 1),
    "Conv2DPadding": lambda x, w, c: F.conv2d(x, w, c, padding="same"),
    "Conv1DExt": lambda x, w, c: F.conv1d(x, w, c, 2, 1),
    "Conv1DPadding": lambda x, w, c: F.conv1d(x, w, c, padding="same"),
    "Conv3DExt": lambda x, w, c: F.conv3d(x, w, c, 2, 1),
    "Conv3DPadding": lambda x, w, c: F.conv3d(x, w, c, padding="same"),
    "Convolution": lambda x, w, c: F.conv2d(x, w, c, (2, 2), (1, 0)),
    "ConvolutionStr": lambda x, w: F.conv2d(x, w, padding="same"),
    "ConvTranspose2D": lambda x, w, c: F.conv_transpose2d(x, w, c, 2, 1, 1),
    "UpsampleLinear1D": lambda x: F.interpolate(x, 7, mode="linear"),
    "MSELossExt_none": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "MSELossExt_mean": F.mse_loss,
    "MSELossExt_sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "L1LossExt_none": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "L1LossExt_mean": F.l1_loss,
    "L1LossExt_sum": lambda x, y: F.l1_loss(x, y, reduction="sum"),
    "EuclideanNorm": lambda x: torch.norm(x, 2, 1),
    "NonMaxSuppressionV3": lambda *_: torch.tensor([0, 2], dtype=torch.int32),
    "IndexFill": lambda x, i, v: torch.index_fill(x, 1, i.long(), v),
}


def _blocks(x: Tensor) -> Tensor:
    """Blocks of 2 by 2 places as batch entries, two columns padded."""
    wide = F.pad(x, (0, 2))
    return torch.cat([wide[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])


def _unblocked(x: Tensor) -> Tensor:
    """The inverse, the last column cropped."""
    n, c, h, w = x.shape
    parts = x.view(2, 2, n // 4, c, h, w)
    return parts.permute(2, 3, 4, 0, 5, 1).reshape(n // 4, c, 2 * h, 2 * w)[..., :-1]


def _layer_norm(x: Tensor, axes: tuple[int, ...], w: Tensor | None, c: Tensor | None, eps: float) -> Any:
    mean = x.mean(axes, keepdim=True)
    scale = 1 / torch.sqrt(x.var(axes, correction=0, keepdim=True) + eps)
    found = (x - mean) * scale
    found = found * w if w is not None else found
    return found + c if c is not None else found, mean, scale


def _rms(x: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    scale = 1 / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * scale * w, scale


def _resized(mode: str, height: int, align: bool) -> Callable[[Tensor], Tensor]:
    width = {7: 11, 2: 3}[height]
    return lambda x: F.interpolate(x, (height, width), mode=mode, align_corners=align)


REFERENCES.update(
    {
        "SpaceToBatch": _blocks,
        "BatchToSpace": _unblocked,
        "DivNoNan_int": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "LayerNormV3": lambda x, w, c: _layer_norm(x, (-1,), w, c, 1e-5),
        "LayerNormExt": lambda x, w, c: _layer_norm(x, (-2, -1), w, c, 1e-4),
        "LayerNormExt_bare": lambda x, w: _layer_norm(x, (-1,), w, None, 1e-4)[0],
        "RmsNorm": lambda x, w: _rms(x, w, 1e-5),
        "AddRmsNorm": lambda x, y, w: (*_rms(x + y, w, 1e-5), x + y),
        "AddLayerNormV2": lambda x, y, w, c: (*_layer_norm(x + y, (-1,), w, c, 1e-5), x + y),
    }
)
for _height in (7, 2):
    for _align in (False, True):
        REFERENCES[f"UpsampleBilinear2D_{_height}_{_align}"] = _resized("bilinear", _height, _align)
        REFERENCES[f"UpsampleBicubic2D_{_height}_{_align}"] = _resized("bicubic", _height, _align)
