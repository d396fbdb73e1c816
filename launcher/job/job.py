"""What a job is to do: the options of ``shardrun run``, from flags and from a job file (flags win)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common.files import check_target
from launcher.common.starters import STARTERS
from launcher.errors import ConfigError
from launcher.inspection.model_kinds import check_sliceable
from launcher.inspection.rank_models import is_rank_models, missing
from launcher.job.slicing import Slicing, parse_dims, slicing_of
from sharding.common.nearby import hint, shown
from sharding.slices.mesh import Mesh

if TYPE_CHECKING:
    from sharding.importers.mindir.encryption import Key

LAUNCHERS = STARTERS
TARGETS = ("cpu", "gpu", "ascend")


@dataclass(frozen=True)
class Job:
    """The options of one job; None where an option is not given. ``inputs`` are texts as of ``--input``."""

    model: Path | None = None
    ranks: int | None = None
    rank_table: Path | None = None
    launcher: str = "auto"
    target: str = "cpu"
    collectives: str | None = None
    threads: int | None = None
    timeout: float | None = None
    allow_replicated: bool = False
    strategy: str | None = None
    mesh: Mesh | None = None
    micro_batches: int | None = None
    memory: int | None = None
    profile: Path | None = None
    steer: Path | None = None
    plan: Path | None = None
    ignore_annotations: bool = False
    inputs: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None
    output: Path | None = None
    repeat: int = 1
    verify: bool = False
    against: Path | None = None
    precision_mode: str | None = None
    execution_plan: Mapping[str, str] = field(default_factory=dict)
    dec_key_file: Path | None = None
    dec_mode: str | None = None
    key: Key | None = field(default=None, repr=False)
    """What ``dec_key_file`` holds, which is read once."""

    def check(self) -> Job:
        """The same job, if its options do not contradict each other; else raises `ConfigError`."""
        if self.model is None:
            raise ConfigError("no model: expected MODEL.onnx or a slice folder, or `model:` in a job file")
        if not self.model.exists() and not is_rank_models(self.model):
            raise missing(self.model)
        check_sliceable(self.model)
        if self.ranks is not None and self.rank_table is not None:
            raise ConfigError(
                "--ranks and --rank-table exclude each other: the table says how many ranks there are"
            )
        if self.launcher == "external" and self.rank_table is not None:
            raise ConfigError(
                "--launcher external excludes --rank-table: whoever starts the ranks places them"
            )
        for path, what in ((self.rank_table, "rank table"), (self.against, "model")):
            if path is not None and not path.is_file():
                state = "not a file" if path.exists() else f"no such file{hint(path)}"
                raise ConfigError(f"{shown(path)}: {state}; expected a {what}")
        if self.output is not None:
            check_target("--output", self.output, "archive")
        slicing = self.slicing
        slicing.check(self.ranks)
        # --allow-replicated has nothing to say there, and did no harm in job files for both.
        given = [flag for flag in slicing.given if flag != "--allow-replicated"]
        if given and not self.model.is_file():
            raise ConfigError(
                f"{', '.join(given)}: {self.model} is sliced already; give the model itself to slice it anew"
            )
        if self.precision_mode is not None or self.execution_plan:
            from launcher.job import precision

            precision.check(self)
        if self.key is not None:
            from launcher.job.decryption import check_key

            check_key(self.key, self.model, self.against)
        return self

    @property
    def slicing(self) -> Slicing:
        """What the job says of slicing."""
        return slicing_of(vars(self))


NAMES = tuple(f.name for f in fields(Job) if f.name != "key")


def merge(flags: Mapping[str, Any], config: Path | None) -> Job:
    """The job of these flags (those that were given) and of the job file, where flags win."""
    job = Job()
    if config is not None:
        from launcher.job.job_file import read_job_file

        job = replace(job, **read_job_file(config))
        if "rank_table" in flags:
            job = replace(job, ranks=None)
        elif "ranks" in flags:
            job = replace(job, rank_table=None)
        for name, other in (("mesh", "strategy"), ("strategy", "mesh"), ("plan", "steer"), ("steer", "plan")):
            if name in flags:
                nothing: dict[str, Any] = {other: None}
                job = replace(job, **nothing)
    given = {name: value for name, value in flags.items() if name in NAMES and value is not None}
    if "dims" in given:
        given["dims"] = {**job.dims, **parse_dims(given["dims"])}
    if "execution_plan" in given:
        from launcher.job.precision import parse_plan

        given["execution_plan"] = {**job.execution_plan, **dict(parse_plan(given["execution_plan"]))}
    if "inputs" in given:
        given["inputs"] = tuple(given["inputs"])
    job = replace(job, **given)
    if job.dec_key_file is not None or job.dec_mode is not None:
        from launcher.job.decryption import read_key

        job = replace(job, key=read_key(job.dec_key_file, job.dec_mode))
    return job.check()
