"""Which files of a slice folder each host needs."""

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
from ranks.cache.folder import hash_file
from sharding.slices.manifest import FILE_NAME, FileEntry, read_manifest, verify_shard


@dataclass(frozen=True)
class Copy:
    """The files of one host's ranks of a ``model``, and the key under which they lie in its cache."""

    host: str
    ranks: list[int]
    folder: Path
    model: str
    files: tuple[FileEntry, ...]

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
        return f"{name}-{len(self.ranks)}-{digest}"


def needed(path: Path, table: RankTable) -> list[Copy]:
    """The copies for the other hosts of a table; this one reads the files where they are.

    Raises `ConfigError` for what is no slice folder, and `ShardError` where a rank's files are not there.
    """
    far = {
        host: [device.rank for device in there] for host, there in table.hosts.items() if not is_here(host)
    }
    if not far:
        return []
    reference = refer(path).whole()
    if reference.kind != "slices":
        raise ConfigError(
            f"--stage copies slice folders, and {path} names models of ranks that were made elsewhere: copy "
            "them to the hosts yourself, or give the model, or its slices."
        )
    folder = reference.path
    manifest = read_manifest(folder)
    whole = folder / FILE_NAME
    found = []
    for host, ranks in far.items():
        files = {FILE_NAME: FileEntry(FILE_NAME, whole.stat().st_size, hash_file(whole))}
        for rank in ranks:
            entry = verify_shard(folder, manifest, rank, table.world_size, hashes=False)
            files |= {file.file: file for file in entry.files}
        found.append(Copy(host, ranks, folder, manifest.source.file, tuple(files.values())))
    return found


def in_words(copies: Sequence[Copy]) -> str:
    """The hosts, of many the first."""
    names = [copy.host for copy in copies]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more hosts" if len(names) > 3 else "")
