"""The words that a user may choose from for a slicing."""

from __future__ import annotations

STRATEGIES = ("tensor", "pipeline", "data", "auto")
SUMS = ("parts", "whole", "auto")
