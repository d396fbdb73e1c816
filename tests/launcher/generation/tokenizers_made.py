"""Small tokenizers of the two kinds that people have: of bytes, and of pieces with bytes as the last way."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers as tk

TEXT = "The quick brown fox, the lazy dog; the quicker dog and the brown fox jumped over them. " * 4
END = "<|end|>"


def byte_level(path: Path, size: int = 300) -> Path:
    """Of byte pairs: an id may hold any bytes, half a character too."""
    made = tk.Tokenizer(tk.models.BPE())
    made.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT, "größe 你好 😀"], trainer)
    path.write_text(made.to_str())
    return path


def byte_fallback(path: Path) -> Path:
    """As of sentencepiece: words, and a token for each byte of characters that no piece has."""
    pieces = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += ["▁The", "▁dog", "▁fox", "▁quick", "s", "er", *"abcdefghijklmnopqrstuvwxyzTQ.,"]
    pieces = list(dict.fromkeys(pieces))
    vocabulary = [[piece, -10.0 if len(piece) == 1 else -2.0] for piece in pieces]
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": 1, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True},
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": True},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path
