"""MindSpore Lite's own format (.ms)."""

from sharding.importers.formats.mindir import FORMAT

__all__ = ["FORMAT"]
