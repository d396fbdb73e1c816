"""MindSpore's checkpoints, encrypted ones too."""

from __future__ import annotations

from sharding.importers.checkpoints import ckpt
from sharding.importers.checkpoints.base import CheckpointFormat

FORMAT = CheckpointFormat(ckpt.looks_like, ckpt.read, order=4, part=False, keyed=True)
