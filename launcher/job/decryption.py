"""Encrypted models on the command line: their key, and what is plain on the disk while ranks load it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.files import read_at_most
from launcher.errors import ConfigError
from launcher.inspection.model_kinds import demand_ranks
from launcher.inspection.rank_models import count_files, open_rank_models
from launcher.inspection.reference import refer
from sharding.common.encryption import MODES, Key, unneeded

if TYPE_CHECKING:
    from launcher.inspection.reference import ModelReference
    from launcher.job.job import Job
    from sharding.slices.manifest import Manifest

_MOST = 4096  # bytes of a key file


def read_key(file: Path | None, mode: str | None) -> Key | None:
    """The key in a file, which is read once: it may be a pipe. Raises `ConfigError`."""
    if file is None:
        if mode is not None:
            raise ConfigError(
                f"--dec-mode {mode} says how to use a key, but there is none: give --dec-key-file"
            )
        return None
    try:
        secret = read_at_most(file, _MOST)
    except (OSError, ValueError) as error:
        from sharding.common.nearby import reason, shown

        raise ConfigError(f"--dec-key-file {shown(file)}: {reason(file, error)}") from None
    return Key(secret.rstrip(b"\r\n") if len(secret) % 8 else secret, mode or MODES[0])


def check_key(key: Key | None, model: ModelReference, against: Path | None = None) -> None:
    """Raises `ConfigError` for a key that nothing is encrypted with.

    A slice folder is never encrypted. The model that it was made from may be, and is looked for later.
    """
    if key is None or model.kind == "slices" or model.encrypted:
        return
    if against is None or not refer(against).encrypted:
        raise ConfigError(unneeded(model.path))


@contextlib.contextmanager
def plain(
    job: Job, ranks: int | None, rank: int | None = None, before: Callable[[], None] | None = None
) -> Iterator[tuple[Path, Manifest]]:
    """As `launcher.job.model.resolve`, of an encrypted model: what ranks load, which is there inside only.

    It lies in a temporary folder of its owner. ``rank``: only
    what this rank runs; ``before`` is called before anything is sliced. Raises `ConfigError` where ranks on
    other hosts would have to read it, and what slicing and `folder_to_decrypt` raise.
    """
    from ranks.models.imported import folder_to_decrypt

    assert job.model is not None
    pattern = job.reference.kind == "pattern"
    if not pattern:
        ranks = demand_ranks(job.model, ranks, job.key)
    _check_hosts(job, ranks)
    with folder_to_decrypt(job.model) as folder:
        if pattern:
            models = _decrypt_all(job, folder)
            yield models, open_rank_models(models, ranks)
        else:
            assert ranks is not None
            if before is not None:
                before()
            yield _slice(job, ranks, folder / "slices", rank)


def _slice(job: Job, ranks: int, folder: Path, rank: int | None) -> tuple[Path, Manifest]:
    from launcher.common.report import progress
    from sharding import slice_model

    assert job.model is not None
    with progress(f"slicing {job.model.name}") as update:
        manifest = slice_model(
            job.model, ranks, folder, options=job.slicing.options(), progress=update, rank=rank, key=job.key
        )
    return folder, manifest


def _decrypt_all(job: Job, folder: Path) -> Path:
    """All rank models of a pattern as ONNX files; returns their pattern."""
    from ranks.models import pattern
    from sharding.importers import import_model
    from sharding.importers.write import write_onnx

    assert job.model is not None
    made = folder / "rank_{}.onnx"
    for rank in range(count_files(job.model)):
        file = pattern.expand(job.model, rank)
        write_onnx(import_model(file, key=job.key), file, pattern.expand(made, rank))
    return made


def _check_hosts(job: Job, ranks: int | None) -> None:
    if job.rank_table is None:
        return
    from launcher.job.places.hosts import remote_hosts
    from launcher.job.rank_table import load_rank_table

    hosts = remote_hosts(load_rank_table(job.rank_table))
    if hosts:
        first = f"shardrun convert {job.model} model.onnx"
        if ranks is not None:
            first = f"shardrun slice {job.model} --ranks {ranks} --output DIR"
        raise ConfigError(
            f"{job.model} is encrypted, and what it is decrypted to here cannot be read on "
            f"{', '.join(hosts)}: write it to a folder that all hosts have, with `{first} --dec-key-file "
            f"{job.dec_key_file}`, and run that"
        )
