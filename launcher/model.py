"""``MODEL|DIR`` of the command line: a slice folder as it is, or a model that is sliced into the cache."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import decryption
from launcher.errors import ConfigError, ShardrunError
from launcher.job import Job
from launcher.model_kinds import check_whole
from launcher.rank_models import STRATEGY, folder_of, is_rank_models, open_rank_models
from sharding.text import counted

if TYPE_CHECKING:
    from sharding.importers.mindir.encryption import Key
    from sharding.manifest import Manifest


def is_slices(path: Path) -> bool:
    """Whether the path is meant as a slice folder; any folder is (the manifest says if it is none)."""
    return path.is_dir()


def world_size(job: Job) -> int | None:
    """The number of ranks that the job asks for; None if it does not say."""
    if job.rank_table is not None:
        from launcher.rank_table import load_rank_table

        return load_rank_table(job.rank_table).world_size
    return job.ranks if job.ranks is not None else job.slicing.ranks()


def open_slices(folder: Path, ranks: int | None) -> Manifest:
    """The manifest of a slice folder; raises `ConfigError` if it is for another number of ranks."""
    from sharding.errors import ShardError
    from sharding.manifest import read_manifest

    try:
        manifest = read_manifest(folder)
    except ShardError as error:
        raise ConfigError(str(error)) from None
    if ranks is not None and ranks != manifest.world_size:
        raise ConfigError(
            f"{folder} was sliced for {counted(manifest.world_size, 'rank')}, but {ranks} are asked for: "
            f"leave out --ranks, or slice the model with --ranks {ranks}"
        )
    return manifest


def demand_ranks(model: Path, ranks: int | None, key: Key | None = None) -> int:
    """The number of ranks to slice a model file for; raises `ConfigError` if nothing says it, or it is one
    rank's part of a model."""
    if ranks is None:
        check_whole(model, key)
        raise ConfigError(
            f"{model} is not sliced yet: say over how many ranks, with --ranks N, --rank-table FILE or "
            "--mesh AXIS=SIZE,..."
        )
    return ranks


@dataclass(frozen=True)
class Opened:
    """What ranks load. ``loaded`` is to be called when they have: what was decrypted is removed then."""

    path: Path
    manifest: Manifest
    loaded: Callable[[], None]


@contextlib.contextmanager
def opened(job: Job, ranks: int | None, rank: int | None = None) -> Iterator[Opened]:
    """The slice folder or the pattern of rank models to run; of an encrypted model with no more than ``rank``
    loads. Errors inside name the job's model, not what was made of it.

    Raises what `resolve` and slicing raise.
    """
    assert job.model is not None
    with contextlib.ExitStack() as stack:
        if job.key is not None and decryption.is_encrypted(job.model):
            path, manifest = stack.enter_context(decryption.plain(job, ranks, rank))
        else:
            path, manifest = resolve(job, ranks)
        try:
            yield Opened(path, manifest, stack.close)
        except ShardrunError as error:
            error.args = tuple(_renamed(item, path, job.model) for item in error.args)
            raise


def _renamed(text: object, made: Path, model: Path) -> object:
    """A message that names the user's model where it would name a rank model that was made of it."""
    if made == model or not isinstance(text, str):
        return text
    folder = made.parent if is_rank_models(made) else made
    for name in {str(folder), os.path.realpath(folder)}:
        text = re.sub(
            rf"{re.escape(name)}/rank_([0-9]+)\.onnx(?!\.data)", rf"{_escaped(model)} (rank \1)", text
        )
    return text


def _escaped(model: Path) -> str:
    return str(model).replace("\\", r"\\")


def resolve(job: Job, ranks: int | None) -> tuple[Path, Manifest]:
    """The slice folder (or pattern of rank models) to run and its manifest; a model file is sliced into the
    cache first, if need be."""
    model = job.model
    assert model is not None
    if is_rank_models(model):
        model = folder_of(model) or model
        if not is_slices(model):
            return model, open_rank_models(model, ranks)
    if is_slices(model):
        return model, open_slices(model, ranks)
    ranks = demand_ranks(model, ranks)
    from launcher.cache import sliced
    from launcher.report import progress
    from sharding.manifest import read_manifest

    with progress(f"slicing {model.name}") as update:
        options = job.slicing.options()
        folder = sliced(model, ranks, options=options, progress=update, timeout=job.timeout)
    return folder, read_manifest(folder)


def source_of(job: Job, folder: Path, manifest: Manifest) -> Path:
    """The unsliced model to compare with."""
    from launcher.verify import find_source

    assert job.model is not None
    source = manifest.source
    if manifest.strategy == STRATEGY and job.against is None:
        raise ConfigError(
            "--verify: nothing says which model these rank models were made from: give it with --against"
        )
    own = job.model if job.model.is_file() else None
    return find_source(folder, source.file, source.bytes, source.sha256, job.against or own)


def reference_key(job: Job, source: Path | None) -> Key | None:
    """The job's key, if the model to compare with is encrypted."""
    return job.key if source is not None and decryption.is_encrypted(source) else None


def check_reference(source: Path, manifest: Manifest, key: Key | None = None) -> None:
    """Raises `ConfigError` unless the model to compare with has the inputs and outputs of the slices."""
    from launcher.verify import read_signature

    for what, found, entries in zip(
        ("input", "output"), read_signature(source, key), (manifest.inputs, manifest.outputs), strict=True
    ):
        wanted = {entry.name: str(entry.dtype) for entry in entries}
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            have, want = found.get(name, "none of that name"), wanted.get(name, "none of that name")
            if have != want:
                raise ConfigError(
                    f"--verify: {source} is not the model that was sliced: its {what} {name!r} is expected "
                    f"to be {want}, found {have}; give the unsliced model with --against"
                )
