"""What a path that is given as a model refers to, found out once: a model file, a slice folder, or the rank
models that a pattern names."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.errors import ConfigError, ShardrunError
from launcher.inspection.model_kinds import check_sliceable
from launcher.inspection.rank_models import (
    BY_FLAG,
    count_files,
    folder_of,
    is_rank_models,
    missing,
    open_rank_models,
    wrong_count,
)
from sharding.common.encryption import ENCRYPTED
from sharding.common.text import counted
from sharding.errors import ShardError

if TYPE_CHECKING:
    from sharding.common.encryption import Key
    from sharding.importers.sniff import Format
    from sharding.slices.manifest import Manifest

Kind = Literal["file", "slices", "pattern", "other"]
"""Other: there is nothing, or neither a file nor a folder."""


class ModelReference:
    """A model by its path. What must be read for an answer is read when that is asked for, once.

    Any folder is meant as a slice folder: its manifest says if it is none.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self.kind: Kind = kind

    @property
    def sliced(self) -> bool:
        """Whether there is a model for each rank already."""
        return self.kind in {"slices", "pattern"}

    @functools.cached_property
    def format(self) -> Format | None:
        """The format of a model file; None of anything else, or where it cannot be read."""
        from sharding.importers.sniff import format_of

        try:
            return format_of(self.path) if self.kind == "file" else None
        except ShardrunError:
            return None

    @functools.cached_property
    def encrypted(self) -> bool:
        """Whether it is an encrypted model, or a pattern that stands for such."""
        from ranks.models import pattern

        if self.kind != "pattern":
            return self.format == ENCRYPTED
        try:
            files = pattern.files(self.path)
        except ShardrunError:
            return False
        return any(refer(file).encrypted for file in files.values())

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The manifest of a slice folder. Raises `ShardError`."""
        from sharding.slices.manifest import read_manifest

        return read_manifest(self.path)

    def check(self) -> None:
        """Raises `ConfigError` where there is no such model, or it must be made one of first."""
        if self.kind == "other" and not self.path.exists():
            raise missing(self.path)
        if self.kind == "file":
            check_sliceable(self.path)

    def rank_count(self) -> tuple[str, int] | None:
        """What says the number of ranks, in words, and the number; None of a model file.

        Raises `ShardError`, and `ConfigError` for files that are not one for each rank.
        """
        if not self.sliced:
            return None
        if self.kind == "slices":
            return f"the slice folder {self.path}", self.manifest.world_size
        return f"the files that fit {self.path}", count_files(self.path)

    def open(self, ranks: int | None, key: Key | None = None, said_by: str = BY_FLAG) -> Manifest:
        """The manifest of a slice folder, or what is known of rank models; ``key`` is that of encrypted ones.

        Raises `ConfigError` where ``said_by`` asks for another number of ``ranks``.
        """
        if self.kind == "pattern":
            return open_rank_models(self.path, ranks, key, said_by)
        try:
            manifest = self.manifest
        except ShardError as error:
            raise ConfigError(str(error)) from None
        there = manifest.world_size
        if ranks is not None and ranks != there:
            wrong = wrong_count(ranks, there, said_by)
            raise ConfigError(
                f"{self.path} was sliced for {counted(there, 'rank')}, but {wrong}, or slice the model with "
                f"--ranks {ranks}"
            )
        return manifest

    def whole(self) -> ModelReference:
        """The slice folder, of a pattern that names its rank models; else this."""
        folder = folder_of(self.path) if self.kind == "pattern" else None
        return self if folder is None else ModelReference(folder, "slices")


def refer(path: Path) -> ModelReference:
    """What a path refers to; nothing is read yet, and it need not be there."""
    if is_rank_models(path):
        return ModelReference(path, "pattern")
    return ModelReference(path, "slices" if path.is_dir() else "file" if path.is_file() else "other")
