"""Weights that several sessions, processes and models hold once: prepared, shared, replaced."""
