"""Decoders that differ from Llama: linear biases, one key for all heads, latent attention, experts."""

from pathlib import Path
from typing import Any

from tests.architectures.language import LAYERS, SPREAD, causal

WORDS = 2048
FEW_LAYERS = 2
"""Of the models that take longest to export: one layer of each of their two kinds."""
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
    "initializer_range": SPREAD,
}


def _with(config: Any, attention: str = "eager") -> Any:
    config._attn_implementation = attention
    return config


def bloom(path: Path) -> None:
    """BLOOM: linear biases, queries, keys and values packed head by head, batch and heads merged."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(
        vocab_size=WORDS, hidden_size=256, n_layer=LAYERS, n_head=8, initializer_range=SPREAD
    )
    causal(BloomForCausalLM(_with(config)), path, WORDS, seed=21)


def mpt(path: Path) -> None:
    """MPT: linear biases, queries, keys and values packed, no biases elsewhere, a tied head."""
    from transformers import MptConfig, MptForCausalLM

    config = MptConfig(vocab_size=WORDS, d_model=256, n_layers=LAYERS, n_heads=8, max_seq_len=128)
    causal(MptForCausalLM(_with(config)), path, WORDS, seed=22)


def gpt_neox(path: Path) -> None:
    """GPT-NeoX: attention and feed-forward side by side, a quarter of each head rotated."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(**COMMON, intermediate_size=1024)
    causal(GPTNeoXForCausalLM(_with(config, "sdpa")), path, WORDS, seed=23)


def falcon(path: Path) -> None:
    """Falcon 7B: one key and value head for all, attention and feed-forward side by side."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(**COMMON, multi_query=True, parallel_attn=True, bias=False)
    causal(FalconForCausalLM(_with(config)), path, WORDS, seed=24)


def deepseek_v3(path: Path) -> None:
    """DeepSeek-V3: latent attention; one dense layer, then experts in groups and one that all tokens take."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        **COMMON | {"num_hidden_layers": FEW_LAYERS},
        num_key_value_heads=8,
        intermediate_size=512,
        moe_intermediate_size=128,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=128,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        qk_nope_head_dim=32,
        v_head_dim=32,
    )
    config._experts_implementation = "batched_mm"
    causal(DeepseekV3ForCausalLM(_with(config)), path, WORDS, seed=25)


def gpt_oss(path: Path) -> None:
    """gpt-oss: sinks in attention, windows in every second layer, experts with interleaved gates."""
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **COMMON | {"num_hidden_layers": FEW_LAYERS},
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=256,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=8,
    )
    config._experts_implementation = "batched_mm"
    causal(GptOssForCausalLM(_with(config)), path, WORDS, seed=26)


BUILDERS = {
    "bloom": bloom,
    "mpt": mpt,
    "gpt_neox": gpt_neox,
    "falcon": falcon,
    "deepseek_v3": deepseek_v3,
    "gpt_oss": gpt_oss,
}
