"""Files that hold weights and no graph: MindSpore's, torch's, and safetensors, whole or in several files."""

from sharding.importers.checkpoints.base import Checkpoint, Entry
from sharding.importers.checkpoints.files import Kind, kind_of, open_checkpoint

__all__ = ["Checkpoint", "Entry", "Kind", "kind_of", "open_checkpoint"]
