"""Models of text: configurations of `transformers` with their structure kept, fewer layers and words."""

from pathlib import Path
from typing import Any

from tests.architectures.exporting import (
    OPSET,
    Feeds,
    export,
    normal,
    padded,
    randomise,
    save_feeds,
    tokens,
)

LAYERS = 3
TEXT = {0: "batch", 1: "sequence"}
# 0.05 instead of the usual 0.02: attention is then far from uniform, so that a wrong head or mask shows.
SPREAD = 0.05


def example_ids(batch: int = 2, sequence: int = 8) -> Any:
    """Token numbers to export with, int64 [batch, sequence]."""
    import torch

    return torch.arange(batch * sequence).reshape(batch, sequence)


def bert(path: Path) -> None:
    """BERT: heads of 64, feed-forward 4 wide, a vocabulary that 2 divides but 4 does not (as 30522)."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=3054,
        hidden_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        intermediate_size=2048,
        max_position_embeddings=128,
        initializer_range=SPREAD,
    )
    config._attn_implementation = "eager"
    model = randomise(BertModel(config, add_pooling_layer=False), 1)

    def forward(input_ids: Any, attention_mask: Any) -> Any:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = example_ids()
    names = ["input_ids", "attention_mask"]
    export(model, (ids, ids * 0 + 1), path, names, ["last_hidden_state"], (TEXT, TEXT), forward=forward)
    save_feeds(path, *[masked(3054, *shape) for shape in ((2, 16), (1, 9))])


def masked(vocabulary: int, batch: int, sequence: int) -> Feeds:
    """Random token numbers and a mask that hides the ends of some rows."""
    return {"input_ids": tokens(vocabulary, batch, sequence), "attention_mask": padded(batch, sequence)}


def gpt2(path: Path) -> None:
    """GPT-2 with its head tied to the embedding of an odd number of words (as 50257), sdpa attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=3001,
        n_positions=128,
        n_embd=512,
        n_layer=LAYERS,
        n_head=8,
        initializer_range=SPREAD,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    causal(GPT2LMHeadModel(config), path, 3001, seed=2)


def causal(model: Any, path: Path, vocabulary: int, seed: int, *, opset: int = OPSET) -> None:
    """Export a decoder without cache: input_ids to logits; random biases are drawn with `seed`."""
    import torch

    randomise(model, seed)

    def forward(input_ids: Any) -> Any:
        if opset < 23:
            return model(input_ids=input_ids, use_cache=False).logits
        # ONNX's RotaryEmbedding wants tables for every row of the batch; by default there is one for all.
        rows, length = input_ids.shape
        positions = torch.arange(length)[None].expand(rows, length)
        return model(input_ids=input_ids, position_ids=positions, use_cache=False).logits

    export(model, (example_ids(),), path, ["input_ids"], ["logits"], (TEXT,), forward=forward, opset=opset)
    save_feeds(path, *[{"input_ids": tokens(vocabulary, *shape)} for shape in ((2, 16), (1, 9))])


def _llama(*, groups: int, attention: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=groups,
        max_position_embeddings=256,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
    )
    config._attn_implementation = attention
    return LlamaForCausalLM(config)


def llama(path: Path) -> None:
    """Llama with 2 key and value heads for 8 query heads: fewer than 4 or 8 ranks."""
    causal(_llama(groups=2, attention="sdpa"), path, 2048, seed=3)


def llama_opset23(path: Path) -> None:
    """Llama in the operators that opset 23 brought: Attention, RotaryEmbedding, RMSNormalization."""
    causal(_llama(groups=4, attention="sdpa"), path, 2048, seed=15, opset=23)


def llama_cache(path: Path) -> None:
    """Llama as it generates: caches are inputs and outputs; 4 key and value heads for 8 query heads."""
    import torch
    from transformers import DynamicCache

    model = randomise(_llama(groups=4, attention="eager"), 4)

    def forward(input_ids: Any, attention_mask: Any, past: list[tuple[Any, Any]]) -> Any:
        cache = DynamicCache()
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        logits = model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache).logits
        layers: Any = cache.layers
        return logits, [(layer.keys, layer.values) for layer in layers]

    past = [(torch.randn(2, 4, 5, 64), torch.randn(2, 4, 5, 64)) for _ in range(LAYERS)]
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    ids = example_ids(2, 3)
    held = {0: "batch", 2: "past_length"}
    export(
        model,
        (ids, torch.ones(2, 8, dtype=torch.int64), past),
        path,
        ["input_ids", "attention_mask", *(f"past_key_values.{kind}" for kind in kinds)],
        ["logits", *(f"present.{kind}" for kind in kinds)],
        (TEXT, {0: "batch", 1: "total_length"}, [(held, held)] * LAYERS),
        forward=forward,
    )

    def feeds(batch: int, sequence: int, before: int) -> Feeds:
        mask = padded(batch, before + sequence)[:, ::-1].copy()  # generation pads on the left
        caches = {
            f"past_key_values.{kind}": normal(batch, 4, before, 64, seed=20 + number)
            for number, kind in enumerate(kinds)
        }
        return {"input_ids": tokens(2048, batch, sequence), "attention_mask": mask, **caches}

    save_feeds(path, feeds(2, 2, 14), feeds(1, 7, 2))


def qwen2(path: Path) -> None:
    """Qwen2: like Llama, with biases on query, key and value, and the head tied to the embedding."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    causal(Qwen2ForCausalLM(config), path, 2048, seed=5)


def _t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=2056,
        d_model=512,
        d_kv=64,
        d_ff=2048,
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=8,
        feed_forward_proj="gated-gelu",
    )
    config.tie_word_embeddings = False
    config._attn_implementation = "eager"
    return randomise(T5ForConditionalGeneration(config), 6)


def t5_encoder(path: Path) -> None:
    """The encoder of T5 1.1: relative position biases, RMS normalisation, a gated feed-forward."""
    model = _t5().encoder

    def forward(input_ids: Any, attention_mask: Any) -> Any:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = example_ids()
    names = ["input_ids", "attention_mask"]
    export(model, (ids, ids * 0 + 1), path, names, ["last_hidden_state"], (TEXT, TEXT), forward=forward)
    save_feeds(path, *[masked(2056, *shape) for shape in ((2, 16), (1, 9))])


def t5_decoder(path: Path) -> None:
    """The decoder of T5 1.1 with its head: attention to itself, attention to the encoder, feed-forward."""
    import torch

    model = _t5()

    def forward(input_ids: Any, states: Any, mask: Any) -> Any:
        hidden = model.decoder(
            input_ids=input_ids, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        return model.lm_head(hidden)

    source = {0: "batch", 1: "source_length"}
    example = (example_ids(), torch.randn(2, 11, 512), torch.ones(2, 11, dtype=torch.int64))
    names = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
    export(model, example, path, names, ["logits"], (TEXT, source, source), forward=forward)

    def feeds(batch: int, sequence: int, length: int) -> Feeds:
        given = (tokens(2056, batch, sequence), normal(batch, length, 512), padded(batch, length))
        return dict(zip(names, given, strict=True))

    save_feeds(path, feeds(2, 9, 16), feeds(1, 6, 5))


def mixtral(path: Path) -> None:
    """Mixtral: 8 experts of which each token takes 2, gathered by token (a batched matrix product)."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        initializer_range=SPREAD,
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    causal(MixtralForCausalLM(config), path, 2048, seed=9)


def moe(path: Path) -> None:
    """A mixture of experts written by hand: each is applied to all tokens, weighted by who chose it."""
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self, width: int, hidden: int, experts: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.router = nn.Linear(width, experts, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
                for _ in range(experts)
            )

        def forward(self, x: Any) -> Any:
            normed = self.norm(x)
            scores = torch.softmax(self.router(normed), -1)
            best, chosen = torch.topk(scores, 2, -1)
            best = best / best.sum(-1, keepdim=True)
            total = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                weight = torch.where(chosen == number, best, 0.0).sum(-1, keepdim=True)
                total = total + weight * expert(normed)
            return x + total

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(2048, 256), *(Experts(256, 512, 8) for _ in range(LAYERS)))
    randomise(model, 10)
    export(model, (example_ids(),), path, ["input_ids"], ["hidden"], (TEXT,))
    save_feeds(path, *[{"input_ids": tokens(2048, *shape)} for shape in ((2, 16), (1, 9))])


def lstm(path: Path) -> None:
    """A tagger: embedding, two bidirectional LSTM layers, a score for each of 48 tags."""
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4000, 256)
            self.lstm = nn.LSTM(256, 384, num_layers=2, bidirectional=True, batch_first=True)
            self.tags = nn.Linear(768, 48)

        def forward(self, input_ids: Any) -> Any:
            return self.tags(self.lstm(self.embedding(input_ids))[0])

    torch.manual_seed(0)
    model = randomise(Tagger(), 11)
    export(model, (example_ids(),), path, ["input_ids"], ["scores"], (TEXT,))
    save_feeds(path, *[{"input_ids": tokens(4000, *shape)} for shape in ((2, 16), (1, 9))])


BUILDERS = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "llama_opset23": llama_opset23,
    "llama_cache": llama_cache,
    "qwen2": qwen2,
    "t5_encoder": t5_encoder,
    "t5_decoder": t5_decoder,
    "mixtral": mixtral,
    "moe": moe,
    "lstm": lstm,
}
