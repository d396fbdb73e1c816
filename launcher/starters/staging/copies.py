"""Which files of a slice folder, or of rank models, each host needs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.inspection.reference import refer
from launcher.job.places.hosts import is_here
from launcher.job.rank_table import RankTable
from ranks.cache.staged import RANK_MODEL, SLICES
from ranks.models import pattern
from sharding.common.text import one_line
from sharding.importers.sniff import is_imported
from sharding.slices.manifest import FILE_NAME, FileEntry, read_manifest, sha256_of, verify_shard


@dataclass(frozen=True)
class Copy:
    """The files of one host's ranks of a ``model``, and the key under which they lie in its cache. ``file``:
    of a rank model that was made elsewhere, its own."""

    host: str
    ranks: list[int]
    folder: Path
    model: str
    files: tuple[FileEntry, ...]
    file: str = ""

    @property
    def kind(self) -> str:
        """What it is in the cache."""
        return RANK_MODEL if self.file else SLICES

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(file.bytes for file in self.files)

    @property
    def key(self) -> str:
        """The same for the same files; in the form that names of slice folders in the cache have."""
        content = json.dumps([[file.file, file.bytes, file.sha256] for file in self.files])
        digest = hashlib.sha256(content.encode()).hexdigest()[:24]
        name = re.sub(r"\W", "_", Path(self.model).stem, flags=re.ASCII)[:40]
        return f"{name}-{digest}" if self.file else f"{name}-{len(self.ranks)}-{digest}"


def needed(path: Path, table: RankTable) -> list[Copy]:
    """The copies for the other hosts of a table; this one reads the files where they are.

    Raises `ConfigError` for files that cannot be copied, and `ShardError` where a rank's are not there.
    """
    far = {
        host: [device.rank for device in there] for host, there in table.hosts.items() if not is_here(host)
    }
    if not far:
        return []
    reference = refer(path).whole()
    if reference.kind == "pattern":
        models = pattern.files(reference.path)
        return [_of_rank_model(host, rank, models[rank]) for host, ranks in far.items() for rank in ranks]
    folder = reference.path
    manifest = read_manifest(folder)
    whole = folder / FILE_NAME
    found = []
    for host, ranks in far.items():
        files = {FILE_NAME: FileEntry(FILE_NAME, whole.stat().st_size, sha256_of(whole))}
        for rank in ranks:
            entry = verify_shard(folder, manifest, rank, table.world_size, hashes=False)
            files |= {file.file: file for file in entry.files}
        found.append(Copy(host, ranks, folder, manifest.source.file, tuple(files.values())))
    return found


def _of_rank_model(host: str, rank: int, model: Path) -> Copy:
    """A rank's own file, and the files of its weights beside it. Raises `ConfigError`, and `ModelError` where
    it cannot be read."""
    from sharding.onnx_files.external import target_of

    model = target_of(model)  # beside which its data lie
    names = [model.name]
    if not is_imported(model):
        names += [location for location in _locations(model) if location != model.name]
    for name in names:
        if "/" in name:
            raise ConfigError(
                f"--stage copies rank models with the files beside them, and {model} has weights in {name}: "
                "copy them to the hosts yourself, or write the weights into a file beside the model."
            )
    folder = model.parent
    try:
        files = [FileEntry(name, (folder / name).stat().st_size, sha256_of(folder / name)) for name in names]
    except OSError as problem:
        raise ConfigError(f"{problem.filename}, of {model}, cannot be read: {problem.strerror}") from None
    return Copy(host, [rank], folder, model.name, tuple(files), model.name)


def _locations(model: Path) -> list[str]:
    """The names of the files of a model's weights. Raises `ConfigError`."""
    from sharding.onnx_files.external import locations
    from sharding.onnx_files.protobuf import read_message

    try:
        return locations(read_message(model))
    except Exception as problem:  # protobuf's own error is of no class that is known here
        raise ConfigError(f"{model} cannot be read: {one_line(str(problem))}") from None


def in_words(copies: Sequence[Copy]) -> str:
    """The hosts, of many the first."""
    names = [copy.host for copy in copies]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more hosts" if len(names) > 3 else "")
