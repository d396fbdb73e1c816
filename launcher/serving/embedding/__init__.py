"""Vectors of texts by encoders: what a folder says of them, pooling, and texts as batches of tokens."""
