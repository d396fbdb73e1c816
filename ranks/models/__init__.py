"""Finds and reads the model file that a rank runs."""
