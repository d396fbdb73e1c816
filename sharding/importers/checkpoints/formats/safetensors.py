"""safetensors."""

from __future__ import annotations

from sharding.importers.checkpoints import safetensors
from sharding.importers.checkpoints.base import CheckpointFormat

FORMAT = CheckpointFormat(lambda path, head: safetensors.looks_like(head), safetensors.read, order=1)
