"""Transformers in ONNX Runtime's fused operators, as its model optimiser and its generation tools write them.

Attention is exported as one operator of `com.microsoft`; `onnxruntime.transformers.optimizer` then fuses the
normalisations and activations around it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.architectures.exporting import Feeds, export, normal, randomise, save_feeds, tokens
from tests.architectures.language import LAYERS, SPREAD, TEXT, causal, example_ids, masked

HEADS, GROUPS, WIDTH = 8, 4, 512
HELD = {0: "batch", 2: "past_length"}


def _operator(name: str, inputs: list[Any], like: Any, **attributes: Any) -> Any:
    import torch

    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, attributes, dtype=like.dtype, shape=like.shape, version=1
    )


def _optimise(path: Path, kind: str) -> None:
    """Rewrite the model at `path` by ONNX Runtime's optimiser for models of this kind."""
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(path), model_type=kind, num_heads=HEADS, hidden_size=WIDTH, opt_level=0, use_gpu=False
    )
    path.with_name(f"{path.name}.data").unlink()
    fused.save_model_to_file(str(path))


def bert_fused(path: Path) -> None:
    """BERT in MultiHeadAttention, SkipLayerNormalization and BiasGelu."""
    import torch
    from transformers import BertConfig, BertModel

    class Attention(torch.nn.Module):
        def __init__(self, plain: Any) -> None:
            super().__init__()
            self.query, self.key, self.value = plain.query, plain.key, plain.value

        def forward(self, hidden: Any, attention_mask: Any = None, *_: Any, **__: Any) -> Any:
            parts = [self.query(hidden), self.key(hidden), self.value(hidden)]
            inputs = [*parts, None, None, attention_mask]
            return _operator("MultiHeadAttention", inputs, parts[0], num_heads=HEADS), None

    config = BertConfig(
        vocab_size=3054,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=128,
        initializer_range=SPREAD,
    )
    config._attn_implementation = "eager"
    model = randomise(BertModel(config, add_pooling_layer=False), 12)
    for layer in model.encoder.layer:
        layer.attention.self = Attention(layer.attention.self)

    def forward(input_ids: Any, attention_mask: Any) -> Any:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = example_ids()
    names = ["input_ids", "attention_mask"]
    export(model, (ids, ids * 0 + 1), path, names, ["last_hidden_state"], (TEXT, TEXT), forward=forward)
    _optimise(path, "bert")
    save_feeds(path, *[masked(3054, *shape) for shape in ((2, 16), (1, 9))])


def gpt2_fused(path: Path) -> None:
    """GPT-2 in Attention with packed query-key-value weights, SkipLayerNormalization and FastGelu."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    class Attention(torch.nn.Module):
        def __init__(self, plain: Any) -> None:
            super().__init__()
            self.packed, self.project = plain.c_attn, plain.c_proj

        def forward(self, hidden: Any, *_: Any, **__: Any) -> Any:
            inputs = [hidden, self.packed.weight, self.packed.bias]
            mixed = _operator("Attention", inputs, hidden, num_heads=HEADS, unidirectional=1)
            return self.project(mixed), None

    config = GPT2Config(
        vocab_size=3001,
        n_positions=128,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=SPREAD,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config)
    for layer in model.transformer.h:
        layer.attn = Attention(layer.attn)
    causal(model, path, 3001, seed=13)
    _optimise(path, "gpt2")


def llama_fused(path: Path) -> None:
    """Llama in GroupQueryAttention with rotary embedding and caches inside, and simplified normalisation."""
    import torch
    from torch import nn

    size, hidden = WIDTH // HEADS, 1408

    class Normalise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            return nn.functional.rms_norm(x, (WIDTH,), self.weight, 1e-6)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = Normalise(), Normalise()
            self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
            self.key, self.value = (nn.Linear(WIDTH, GROUPS * size, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(WIDTH, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, WIDTH, bias=False)

        def forward(self, x: Any, past: Any, lengths: Any, tables: Any) -> Any:
            normed = self.norm1(x)
            query = self.query(normed)
            inputs = [query, self.key(normed), self.value(normed), *past, *lengths, *tables]
            grown = (x.shape[0], GROUPS, past[0].shape[2] + x.shape[1], size)
            mixed, key, value = torch.onnx.ops.symbolic_multi_out(
                "com.microsoft::GroupQueryAttention",
                inputs,
                {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1, "rotary_interleaved": 0},
                dtypes=(x.dtype,) * 3,
                shapes=(query.shape, grown, grown),
                version=1,
            )
            x = x + self.out(mixed)
            normed = self.norm2(x)
            return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed)), (key, value)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = nn.Embedding(2048, WIDTH), Normalise()
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, 2048, bias=False)
            angles = torch.arange(256)[:, None] / 10000 ** (torch.arange(size // 2)[None] / (size // 2))
            self.register_buffer("cosines", angles.cos())
            self.register_buffer("sines", angles.sin())

        def forward(self, input_ids: Any, attention_mask: Any, past: Any) -> Any:
            lengths = (attention_mask.sum(1) - 1).to(torch.int32)
            total = torch.full((), attention_mask.shape[1], dtype=torch.int32)
            x, present = self.embedding(input_ids), []
            for layer, held in zip(self.layers, past, strict=True):
                x, grown = layer(x, held, (lengths, total), (self.cosines, self.sines))
                present.append(grown)
            return self.head(self.norm(x)), present

    torch.manual_seed(14)
    model = Decoder()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=SPREAD)
    randomise(model, 14)
    caches = [(torch.randn(2, GROUPS, 5, size), torch.randn(2, GROUPS, 5, size)) for _ in range(LAYERS)]
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    export(
        model,
        (example_ids(2, 3), torch.ones(2, 8, dtype=torch.int64), caches),
        path,
        ["input_ids", "attention_mask", *(f"past_key_values.{kind}" for kind in kinds)],
        ["logits", *(f"present.{kind}" for kind in kinds)],
        (TEXT, {0: "batch", 1: "total_length"}, [(HELD, HELD)] * LAYERS),
    )
    _optimise(path, "gpt2")

    def feeds(batch: int, sequence: int, before: int) -> Feeds:
        given = {
            f"past_key_values.{kind}": normal(batch, GROUPS, before, size, seed=40 + number)
            for number, kind in enumerate(kinds)
        }
        mask = np.ones((batch, before + sequence), np.int64)
        return {"input_ids": tokens(2048, batch, sequence), "attention_mask": mask, **given}

    save_feeds(path, feeds(2, 1, 14), feeds(1, 9, 0))


BUILDERS = {"bert_fused": bert_fused, "gpt2_fused": gpt2_fused, "llama_fused": llama_fused}
