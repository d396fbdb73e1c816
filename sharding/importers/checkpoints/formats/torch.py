"""What ``torch.save`` writes: an archive, or before torch 1.6 a pickle."""

from __future__ import annotations

from sharding.importers.checkpoints import torch_file
from sharding.importers.checkpoints.base import CheckpointFormat

FORMAT = CheckpointFormat(torch_file.looks_like, torch_file.read, order=2)
