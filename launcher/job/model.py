"""``MODEL|DIR`` of the command line: a slice folder as it is, or a model that is sliced into the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, ShardrunError
from launcher.inspection.model_kinds import demand_ranks
from launcher.inspection.rank_models import BY_FLAG, STRATEGY
from launcher.inspection.reference import refer
from launcher.job import decryption
from launcher.job.job import Job
from ranks.common.settings import WEIGHTS

if TYPE_CHECKING:
    from launcher.inspection.signature import Signature
    from sharding.common.encryption import Key
    from sharding.slices.manifest import Manifest


Check = Callable[["Signature"], None]


def world_size(job: Job) -> int | None:
    """The number of ranks that the job asks for; None if it does not say."""
    if job.rank_table is not None:
        from launcher.job.rank_table import load_rank_table

        return load_rank_table(job.rank_table).world_size
    asked = job.ranks if job.ranks is not None else job.slicing.ranks()
    if job.launcher in {"external", "local"} or (places := job.placement.places()) is None:
        return asked
    if asked is not None:
        places.spread(asked)  # too many are refused before anything is sliced
    return places.ranks if asked is None and job.reference.kind == "file" else asked


def asked_by(job: Job) -> str:
    """What the number of ranks comes from (see `world_size`), for messages."""
    if job.rank_table is not None:
        return f"the rank table {job.rank_table}"
    return (
        BY_FLAG if job.ranks is not None else "the environment (RANK and WORLD_SIZE, or mpirun's or srun's)"
    )


@dataclass(frozen=True, kw_only=True)
class Loadable:
    """What ranks load, and how many they are. ``loaded`` is to be called when they have: what was decrypted
    is removed then. ``keep``: whether they may keep weights in the cache, where those of an encrypted model
    would stay."""

    path: Path
    ranks: int
    loaded: Callable[[], object] = lambda: None
    keep: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """What ranks that are started for it are told."""
        return {} if self.keep else {WEIGHTS.name: "off"}


@dataclass(frozen=True, kw_only=True)
class Opened(Loadable):
    """The same with its manifest."""

    manifest: Manifest


@contextlib.contextmanager
def opened(
    job: Job, ranks: int | None, rank: int | None = None, check: Check | None = None
) -> Iterator[Opened]:
    """The slice folder or the pattern of rank models to run; of an encrypted model with no more than ``rank``
    loads. Errors inside name the job's model, not what was made of it. ``check`` gets what a model file
    declares before it is sliced: what does not fit is refused before that costs anything.

    Raises what `resolve` and slicing raise.
    """
    assert job.model is not None
    with contextlib.ExitStack() as stack:
        encrypted = job.key is not None and job.reference.encrypted
        if encrypted:
            made = decryption.plain(job, ranks, rank, lambda: check_declared(job, check))
            path, manifest = stack.enter_context(made)
        else:
            path, manifest = resolve(job, ranks, check)
        try:
            yield Opened(
                path=path,
                ranks=manifest.world_size,
                loaded=stack.close,
                keep=not encrypted,
                manifest=manifest,
            )
        except ShardrunError as error:
            if path != job.model:
                folder = path if path.is_dir() else path.parent
                for entry in manifest.ranks:
                    error.made_of(folder / entry.model, f"{job.model} (rank {entry.rank})")
            raise


def check_declared(job: Job, check: Check | None) -> None:
    """Checks what the job says against what its model file declares, before that is sliced."""
    from launcher.inspection.signature import check_plan, declared_by

    assert job.model is not None
    found = declared_by(job.model, job.key)
    if found is None:
        return  # slicing says what is wrong with it
    check_plan(job.execution_plan, found.operators)
    if check is not None:
        check(found)


def resolve(job: Job, ranks: int | None, check: Check | None = None) -> tuple[Path, Manifest]:
    """The slice folder (or pattern of rank models) to run and its manifest; a model file is sliced into the
    cache first, if need be, after ``check`` (see `opened`)."""
    model = job.model
    assert model is not None
    found = job.reference.whole()
    if found.sliced:
        return found.path, found.open(ranks, said_by=asked_by(job))
    ranks = demand_ranks(model, ranks)
    from launcher.common.report import progress
    from launcher.job.cache import sliced
    from sharding.slices.manifest import read_manifest

    with progress(f"slicing {model.name}") as update:
        folder = sliced(
            model,
            ranks,
            options=job.slicing.options(),
            progress=update,
            timeout=job.timeout,
            before=lambda: check_declared(job, check),
        )
    return folder, read_manifest(folder)


def source_of(job: Job, folder: Path, manifest: Manifest) -> Path:
    """The unsliced model to compare with."""
    from launcher.job.verify import find_source

    assert job.model is not None
    source = manifest.source
    if manifest.strategy == STRATEGY and job.against is None:
        raise ConfigError(
            "--verify: nothing says which model these rank models were made from: give it with --against"
        )
    own = job.model if job.reference.kind == "file" else None
    return find_source(folder, source.file, source.bytes, source.sha256, job.against or own)


def reference_key(job: Job, source: Path | None) -> Key | None:
    """The job's key, if the model to compare with is encrypted."""
    return job.key if source is not None and refer(source).encrypted else None
