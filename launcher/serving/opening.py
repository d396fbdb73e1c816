"""What a server is told to serve, as models that can be started: flags, a job file, or a list of models."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from launcher.common.documents import quote, read_document
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
from launcher.serving.embedding.finding import find_encoder
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Model, Repository
from launcher.serving.options import SERVED, ModelOptions
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from launcher.serving.upkeep.versions import Versions, check_pattern, version_of
from launcher.tasks.loading import start_group
from sharding.slices.manifest import FILE_NAME as MANIFEST

if TYPE_CHECKING:
    from launcher.common.logs import Logs
    from launcher.generation.model import LanguageModel
    from launcher.generation.stateful import Program
    from launcher.group.group import Group
    from ranks.common.progress import Progress

_MOST_MODELS = 64
WILD = frozenset("*?[")
"""What makes a name a pattern of names."""
_NAMES = "expected a name without slashes, which clients have in addresses"


@dataclass(frozen=True)
class Offer:
    """One model that is to be served."""

    name: str
    job: Job
    options: ModelOptions

    def made(self, limits: ServeLimits, metrics: Metrics) -> Model:
        """The model, which is not started yet. Raises `ConfigError` for what cannot be served."""
        pattern = self.options.versions
        assert self.job.model is not None
        if pattern is not None:
            check_pattern(pattern)
        return self._made(limits, metrics, version_of(self.job.model, pattern))

    def versions(self, limits: ServeLimits, metrics: Metrics) -> Versions | None:
        """What makes other versions of it; None where it has none."""
        if (pattern := self.options.versions) is None:
            return None

        times: Counter[str] = Counter()

        def make(path: Path, version: str) -> Model:
            times[version] += 1
            again = f"-{times[version]}" if times[version] > 1 else ""
            job = with_logs(self.job, self.job.logs.of_one(f"version-{version}{again}"))
            return replace(self, job=replace(job, model=path))._made(limits, metrics, version)

        return Versions(self.name, pattern, make)

    def _made(self, limits: ServeLimits, metrics: Metrics, version: str) -> Model:
        job, options, stopping, starts = self.job, self.options, threading.Event(), itertools.count(1)

        def next_start() -> Job:
            number = next(starts)
            return with_logs(job, job.logs.of_one(f"load-{number}")) if number > 1 else job

        def unless_stopped(done: float, whole: float) -> None:
            if stopping.is_set():
                raise LaunchError(f"the model {self.name!r} was unloaded while it was loading")

        found = find_encoder(job, options.texts)
        if found is not None:
            job = found.job
        elif _generates(job, options):
            self._check_texts()
            return TextModel(
                self.name, limits, metrics, stopping, version=version,
                open_model=lambda: language_model(next_start(), options.texts, unless_stopped),
            )  # fmt: skip
        job.check()
        variable = variable_names(job, options.variable_weights)
        if options.pad_mask is not None and options.max_batch_size == 1:
            raise ConfigError("--pad-mask is for requests that are joined: give --max-batch-size too")
        batching = Batching(
            options.max_batch_size, options.max_delay, lambda names: _apart(job, names),
            options.pad_mask or "",
        )  # fmt: skip
        return TensorModel(
            self.name, limits, metrics, stopping, version=version,
            open_group=lambda: group_of(next_start(), unless_stopped, variable), batching=batching,
            encoder=None if found is None else found.encoder,
        )  # fmt: skip

    def _check_texts(self) -> None:
        options = self.options
        for given, flag, why in (
            (options.max_batch_size > 1, "--max-batch-size", "texts are always joined"),
            (options.pad_mask, "--pad-mask", "texts are always joined"),
            (options.variable_weights, "--variable-weights", "texts remember what weights made of them"),
        ):
            if given:
                raise ConfigError(f"{self.job.model}: {flag} is for models of tensors: {why}")
        _check_folder(self.job, options.texts)


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


def group_of(job: Job, progress: Progress | None = None, variable: Sequence[str] = ()) -> Group:
    """Starts the ranks of a model of tensors. ``progress``: may end the start by raising; ``variable``: the
    weights that may be replaced."""
    with opened(job, world_size(job)) as model:
        return start_group(job, model, progress, variable)


def variable_names(job: Job, said: Sequence[str]) -> list[str]:
    """The weights that may be replaced, by their names or patterns of them. Raises `ConfigError`."""
    if not any(WILD & set(name) for name in said):
        return list(said)
    if job.model is None or job.model.suffix != ".onnx":
        raise ConfigError(
            f"--variable-weights: patterns are for a model file (.onnx), not for {job.model}: give names"
        )
    import onnx

    from ranks.models.model_file import read

    kinds = onnx.TensorProto
    real = {kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE}
    names = [item.name for item in read(job.model).graph.initializer if item.data_type in real]
    found: dict[str, None] = {}
    for pattern in said:
        fits = fnmatch.filter(names, pattern) if WILD & set(pattern) else [pattern]
        if not fits:
            raise ConfigError(
                f"--variable-weights: {quote(pattern)} fits none of the {len(names)} weights of {job.model}"
            )
        found.update(dict.fromkeys(fits))
    return list(found)


def language_model(job: Job, texts: Path | None, progress: Progress | None = None) -> LanguageModel:
    """Starts the ranks of a language model. ``progress``: may end the start by raising."""
    assert job.model is not None
    groups: list[Group] = []
    folder = read_folder(job.model, texts)

    @contextlib.contextmanager
    def started(path: Path) -> Iterator[Program]:
        own = replace(job, model=path, sums=job.sums or "auto")
        if len(folder.parts) > 1:
            own = with_logs(own, job.logs.of_one(folder.name_of(path)))
        with opened(own, world_size(own) or 1) as model, start_group(own, model, progress) as group:
            groups.append(group)
            yield program_of(group)

    made = assemble(folder, started)
    made.groups = groups
    return made


def _apart(job: Job, names: Collection[str]) -> Mapping[str, str] | str:
    """Why rows of a model are not computed apart along the first axes of these inputs and outputs. Where they
    are: the symbols that must be sums of others for that."""
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
    return found.lengths if other is None else f"the batch is not the first axis of {other!r}"


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


def name_of(path: Path) -> str:
    """The name under which a model is served where nobody says another one."""
    return path.resolve().stem or "model"


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
    found, versions = {}, {}
    for offer in made:
        job = offer.job
        if alike[job.log_dir] > 1:
            job = with_logs(job, job.logs.of_one(offer.name))
        own = replace(offer, job=job)
        found[offer.name] = own.made(limits, metrics)
        if (others := own.versions(limits, metrics)) is not None:
            versions[offer.name] = others
    return Repository(found, versions=dict(versions))


def weight_folders(made: Sequence[Offer]) -> dict[str, Path]:
    """Where new weights of the models may be taken from, by name. Raises `ConfigError`."""
    found = {offer.name: path for offer in made if (path := offer.options.weights_from) is not None}
    for path in found.values():
        if not path.is_dir():
            raise ConfigError(f"--weights-from {path}: expected a folder, found none")
    return found
