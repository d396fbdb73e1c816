"""Collective backends."""
