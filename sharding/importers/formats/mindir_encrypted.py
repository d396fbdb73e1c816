"""MindIR behind a key."""

from sharding.importers.formats.mindir import FORMAT

__all__ = ["FORMAT"]
