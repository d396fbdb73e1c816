"""Text and token ids: tokenizers, text as its ids come, and stop texts."""
