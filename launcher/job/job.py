"""What a job is to do: the options of ``shardrun run``, from flags and from a job file (flags win)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.common.files import check_target
from launcher.common.restarts import NEVER
from launcher.errors import ConfigError
from launcher.inspection.reference import ModelReference, refer
from launcher.job import precision
from launcher.job.option_table import changed
from launcher.job.options import OF_STARTING, OPTIONS, Options
from launcher.job.slicing import Slicing

if TYPE_CHECKING:
    from sharding.common.encryption import Key


@dataclass(frozen=True)
class Job(Options):
    """The options of one job, and the key of its model."""

    key: Key | None = field(default=None, repr=False)
    """What ``dec_key_file`` holds, which is read once."""

    def check(self) -> Job:
        """The same job, if its options do not contradict each other; else raises `ConfigError`."""
        if self.model is None:
            raise ConfigError("no model: expected MODEL.onnx or a slice folder, or `model:` in a job file")
        self.reference.check()
        self.check_exclusive()
        if self.launcher == "external" and self.rank_table is not None:
            raise ConfigError(
                "--launcher external excludes --rank-table: whoever starts the ranks places them"
            )
        if self.launcher == "external" and (said := self.of_starting()):
            raise ConfigError(f"--launcher external excludes {said}: whoever starts the ranks says it")
        for option in (OPTIONS["rank_table"], OPTIONS["hostfile"], OPTIONS["against"]):
            self.check_file(option)
        if self.output is not None:
            check_target("--output", self.output, "archive")
        self._check_files()
        slicing = self.slicing
        slicing.check(self.ranks)
        # --allow-replicated has nothing to say there, and did no harm in job files for both.
        given = [flag for flag in slicing.given if flag != "--allow-replicated"]
        if given and self.reference.kind != "file":
            raise ConfigError(
                f"{', '.join(given)}: {self.model} is sliced already; give the model itself to slice it anew"
            )
        if self.precision_mode is not None or self.execution_plan:
            precision.check(self)
        if self.key is not None:
            if self.restart != NEVER:
                raise ConfigError(
                    "--restart and a key exclude each other: what the model was decrypted to is removed once "
                    "the ranks have loaded it"
                )
            if self.stage:
                raise ConfigError(
                    "--stage and a key exclude each other: the copies in the hosts' caches would hold the "
                    "model decrypted; copy its file to each host yourself"
                )
            from launcher.job.decryption import check_key

            check_key(self.key, self.reference, self.against)
        return self

    def _check_files(self) -> None:
        """Raises `ConfigError` for options of many files that do not go together, or not with others."""
        if not self.files:
            for name in ("outputs", "resume", "keep_going"):
                if getattr(self, name):
                    raise ConfigError(f"{OPTIONS[name].flag}: give --inputs too, the files to run")
            return
        if self.outputs is None:
            raise ConfigError("--inputs: give --outputs too, the folder for the results")
        default = Job()
        for name in ("output", "verify", "against", "seed", "repeat"):
            if getattr(self, name) != getattr(default, name):
                raise ConfigError(
                    f"--inputs and {OPTIONS[name].flag} exclude each other: each file is run once, and its "
                    "outputs are written to the folder --outputs"
                )

    def of_starting(self) -> str:
        """The first flag given that only whatever starts the ranks can follow; "" without one."""
        names = (name for name in OF_STARTING if name != "launcher")
        found = next((name for name in names if getattr(self, name) != getattr(Job(), name)), "")
        return OPTIONS[found].flag if found else ""

    @functools.cached_property
    def reference(self) -> ModelReference:
        """What ``model`` refers to."""
        assert self.model is not None
        return refer(self.model)

    @property
    def slicing(self) -> Slicing:
        """What the job says of slicing."""
        return Slicing(self)


def merge(flags: Mapping[str, object], config: Path | None) -> Job:
    """The job of these flags (those that were given) and of the job file, where flags win. Raises
    `ConfigError`."""
    return gather(flags, config).check()


def gather(flags: Mapping[str, object], config: Path | None) -> Job:
    """The same, before its options are checked against each other and the model. ``flags`` may say under
    ``takes`` which options the command follows: of others in the job file it warns."""
    job = Job()
    if config is not None:
        from launcher.job.job_file import read_job_file, tell_unfollowed

        said = read_job_file(config)
        tell_unfollowed(said, cast("Collection[str] | None", flags.get("takes")), str(config))
        job = changed(job, said)
    job = job.with_flags(flags)
    if job.dec_key_file is not None or job.dec_mode is not None:
        from launcher.job.decryption import read_key

        job = replace(job, key=read_key(job.dec_key_file, job.dec_mode))
    return job
