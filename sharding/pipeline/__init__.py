"""Cuts a graph into pipeline stages, and proves that a model computes the rows of a batch apart."""
