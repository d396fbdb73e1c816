"""MindIR of version 0."""

from sharding.importers.formats.mindir import FORMAT

__all__ = ["FORMAT"]
