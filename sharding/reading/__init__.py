"""Turns a model file into a graph that has the shapes of all its values."""
