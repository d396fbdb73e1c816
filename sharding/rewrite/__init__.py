"""Writes a graph differently, with the same answers, so that more of it can be split."""
