"""What a server is told to serve, as models that can be started: flags, a job file, or a list of models."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from launcher.common.documents import quote, read_document
from launcher.common.restarts import NEVER, parse_restart
from launcher.errors import ConfigError, LaunchError
from launcher.generation.folder import read_folder
from launcher.generation.model import assemble, read_texts
from launcher.generation.stateful import program_of
from launcher.job.job import Job, gather
from launcher.job.job_file import read_options, tell_unfollowed
from launcher.job.model import opened, world_size
from launcher.job.option_table import changed
from launcher.job.options import OPTIONS
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Model, Repository, name_of
from launcher.serving.options import SERVED, ModelOptions
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from launcher.tasks.loading import start_group
from sharding.slices.manifest import FILE_NAME as MANIFEST

if TYPE_CHECKING:
    from launcher.common.logs import Logs
    from launcher.generation.model import LanguageModel
    from launcher.generation.stateful import Program
    from launcher.group.group import Group
    from ranks.common.progress import Progress

_MOST_MODELS = 64
_NAMES = "expected a name without slashes, which clients have in addresses"


@dataclass(frozen=True)
class Offer:
    """One model that is to be served."""

    name: str
    job: Job
    options: ModelOptions

    def made(self, limits: ServeLimits, metrics: Metrics) -> Model:
        """The model, which is not started yet. Raises `ConfigError` for what cannot be served."""
        options = self.options
        # The server starts ranks again by itself, for it answers meanwhile.
        job, restarts = replace(self.job, restart=NEVER), parse_restart(self.job.restart)
        again, stopping, starts = restarts > 0, threading.Event(), itertools.count()

        def next_start() -> Job:
            number = next(starts)
            return with_logs(job, job.logs.of_one(f"restart-{number}")) if number else job

        def unless_stopped(done: float, whole: float) -> None:
            if stopping.is_set():
                raise LaunchError(f"the model {self.name!r} was unloaded while it was loading")

        if _generates(job, options):
            if options.max_batch_size > 1:
                raise ConfigError(
                    f"{job.model}: --max-batch-size is for models of tensors: texts are always joined"
                )
            _check_folder(job, options.texts)
            groups: list[Group] = []
            return TextModel(
                self.name, limits, metrics, again, restarts, stopping,
                open_model=lambda: language_model(next_start(), options.texts, unless_stopped, groups),
                ended=lambda: any(group.state == "failed" for group in groups),
            )  # fmt: skip
        job.check()
        batching = Batching(options.max_batch_size, options.max_delay, lambda names: _dependent(job, names))
        return TensorModel(
            self.name, limits, metrics, again, restarts, stopping,
            open_group=lambda: group_of(next_start(), unless_stopped), batching=batching,
        )  # fmt: skip


def with_logs(job: Job, logs: Logs) -> Job:
    """The same with these log files: each start writes into a new folder."""
    return replace(job, log_dir=logs.log_dir, tee=logs.tee)


def _generates(job: Job, options: ModelOptions) -> bool:
    """Whether a model is one of texts: a folder that holds no slices, or one with texts of its own."""
    if options.texts is not None:
        return True
    return job.model is not None and job.model.is_dir() and not (job.model / MANIFEST).is_file()


def _check_folder(job: Job, texts: Path | None) -> None:
    assert job.model is not None
    folder = read_folder(job.model, texts)
    read_texts(folder)
    for part in folder.parts.values():
        replace(job, model=part).check()


def group_of(job: Job, progress: Progress | None = None) -> Group:
    """Starts the ranks of a model of tensors. ``progress``: may end the start by raising."""
    with opened(job, world_size(job)) as model:
        return start_group(job, model, progress)


def language_model(
    job: Job, texts: Path | None, progress: Progress | None = None, groups: list[Group] | None = None
) -> LanguageModel:
    """Starts the ranks of a language model. ``progress``: may end the start by raising; ``groups``: will hold
    what was started."""
    assert job.model is not None
    groups = [] if groups is None else groups
    groups.clear()
    folder = read_folder(job.model, texts)

    @contextlib.contextmanager
    def started(path: Path) -> Iterator[Program]:
        own = replace(job, model=path, sums=job.sums or "auto")
        if len(folder.parts) > 1:
            own = with_logs(own, job.logs.of_one(folder.name_of(path)))
        with opened(own, world_size(own) or 1) as model, start_group(own, model, progress) as group:
            groups.append(group)
            yield program_of(group)

    return assemble(folder, started)


def _dependent(job: Job, names: Collection[str]) -> str | None:
    """Why rows of a model are not computed apart along the first axes of these inputs and outputs; None where
    they are."""
    from sharding.demands.options import SliceOptions
    from sharding.errors import ShardrunError
    from sharding.planning.plan import Planner
    from sharding.reading.read import read_model

    if job.reference.kind != "file" or job.model is None:
        return "slices do not say whether rows are computed apart: give the model itself"
    try:
        found = Planner(read_model(job.model, job.key), SliceOptions()).batch
    except ShardrunError as error:
        return str(error)
    if isinstance(found, str):
        return found
    axes = {**found.inputs, **found.outputs}
    other = next((name for name in names if axes.get(name) != 0), None)
    return None if other is None else f"the batch is not the first axis of {other!r}"


def offers(flags: Mapping[str, object], config: Path | None, name: str | None) -> list[Offer]:
    """The models of flags and a file, which may be a job file or a list of models. Raises `ConfigError`."""
    own = {key: value for key, value in flags.items() if key in SERVED and value is not None}
    given = flags.get("model")
    if isinstance(given, Path) and given.suffix in {".yaml", ".yml", ".json"}:
        if config is not None:
            raise ConfigError(f"{given} and --config exclude each other: give one file")
        flags, config = {key: value for key, value in flags.items() if key != "model"}, given
    takes = cast("Collection[str] | None", flags.get("takes"))
    listed = None if config is None else _listed(config, takes)
    if listed is None:
        job = gather({key: value for key, value in flags.items() if key not in SERVED}, config)
        if job.model is None:
            raise ConfigError("no model: expected MODEL.onnx, a folder, a job file or a list of models")
        called = name_of(job.model) if name is None else name
        if not _is_name(called):
            raise ConfigError(f"--name: {_NAMES}, found {quote(called)}")
        return [Offer(called, job, changed(ModelOptions(), own))]
    if name is not None:
        raise ConfigError(f"--name: {config} names its models itself; leave it out")
    return [
        Offer(
            each,
            Job().with_flags({**said, **{k: v for k, v in flags.items() if k in OPTIONS}}),
            changed(ModelOptions(), {**more, **own}),
        )
        for each, said, more in listed
    ]


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and name.isprintable() and "/" not in name and name not in {"", ".", ".."}


def _listed(
    path: Path, takes: Collection[str] | None
) -> Sequence[tuple[str, dict[str, object], dict[str, object]]] | None:
    """Name, options of the job and of serving of each model in a list of models; None for a job file."""
    data, _ = read_document(path, "job file or list of models")
    if not isinstance(data, dict) or "models" not in data:
        return None
    models = data["models"]
    if len(data) > 1:
        other = next(key for key in data if key != "models")
        raise ConfigError(f"{path}: unknown key {quote(other)} beside `models`; put it into each model")
    if not isinstance(models, dict) or not models or len(models) > _MOST_MODELS:
        raise ConfigError(
            f"{path}: $.models: expected a mapping of 1 to {_MOST_MODELS} names, found {quote(models)}"
        )
    found = []
    known = {item.name for item in fields(ModelOptions)}
    for name, entry in models.items():
        if not _is_name(name):
            raise ConfigError(f"{path}: $.models: {_NAMES}, found {quote(name)}")
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: $.models.{name}: expected a mapping of options, found {quote(entry)}")
        said = read_options(entry, {**OPTIONS, **SERVED}, path, f".models.{name}")
        if "model" not in said:
            raise ConfigError(f"{path}: $.models.{name}: expected the key `model`, found none")
        own = {key: value for key, value in said.items() if key not in known}
        tell_unfollowed(own, takes, f"{path}: $.models.{name}")
        found.append((name, own, {key: value for key, value in said.items() if key in known}))
    return found


def repository_of(made: Sequence[Offer], limits: ServeLimits, metrics: Metrics) -> Repository:
    """The models, none of which is started. Those with one log folder have each a folder in it."""
    alike = Counter(offer.job.log_dir for offer in made)
    found = {}
    for offer in made:
        job = offer.job
        if alike[job.log_dir] > 1:
            job = with_logs(job, job.logs.of_one(offer.name))
        found[offer.name] = replace(offer, job=job).made(limits, metrics)
    return Repository(found)
