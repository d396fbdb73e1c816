"""The names of what starts ranks, known before any of it is imported."""

from __future__ import annotations

from sharding.common.registry import Names

STARTERS = Names("launcher/starters/known", "shardrun.starters", ("auto", "external"))
"""``external`` is for ranks that something else starts; `launcher.starters.base` has what the others are."""
