"""When a rank shares weights without being told to: what ranks of one host hold alike, or the branches of one
model, if they would copy it.

Ranks of a slice folder map what they hold alike from the same file. That is one copy in memory by itself, for
weights that operators read as they are. Most operators pack their weights first, each process its own copy,
unless the packed form is kept, too (`ranks.weights.prepared.store`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ranks.common import settings
from ranks.devices.providers import CPU
from sharding.onnx_files.external import place_of

if TYPE_CHECKING:
    import onnx

    from ranks.sessions.session import SessionConfig
    from ranks.weights.prepared.store import Store
    from sharding.slices.manifest import Manifest

LEAST_BYTES = 1 << 20
"""What a session must hold alike with other ranks' to be worth preparing."""
_NEVER_PACKED = frozenset({"Gather"})


def choose(config: SessionConfig, manifest: Manifest | None, local_size: int) -> SessionConfig:
    """The configuration with a store, if this rank shares weights with others of its host (or is told to).

    Raises `ShardrunError` where the environment's settings are malformed.
    """
    chosen = settings.weights()
    if config.store is not None or chosen == "off" or config.providers[0] != CPU:
        return config
    if chosen == "on":
        return replace(config, store=_store())
    alike = shared_files(manifest) if manifest is not None and local_size > 1 else frozenset()
    if manifest is not None and config.rank is not None:
        alike |= files_of_branches(manifest, config.rank)
    return replace(config, store=_store(), shared_files=alike) if alike else config


def shared_files(manifest: Manifest) -> frozenset[str]:
    """The files of a slice folder that more than one rank needs, if they are large enough."""
    files = {entry.file: entry.bytes for rank in manifest.ranks for entry in rank.files}
    ranks = Counter(entry.file for rank in manifest.ranks for entry in rank.files)
    return frozenset(name for name, count in ranks.items() if count > 1 and files[name] >= LEAST_BYTES)


def files_of_branches(manifest: Manifest, rank: int) -> frozenset[str]:
    """A rank's files of weights, where its model has branches, if they are large enough: each branch has
    sessions of its own, which mostly use the weights of the other."""
    if not any("(else)" in entry.within for entry in manifest.collectives):
        return frozenset()
    files = manifest.ranks[rank].files
    return frozenset(
        entry.file for entry in files if entry.bytes >= LEAST_BYTES and entry.file.endswith(".data")
    )


def for_segment(config: SessionConfig, model: onnx.ModelProto) -> SessionConfig:
    """The configuration of one session: without the store where its model has nothing worth sharing."""
    if config.store is None or config.shared_files is None:
        return config
    held = {}
    for tensor in model.graph.initializer:
        place = place_of(tensor)
        if place.location in config.shared_files:
            held[tensor.name] = place.length or 0
    packed = {name for node in model.graph.node if node.op_type not in _NEVER_PACKED for name in node.input}
    total = sum(size for name, size in held.items() if name in packed)
    return config if total >= LEAST_BYTES else replace(config, store=None)


def _store() -> Store | None:
    from ranks.weights.prepared.store import default_store

    return default_store()
