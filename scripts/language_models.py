"""Writes a transformers folder of a language model with random weights and a small tokenizer.

    python scripts/language_models.py llama FOLDER [--size tiny|160m|0.5b] [--seed 0]

It needs no model hub. Any architecture of transformers' causal language models whose configuration takes the
usual names will do. The folder is what ONNX Runtime GenAI's model builder, optimum and vLLM read. Needs
torch, transformers and tokenizers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": 256, "vocab_size": 1000, "max_position_embeddings": 1024,
    },
    "160m": {
        "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
        "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 4096,
    },
    "0.5b": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
END = "<|endoftext|>"


def write(kind: str, folder: Path, size: str, seed: int) -> None:
    """Writes the folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **SIZES[size], bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer, trained on this script."""
    import tokenizers
    import transformers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, bos_token=END)
    fast.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", help="a model type of transformers, such as llama, qwen2 or gemma2")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.kind, args.folder, args.size, args.seed)


if __name__ == "__main__":
    main()
