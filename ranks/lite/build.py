"""From a model's path and a context to a model that runs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.cache import locks
from ranks.common.notice import warn_once, warn_user
from ranks.devices.providers import CPU
from ranks.errors import IdentityError, ModelError, ShardrunError, WeightsError
from ranks.lite.built import Built
from ranks.lite.options import config, precision_options
from ranks.lite.options.content import content_of
from ranks.lite.options.context import Context
from ranks.lite.options.errors import as_runtime_error
from ranks.lite.options.targets import place, target_of
from ranks.lite.options.types import ModelType
from ranks.run.placement import Placement
from ranks.weights.shared.request import Attach, Share
from sharding.common import limits
from sharding.common.bounds import MAX_THREADS
from sharding.common.encryption import ENCRYPTED, Key
from sharding.slices.cut_short import WHOLE_FILES

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.identity.place import Identity
    from ranks.lite.membership import Sharing
    from ranks.precision.request import Precision
    from ranks.run.rank_model import RankModel
    from ranks.weights.prepared.store import Store

_FIRST_ARENA = 1 << 20  # bytes of the arena where nobody said how much the models need


@dataclass(frozen=True)
class Recipe:
    """What it takes to load the model, and to load it again with other dimensions."""

    path: Path
    placement: Placement
    threads: int | None
    cores: tuple[int, ...]
    identity: Identity | None
    entries: Mapping[str, str] = field(default_factory=dict)
    """Further options of the sessions, by ONNX Runtime's keys."""
    """See `ranks.sessions.session.SessionConfig`."""
    store: Store | None = None
    """Where the sessions find their weights prepared; None: as the number of ranks and the size decide."""
    variable_weights: tuple[str, ...] = ()
    """See `ranks.lite.options.variable_options`."""
    precision: Precision | None = None
    """In which types nodes compute that are to compute in others than the model's."""
    given: Path | None = None
    """What the caller gave, where ``path`` was made of it."""

    def load(self, dims: Mapping[str, Sequence[int | str | None]] | None = None) -> RankModel:
        """Loads the model; ``dims`` are other shapes than the file's, by input name."""
        from ranks.run import executor

        with _on_cores(self.cores):
            return executor.load(
                self.path,
                communicator=self._group(),
                threads=self.threads,
                placement=self.placement,
                dims=dims,
                variable_weights=self.variable_weights,
                precision=self.precision,
                options=executor.LoadOptions(self.entries, self.store, given=self.given),
            )

    def _group(self) -> Communicator | None:
        """The group that the script named, if the model needs one; None leaves it to the environment."""
        if self.identity is None or self.identity.world_size == 1:
            return None
        if not is_cut(self.path):
            # A plain model under a rank table runs by itself: waiting for peers would be for nothing.
            return None
        from ranks.devices import devices
        from ranks.run import group

        device = devices.DEVICES.get(self.placement.providers[0])
        return group.join(self.identity, device=device.buffers if device else "cpu")


def is_cut(path: Path) -> bool:
    """Whether ``path`` is one rank's part of a model, or stands for such parts: a pattern, a slice folder."""
    from ranks.models import model_file, pattern

    if pattern.is_pattern(path) or (shard := model_file.find(path)).manifest is not None:
        return True
    if not model_file.may_have_collectives(shard.path):
        return False
    from ranks.models.part import is_part
    from ranks.sessions.nodes import has_collectives

    model = model_file.read(shard.path)
    return has_collectives(model) or is_part(model)


Planner = Callable[[ModelType, Context, config.Options], Recipe]


@locks.keeping
def build(  # noqa: PLR0917 - the first five are the caller's own arguments
    path: str,
    model_type: ModelType,
    context: Context,
    config_path: str,
    config_dict: object,
    sharing: Sharing | None = None,
    *,
    request: Share | Attach | None = None,
    key: tuple[bytes, str] | None = None,
) -> Built:
    """Reads the configuration, decides device and group, and loads the model.

    ``sharing``: what the model shares with the others of its `ModelGroup`; ``key``: of an encrypted file, and
    how it is encrypted; ``request``: what to share or attach to, instead of what the configuration says.
    Raises `TypeError` for a ``config_dict`` of other types, else errors that are both `ShardrunError` and
    `RuntimeError`.
    """
    options = config.load(config_path, config_dict)
    if request is not None and options.sharing is not None:
        called, keys = ("share_weights", "pids=") if isinstance(request, Share) else ("attach", "its handle")
        warn_user(
            "shareable_weight_pid_list and shareable_weight_mem_handle of the configuration have no effect: "
            f"{called} goes by what it was given ({keys})."
        )
    options = replace(options, sharing=request or options.sharing)
    try:
        if key is not None:
            return _decrypted(path, model_type, context, options, sharing, key)
        with WHOLE_FILES:
            return _plain(plan(path, model_type, context, options), options, sharing)
    except ShardrunError as error:
        raise as_runtime_error("build_from_file failed!", error) from error


def _plain(recipe: Recipe, options: config.Options, sharing: Sharing | None) -> Built:
    if sharing is not None:
        recipe = joined(recipe, sharing)
    if options.sharing is None:
        return Built(recipe.load, recipe.load())
    from ranks.models.imported import naming

    with naming(recipe.path, recipe.given or recipe.path):
        return _together(recipe, options.sharing)


@contextlib.contextmanager
def planner(path: str, key: tuple[bytes, str] | None) -> Iterator[Planner]:
    """`plan` of a file as a function of the other arguments. With a key it is encrypted: what the recipe
    loads is plain on the disk inside only, and its weights are kept in no cache."""
    if key is None:
        yield functools.partial(plan, path)
        return
    from ranks.models import imported
    from ranks.weights.shared.owned import NoStore

    if content_of(path) != ENCRYPTED:
        raise ModelError(f"{path} is no encrypted MindIR file, but dec_key was given: leave it out.")
    with imported.decrypted(path, Key(*key)) as file:

        def planned(model_type: ModelType, context: Context, options: config.Options) -> Recipe:
            recipe = plan(str(file), model_type, context, options)
            return replace(recipe, given=Path(path), store=NoStore())

        yield planned


def _decrypted(  # noqa: PLR0917 - what `build` was given
    path: str,
    model_type: ModelType,
    context: Context,
    options: config.Options,
    sharing: Sharing | None,
    key: tuple[bytes, str],
) -> Built:
    """The model of an encrypted file."""
    if options.sharing is not None:
        raise WeightsError(
            f"{path} is encrypted, so its weights are not shared with other processes: what is shared lies "
            "in the cache folder, where the plain weights would stay. If they may, convert it with `shardrun "
            "convert --dec-key-file FILE` and share the ONNX file."
        )
    from ranks.models.imported import naming

    file = Path(path).absolute()  # to load it again from another folder, too

    def load(dims: Mapping[str, Sequence[int | str | None]] | None = None) -> RankModel:
        with naming(file, path), planner(str(file), key) as planned:
            recipe = replace(planned(model_type, context, options), given=Path(path))
            if sharing is not None:
                recipe = joined(recipe, sharing)
            return recipe.load(dims)

    return Built(load, load())


def _together(recipe: Recipe, request: Share | Attach) -> Built:
    """The model as the owner of its weights, or over those of another process."""
    from ranks.identity.identity import identify
    from ranks.weights.prepared.store import default_store
    from ranks.weights.shared import sharing

    def load(store: Store) -> RankModel:
        return replace(recipe, store=store).load()

    member = identify(recipe.identity) if is_cut(recipe.path) else None
    precision = recipe.precision
    options = {
        "variable_weights": recipe.variable_weights,
        "precision_mode": (precision.mode,) if precision and precision.mode else (),
        "execution_plan": tuple(f"{name}: {kind}" for name, kind in precision.plan) if precision else (),
    }
    use = sharing.Use(recipe.path, recipe.placement.in_words, recipe.placement.providers[0], member, options)
    if isinstance(request, Share):
        model, shared = sharing.share(request, use, load)
    else:
        model, shared = sharing.attach(request, use, load)
    # Other shapes make another model of it, which this process prepares itself; equal weights are one file.
    again = replace(recipe, store=default_store())
    return Built(again.load, model, shared=shared)


def plan(path: str, model_type: ModelType, context: Context, options: config.Options) -> Recipe:
    """Decides device, threads and group for the model at ``path``. Raises `ShardrunError`."""
    _check_content(_one_file(Path(path)), model_type)
    threads = context.cpu.thread_num or None
    if threads is not None and threads > MAX_THREADS:
        warn_once("threads", f"thread_num {threads} is too many, {limits.processors()} are used.")
        threads = limits.processors()
    identity = _explicit_identity(context, options.rank_table_file)
    if threads is None and identity is not None:
        from ranks.sessions.session import default_threads

        threads = default_threads(identity.local_size or identity.world_size)
    target = target_of(context)
    precision_options.warn_of_others(target, options.precision_modes)
    asked = precision_options.asked(context, target, options.precision_modes, options.execution_plan)
    placement = place(context, asked, options.engine_cache)
    precision = precision_options.left(target, placement, asked)
    cores = tuple(context.cpu.thread_affinity_core_list)
    from ranks.models.imported import as_onnx

    file = as_onnx(path)
    return Recipe(
        file.absolute(),
        placement,
        threads,
        cores,
        identity,
        variable_weights=options.variable_weights,
        precision=precision,
        given=None if file == Path(path) else Path(path),
    )


def _one_file(path: Path) -> Path:
    """The path itself, or a file that it stands for where it is a pattern."""
    from ranks.models import pattern

    if not pattern.is_pattern(path):
        return path
    return next(iter(pattern.files(path).values()), pattern.expand(path, 0))


def _check_content(path: Path, model_type: ModelType) -> None:
    """Refuses what cannot be read; warns of a type that the content is not, except ONNX under `MINDIR`.

    mindspore_lite scripts have no other type to give, so for them that is no mistake.
    """
    content = content_of(path)
    if content == "unknown":
        size = path.stat().st_size
        raise ModelError(
            f"{path} is no model: its {size} bytes are neither those of an ONNX file nor MindIR's."
            if size
            else f"{path} is an empty file, not a model."
        )
    if content == "onnx" and model_type is ModelType.MINDIR_LITE:
        warn_once(f"type:{path}", f"{path} is read as ONNX, which it is, and not as {model_type}.")


def _explicit_identity(context: Context, rank_table_file: str) -> Identity | None:
    """Who the script says this process is, by rank table and `context.ascend`, where no launcher says it."""
    from ranks.identity.identity import identify

    rank, device = context.ascend.chosen
    here = identify()
    if here.source != "single":
        if rank is not None and rank != here.rank:
            raise IdentityError(
                f"context.ascend.rank_id is {rank}, but this process was started as rank {here.rank} "
                f"(from {here.source}): take the rank from the launcher, or start the process without one."
            )
        return None
    if not rank_table_file:
        return None
    if rank is None and device is None:
        raise IdentityError(
            f"rank_table_file is {rank_table_file}, but nothing says which of its ranks this process is: "
            "set context.ascend.rank_id."
        )
    from ranks.identity.rank_file import identity_from_table

    if "\0" in rank_table_file:
        raise IdentityError("rank_table_file holds a zero byte, which no path can.")
    return identity_from_table(rank_table_file, rank, device)


@contextlib.contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Threads made inside may use ``cores`` only: threads inherit the affinity of their maker."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if not before.issuperset(cores):
        warn_once(
            f"cores:{cores}",
            f"thread_affinity_core_list {list(cores)} is not applied: this process may use the cores "
            f"{sorted(before)}.",
        )
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def joined(recipe: Recipe, sharing: Sharing) -> Recipe:
    """The recipe of a group's model, with which it shares what the group shares."""
    from ranks.sessions import arena
    from ranks.weights.prepared.store import default_store
    from ranks.weights.shared.owned import NoStore

    if recipe.placement.providers[0] != CPU:
        warn_once(
            "group:device",
            "Models of a ModelGroup share weights and workspace on the CPU; elsewhere each has its own.",
        )
        return recipe
    if sharing.workspace:
        arena.register(_FIRST_ARENA)
        recipe = replace(recipe, entries={**recipe.entries, **arena.WORKSPACE_ONLY})
    if isinstance(recipe.store, NoStore) and sharing.weights:
        warn_once(
            f"group:{recipe.given}",
            f"{recipe.given} is encrypted, so it shares no weights with its ModelGroup, which would keep "
            "them in plain in the cache folder.",
        )
    elif sharing.weights:
        store = default_store()
        if store is None:
            warn_once(
                "group:store",
                "The models of a ModelGroup do not share weights, for which the store of prepared weights is "
                "needed: SHARDRUN_WEIGHTS is off, or there is no cache folder that can be used (set "
                "SHARDRUN_CACHE to one).",
            )
        recipe = replace(recipe, store=recipe.store or store)
    return recipe
