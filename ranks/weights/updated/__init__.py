"""Weights that can be replaced between two predictions."""
