"""Images and sound: convolutional networks, a diffusion UNet, and transformers over patches and frames."""

from pathlib import Path
from typing import Any

from tests.architectures.exporting import export, normal, randomise, save_feeds, settle

IMAGE = {0: "batch", 2: "height", 3: "width"}
LAYERS = 3


def vit(path: Path) -> None:
    """ViT: 16 by 16 patches of images of 96, a class token, 1000 classes."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        intermediate_size=2048,
        image_size=96,
        initializer_range=0.05,
    )
    config.num_labels = 1000
    config._attn_implementation = "eager"
    model = randomise(ViTForImageClassification(config), 1)
    _classifier(model, path, {0: "batch"}, (3, 96, 96), (1, 96, 96))


def _classifier(model: Any, path: Path, axes: dict[int, str], *shapes: tuple[int, int, int]) -> None:
    import torch

    def forward(pixel_values: Any) -> Any:
        return model(pixel_values=pixel_values).logits

    export(model, (torch.randn(2, 3, 96, 96),), path, ["pixel_values"], ["logits"], (axes,), forward=forward)
    save_feeds(path, *[{"pixel_values": normal(batch, 3, *size)} for batch, *size in shapes])


def whisper_encoder(path: Path) -> None:
    """Whisper's encoder: two convolutions over 80 mel bands, sinusoidal positions, fixed length."""
    import torch
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=64,
        d_model=512,
        encoder_layers=LAYERS,
        decoder_layers=1,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=64,
        max_source_positions=100,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        init_std=0.05,
    )
    config._attn_implementation = "sdpa"
    model = randomise(WhisperModel(config).encoder, 2)

    def forward(input_features: Any) -> Any:
        return model(input_features).last_hidden_state

    example = (torch.randn(2, 80, 200),)
    export(model, example, path, ["input_features"], ["last_hidden_state"], ({0: "batch"},), forward=forward)
    save_feeds(path, *[{"input_features": normal(batch, 80, 200)} for batch in (2, 1)])


def resnet50(path: Path) -> None:
    """ResNet-50: 16 bottlenecks in four stages, at half its width; any image size."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=32, hidden_sizes=[128, 256, 512, 1024])
    config.num_labels = 1000
    model = ResNetForImageClassification(config)
    for name, parameter in model.named_parameters():
        if name.endswith("layer.2.normalization.weight"):
            # As in trained networks, a block changes its input little: chains of random blocks are chaotic.
            torch.nn.init.constant_(parameter, 0.25)
    settle(model, 3, torch.randn(8, 3, 64, 64))
    _classifier(model, path, IMAGE, (3, 64, 64), (1, 96, 64))


def mobilenet_v2(path: Path) -> None:
    """MobileNetV2 at full width: inverted residuals with depthwise convolutions; any batch."""
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(0)
    config = MobileNetV2Config(image_size=96, tf_padding=False, classifier_dropout_prob=0.0)
    config.num_labels = 1000
    model = settle(MobileNetV2ForImageClassification(config), 4, torch.randn(8, 3, 96, 96))
    _classifier(model, path, {0: "batch"}, (3, 96, 96), (1, 96, 96))


def _unet() -> Any:
    """The network of denoising diffusion: residual blocks told the time, attention at the lowest sizes."""
    import torch
    from torch import nn

    functional = nn.functional

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, time: int) -> None:
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(16, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
            self.time = nn.Linear(time, outputs)
            self.norm2, self.conv2 = nn.GroupNorm(16, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
            self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

        def forward(self, x: Any, time: Any) -> Any:
            h = self.conv1(functional.silu(self.norm1(x)))
            h = h + self.time(functional.silu(time))[:, :, None, None]
            return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))

    class Attention(nn.Module):
        def __init__(self, channels: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm = nn.GroupNorm(16, channels)
            self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

        def forward(self, x: Any) -> Any:
            batch, channels, height, width = x.shape
            flat = self.norm(x).reshape(batch, channels, height * width).transpose(1, 2)
            query, key, value = (
                part(flat).reshape(batch, height * width, self.heads, -1).transpose(1, 2)
                for part in (self.query, self.key, self.value)
            )
            mixed = functional.scaled_dot_product_attention(query, key, value)
            mixed = self.out(mixed.transpose(1, 2).reshape(batch, height * width, channels))
            return x + mixed.transpose(1, 2).reshape(batch, channels, height, width)

    class UNet(nn.Module):
        def __init__(self, base: int = 64, time: int = 256, heads: int = 8) -> None:
            super().__init__()
            self.base = base
            self.time = nn.Sequential(nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time))
            self.first = nn.Conv2d(4, base, 3, padding=1)
            self.down1 = Residual(base, base, time)
            self.shrink1 = nn.Conv2d(base, base, 3, stride=2, padding=1)
            self.down2, self.down2_attention = Residual(base, 2 * base, time), Attention(2 * base, heads)
            self.shrink2 = nn.Conv2d(2 * base, 2 * base, 3, stride=2, padding=1)
            self.middle1, self.middle_attention = (
                Residual(2 * base, 4 * base, time),
                Attention(4 * base, heads),
            )
            self.middle2 = Residual(4 * base, 4 * base, time)
            self.grow2 = nn.Conv2d(4 * base, 2 * base, 3, padding=1)
            self.up2, self.up2_attention = Residual(4 * base, 2 * base, time), Attention(2 * base, heads)
            self.grow1 = nn.Conv2d(2 * base, base, 3, padding=1)
            self.up1 = Residual(2 * base, base, time)
            self.norm, self.last = nn.GroupNorm(16, base), nn.Conv2d(base, 4, 3, padding=1)

        def forward(self, sample: Any, timestep: Any) -> Any:
            half = self.base // 2
            rates = torch.exp(torch.arange(half, dtype=torch.float32) * (-9.21 / half))
            angles = timestep[:, None].to(torch.float32) * rates[None]
            time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
            high = self.down1(self.first(sample), time)
            low = self.down2_attention(self.down2(self.shrink1(high), time))
            x = self.middle_attention(self.middle1(self.shrink2(low), time))
            x = self.grow2(functional.interpolate(self.middle2(x, time), scale_factor=2.0, mode="nearest"))
            x = self.up2_attention(self.up2(torch.cat([x, low], 1), time))
            x = self.grow1(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = self.up1(torch.cat([x, high], 1), time)
            return self.last(functional.silu(self.norm(x)))

    torch.manual_seed(0)
    return randomise(UNet(), 5)


def _export_unet(path: Path, opset: int) -> None:
    import numpy as np
    import torch

    example = (torch.randn(2, 4, 32, 32), torch.tensor([10, 500]))
    names = ["sample", "timestep"]
    axes = ({0: "batch"}, {0: "batch"})
    export(_unet(), example, path, names, ["noise"], axes, opset=opset)
    times = np.asarray([7, 500, 999], np.int64)
    save_feeds(
        path, *[{"sample": normal(batch, 4, 32, 32), "timestep": times[:batch].copy()} for batch in (3, 1)]
    )


def unet(path: Path) -> None:
    """A diffusion UNet: group normalisation, attention, skips, nearest up-sampling, a time embedding."""
    _export_unet(path, 18)


BUILDERS = {
    "vit": vit,
    "whisper_encoder": whisper_encoder,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
}
