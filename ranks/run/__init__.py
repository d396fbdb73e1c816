"""Runs one rank's model: its segments, the collectives between them, and the requests that it answers."""
