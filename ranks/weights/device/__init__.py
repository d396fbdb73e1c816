"""Weights that lie on a GPU once for several processes."""
