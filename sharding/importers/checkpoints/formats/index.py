"""The index of a checkpoint in several files."""

from __future__ import annotations

from pathlib import Path

from sharding.importers.checkpoints import sharded
from sharding.importers.checkpoints.base import Checkpoint, CheckpointFormat
from sharding.importers.checkpoints.files import open_part


def _read(path: Path) -> Checkpoint:
    return sharded.read(path, open_part)


FORMAT = CheckpointFormat(lambda path, head: path.name.endswith(".json"), _read, order=3, part=False)
