"""Sentences to token ids."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SENTENCES = (
    "A man is playing a guitar on the stage.",
    "Someone performs music with a string instrument.",
    "The central bank raised its interest rates again.",
    "Borrowing money has become more expensive this year.",
    "Our cat sleeps on the warm windowsill all day.",
    "The kitten is napping in the sun.",
)


def tokenize(sentences: tuple[str, ...], weights: Path) -> dict[str, NDArray[Any]]:
    """`input_ids` and `attention_mask`, int64 [sentences, longest sentence], padded with zeros."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int64),
    }
