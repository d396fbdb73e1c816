"""Encoders that differ from BERT: shared layers, relative positions, windows, images with text, sound."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.architectures.exporting import Feeds, export, normal, randomise, save_feeds, tokens
from tests.architectures.language import LAYERS, SPREAD, TEXT, example_ids, masked

SHARED_LAYERS = 4
SWIN_DEPTHS = (2, 2)
WORDS = 2048
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
    "initializer_range": SPREAD,
}


def _text(model: Any, path: Path, seed: int) -> None:
    randomise(model, seed)

    def forward(input_ids: Any, attention_mask: Any) -> Any:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = example_ids()
    names = ["input_ids", "attention_mask"]
    export(model, (ids, ids * 0 + 1), path, names, ["last_hidden_state"], (TEXT, TEXT), forward=forward)
    save_feeds(path, *[masked(WORDS, *shape) for shape in ((2, 16), (1, 9))])


def albert(path: Path) -> None:
    """ALBERT: one layer's weights for all layers, and a narrower embedding."""
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(**COMMON, num_hidden_layers=SHARED_LAYERS, embedding_size=128)
    config._attn_implementation = "eager"
    _text(AlbertModel(config, add_pooling_layer=False), path, 31)


def deberta(path: Path) -> None:
    """DeBERTa-v2: attention between contents and relative positions, batch and heads merged."""
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        **COMMON,
        num_hidden_layers=LAYERS,
        relative_attention=True,
        position_buckets=32,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
    )
    _text(DebertaV2Model(config), path, 32)


def transformer_encoder(path: Path) -> None:
    """`torch.nn.TransformerEncoder`, whose attention has batch and heads merged and its weights packed."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = randomise(nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), 33)
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole layer, which ONNX does not have
    try:
        example = (torch.randn(2, 8, 256),)
        export(model, example, path, ["x"], ["y"], (TEXT,))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    save_feeds(path, *[{"x": normal(*shape, 256)} for shape in ((2, 16), (1, 9))])


def swin(path: Path) -> None:
    """Swin: attention in windows, which every second block shifts, and merged patches between stages."""
    import torch
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=64,
        depths=list(SWIN_DEPTHS),
        num_heads=[8, 16],
        window_size=4,
        initializer_range=SPREAD,
    )
    model = randomise(SwinModel(config, add_pooling_layer=False), 34)

    def forward(pixel_values: Any) -> Any:
        return model(pixel_values=pixel_values).last_hidden_state

    example, names = (torch.randn(2, 3, 64, 64),), ["pixel_values"]
    export(model, example, path, names, ["last_hidden_state"], ({0: "batch"},), forward=forward)
    save_feeds(path, *[{"pixel_values": normal(batch, 3, 64, 64)} for batch in (3, 1)])


def clip(path: Path) -> None:
    """CLIP: a tower for text and one for images, and how well they fit."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    shared = {"hidden_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": 8}
    config = CLIPConfig(
        text_config={
            **shared,
            "vocab_size": WORDS,
            "intermediate_size": 1024,
            "max_position_embeddings": 32,
            "eos_token_id": WORDS - 1,
        },
        vision_config={**shared, "intermediate_size": 1024, "image_size": 64, "patch_size": 16},
        projection_dim=128,
    )
    config._attn_implementation = "sdpa"
    model = randomise(CLIPModel(config), 35)

    def forward(input_ids: Any, pixel_values: Any) -> Any:
        found = model(input_ids=input_ids, pixel_values=pixel_values)
        return found.logits_per_image, found.text_embeds, found.image_embeds

    names = ["input_ids", "pixel_values"]
    outputs = ["logits_per_image", "text_embeds", "image_embeds"]
    example = (example_ids(), torch.randn(2, 3, 64, 64))
    export(model, example, path, names, outputs, (TEXT, {0: "images"}), forward=forward)

    def feeds(texts: int, sequence: int, images: int) -> Feeds:
        ids = tokens(WORDS - 1, texts, sequence)
        ids[np.arange(texts), np.arange(texts) % sequence] = WORDS - 1
        return {"input_ids": ids, "pixel_values": normal(images, 3, 64, 64)}

    save_feeds(path, feeds(2, 16, 3), feeds(3, 9, 1))


def wav2vec2(path: Path) -> None:
    """wav2vec 2.0: convolutions over sound, positions by a grouped one of normalised weight, an encoder."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        intermediate_size=1024,
        conv_dim=[64] * 3,
        conv_stride=[5, 2, 2],
        conv_kernel=[10, 3, 3],
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=8,
        initializer_range=SPREAD,
    )
    config._attn_implementation = "eager"
    model = randomise(Wav2Vec2Model(config), 36)

    def forward(input_values: Any) -> Any:
        return model(input_values).last_hidden_state

    axes = {0: "batch", 1: "samples"}
    example, names = (torch.randn(2, 1600),), ["input_values"]
    export(model, example, path, names, ["last_hidden_state"], (axes,), forward=forward)
    save_feeds(path, *[{"input_values": normal(*shape)} for shape in ((2, 1600), (1, 1111))])


BUILDERS = {
    "albert": albert,
    "deberta": deberta,
    "transformer_encoder": transformer_encoder,
    "swin": swin,
    "clip": clip,
    "wav2vec2": wav2vec2,
}
