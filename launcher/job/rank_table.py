"""Rank tables as `shardrun` reads them: `sharding.common.rank_table`, with the launcher's error."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import RankTableError
from sharding.common import rank_table
from sharding.common.rank_table import Device, RankTable, find_problems, make_rank_table

__all__ = ["Device", "RankTable", "find_problems", "load_rank_table", "make_rank_table"]


def load_rank_table(path: str | Path) -> RankTable:
    """Reads and checks a rank table file, JSON or YAML; raises `RankTableError` with the first problem."""
    return rank_table.load_rank_table(path, RankTableError)
