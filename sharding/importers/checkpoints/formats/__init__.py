"""Formats of checkpoints: one module each, with its name, which says what a file of it looks like."""
