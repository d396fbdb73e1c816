"""Small networks in torch, exported to ONNX, and their int8 forms: real structure, random weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.releases import INSTALLED

Array = np.ndarray[Any, Any]


class Bottleneck(nn.Module):
    """Of ResNet-50: 1x1, 3x3, 1x1 with batch normalization, and the input added."""

    def __init__(self, wide_in: int, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(wide_in, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
            *(nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
            *(nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide)),
        )
        same = wide_in == wide and stride == 1
        self.side = nn.Identity() if same else nn.Conv2d(wide_in, wide, 1, stride)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.side(x))


def resnet() -> nn.Module:
    """Images of 3 channels to 24 classes through four bottlenecks."""
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(Bottleneck(24, 24, 96, 1), Bottleneck(96, 24, 96, 1)),
        *(Bottleneck(96, 48, 192, 2), Bottleneck(192, 48, 192, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 24)),
    )


class InvertedResidual(nn.Module):
    """Of MobileNetV2: expand, depthwise, project."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        hidden = 6 * width
        self.add = stride == 1 and width == out
        self.body = nn.Sequential(
            *(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            *(nn.BatchNorm2d(hidden), nn.ReLU6(), nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)),
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.add else self.body(x)


def mobilenet() -> nn.Module:
    """Images of 3 channels to 24 classes through four inverted residuals."""
    blocks = [InvertedResidual(24, 24, 1), InvertedResidual(24, 48, 2), InvertedResidual(48, 48, 1)]
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU6(), *blocks, InvertedResidual(48, 96, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 24)),
    )


class UNet(nn.Module):
    """Two levels down and up: group normalization, skip concatenations, transposed convolution, resizing."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def block(inner: int, out: int) -> nn.Sequential:
            convolutions = (nn.Conv2d(inner, out, 3, 1, 1), nn.GroupNorm(12, out), nn.SiLU())
            return nn.Sequential(
                *convolutions, nn.Conv2d(out, out, 3, 1, 1), nn.GroupNorm(12, out), nn.SiLU()
            )

        self.first, self.second, self.third = (
            block(3, width),
            block(width, 2 * width),
            block(2 * width, 4 * width),
        )
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.fourth, self.fifth = block(4 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, 4, 1)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(functional.max_pool2d(a, 2))
        c = self.up(self.third(functional.avg_pool2d(b, 2)))
        d = functional.interpolate(self.fourth(torch.cat([b, c], 1)), scale_factor=2, mode="nearest")
        return self.last(self.fifth(torch.cat([a, d], 1)))


class Tagger(nn.Module):
    """Words to tags through two bidirectional LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(120, 48)
        self.lstm = nn.LSTM(48, 48, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(96, 24)

    def forward(self, ids: Any) -> Any:
        return self.tags(self.lstm(self.words(ids))[0])


class Transformer(nn.Module):
    """Two post-norm layers as BERT has them, above an embedding."""

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.words = nn.Embedding(60, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.Linear(width, width) for _ in range(4)),
                    *(nn.Linear(width, 4 * width), nn.Linear(4 * width, width)),
                    *(nn.LayerNorm(width), nn.LayerNorm(width)),
                ]
            )
            for _ in range(2)
        )

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        batch, length = ids.shape
        for query, key, value, out, up, down, first, second in self.layers:
            q, k, v = (
                projection(x).view(batch, length, self.heads, self.width // self.heads).transpose(1, 2)
                for projection in (query, key, value)
            )
            weights = torch.softmax(q @ k.transpose(2, 3) / (self.width // self.heads) ** 0.5, -1)
            x = first(x + out((weights @ v).transpose(1, 2).reshape(batch, length, self.width)))
            x = second(x + down(functional.gelu(up(x))))
        return x


BUILDERS = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "unet": UNet,
    "tagger": Tagger,
    "transformer": Transformer,
}


def feeds(name: str, batch: int, seed: int = 0) -> dict[str, Array]:
    """Inputs for a network."""
    random = np.random.default_rng([seed, batch])
    if name in ("tagger", "transformer"):
        return {"x": random.integers(0, 60, (batch, 8))}
    return {"x": random.standard_normal((batch, 3, 32, 32)).astype(np.float32)}


def export(name: str, path: Path, *, dynamo: bool = False, opset: int = 17) -> None:
    """Exports with an open batch axis, or with torch's newer exporter for a batch of 2."""
    torch.manual_seed(1)
    network = BUILDERS[name]().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics as of a trained network
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    example = (torch.from_numpy(feeds(name, 2)["x"]),)
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "opset_version": opset}
    if dynamo:
        torch.onnx.export(network, example, path, dynamo=True, verbose=False, external_data=False, **names)
    else:
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(network, example, path, dynamo=False, dynamic_axes=axes, **names)


def quantize(name: str, form: str, source: Path, path: Path) -> None:
    """int8 by ONNX Runtime's tools: ``dynamic``, or static by channel as ``qdq`` or ``qoperator``."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    if form == "dynamic":
        # ConvInteger takes signed weights from ONNX Runtime 1.24 on.
        signed = INSTALLED >= (1, 24) or name != "resnet"
        kind = QuantType.QInt8 if signed else QuantType.QUInt8
        quantize_dynamic(source, path, per_channel=name == "transformer", weight_type=kind)
        return

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[dict[str, Array]] = iter(feeds(name, 2, seed) for seed in range(3))

        def get_next(self) -> dict[str, Array] | None:
            return next(self.batches, None)

    quantize_static(
        source,
        path,
        Reader(),
        quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
        per_channel=True,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QUInt8,
    )
