"""The names of job systems, known before any of them is imported."""

from __future__ import annotations

from sharding.common.registry import Names

SYSTEMS = Names("launcher/submission/systems", "shardrun.systems")
"""`launcher.submission.base` has what they are."""
