"""Collectives over the shared memory of one host."""
