"""`ModelParallelRunner`: one copy of a model that many threads predict with at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ranks.cache import locks
from ranks.common import heap
from ranks.common.notice import deprecated, warn_user
from ranks.common.pool import Pool
from ranks.devices.providers import CPU
from ranks.errors import ModelError, ShardrunError
from ranks.lite.build import Planner, Recipe, is_cut, planner
from ranks.lite.built import Built
from ranks.lite.legacy_runner import RunnerConfig
from ranks.lite.model import Model
from ranks.lite.one_process import OneProcess
from ranks.lite.options import config
from ranks.lite.options.check import check_isinstance, decryption_key
from ranks.lite.options.content import is_there, not_there
from ranks.lite.options.context import Context
from ranks.lite.options.errors import as_runtime_error, runtime_error
from ranks.lite.options.parallel import Parallel
from ranks.lite.options.types import ModelType
from ranks.lite.tensor import Tensor, TensorMeta
from sharding.common import limits
from sharding.common.encryption import MODES

if TYPE_CHECKING:
    from ranks.lite.model import Data
    from ranks.run.rank_model import RankModel
    from sharding.common.arrays import Array

    Feeds = Mapping[str, Array]
    _Workers = Pool[RankModel, Feeds, list[Array]]

__all__ = ["ModelParallelRunner", "RunnerConfig"]

MOST_WORKERS = 1024
QUEUE_LIMIT = 1000


class ModelParallelRunner(OneProcess):
    """Serves predictions of many threads with ``context.parallel.workers_num`` workers over one copy of a
    model's weights, each worker with ``context.cpu.thread_num`` threads.

    Threads that call `predict` while all workers are busy wait, and are served in the order they came.
    """

    def __init__(self) -> None:
        self.model_path_ = ""
        self._model = Model()
        self._pool: _Workers | None = None

    def __str__(self) -> str:
        return f"model_path: {self.model_path_}."

    def build_from_file(
        self,
        model_path: str,
        context: Context | None = None,
        *,
        dec_key: bytes | None = None,
        dec_mode: str = MODES[0],
    ) -> None:
        """Loads a whole model, whose format its content says, and makes the workers.

        ``context`` defaults to the CPU. Of ``context.parallel``:

        - ``workers_num`` 0 is as many workers as there are cores for ``context.cpu.thread_num`` threads each;
          a ``thread_num`` of 0 shares the cores among the workers.
        - ``config_path`` and ``config_info`` are options as `ranks.lite.options.config` says (the latter
          wins), among them ``[parallel_runner] queue_limit``: how many predictions may wait, 1000 unless set.
        - ``device_ids``: on a GPU, worker ``i`` runs on ``device_ids[i % len(device_ids)]``.

        ``dec_key`` and ``dec_mode`` are of an encrypted MindIR file, as those of `Model.build_from_file`. Its
        weights are kept nowhere, so that workers of several threads have a copy each.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a `ShardrunError` too)
        where the model or the configuration cannot be read, the model is one rank's part of another, or the
        device cannot be served. What was built before then stays usable; after success, predictions that wait
        for the earlier model still get its answers.
        """
        failed = "ModelParallelRunner's build from file failed"
        _check_path(model_path, failed)
        context = Context() if context is None else context
        check_isinstance("context", context, Context)
        key = decryption_key(dec_key, dec_mode)
        self._build(model_path, context, context.parallel, failed, key)

    def init(self, model_path: str, runner_config: RunnerConfig | None = None) -> None:
        """Deprecated: `build_from_file`."""
        deprecated("init()", "build_from_file()")
        failed = "ModelParallelRunner's init failed"
        _check_path(model_path, failed)
        check_isinstance("runner_config", runner_config, RunnerConfig, none_allowed=True)
        given = Context() if runner_config is None else runner_config
        context = given if isinstance(given, Context) else given.context
        self._build(model_path, context, given.parallel, failed)

    def _build(
        self,
        model_path: str,
        context: Context,
        parallel: Parallel,
        failed: str,
        key: tuple[bytes, str] | None = None,
    ) -> None:
        options = config.load(parallel.config_path, parallel.sections)
        if options.sharing is not None:
            # Its workers have one copy already; that copy is not another process's.
            raise runtime_error(
                f"{failed}! Error is a ModelParallelRunner does not share weights with other processes: leave"
                " out shareable_weight_pid_list and shareable_weight_mem_handle."
            )
        if options.variable_weights:
            warn_user(
                "variable_weights_list and variable_weights_file have no effect in a ModelParallelRunner, "
                "whose weights stay as they are: to update them use Model, which threads may share, too."
            )
            options = replace(options, variable_weights=())
        try:
            with locks.collected() as kept, planner(model_path, key) as planned:
                workers, at_once = _workers(model_path, context, parallel, options, planned)
        except ShardrunError as error:
            raise as_runtime_error(f"{failed}!", error) from error
        limit = QUEUE_LIMIT if options.queue_limit is None else options.queue_limit
        self._pool = Pool(workers, _run, limit, at_once)
        pooled = _Pooled(workers[0], self._pool)
        pooled.kept = kept
        self._model = Model.over(pooled)
        self.model_path_ = model_path

    def get_inputs(self) -> list[Tensor]:
        """New tensors for the inputs, in order, as `Model.get_inputs`: each thread takes its own."""
        return self._model.new_inputs()

    def get_outputs(self) -> list[TensorMeta]:
        """What the model's outputs are, in order, as `Model.get_outputs`."""
        return self._model.get_outputs()

    def predict(
        self,
        inputs: Sequence[Data] | Data,
        outputs: Sequence[TensorMeta] | Data | None = None,
        *further: Data,
    ) -> list[Tensor]:
        """Runs the model as `Model.predict` does, when a worker is free; for any number of threads at once.

        Raises what `Model.predict` raises, and `ranks.errors.QueueFullError`, a `RuntimeError` too, where as
        many predictions wait already as may. An error is this caller's alone: others are served on.
        """
        return self._model.predict(inputs, outputs, *further)

    def close(self) -> None:
        """Frees the model when the last prediction that runs has ended; those that wait get an error.

        Also happens when the runner is no longer used; safe to call twice. It may be built again.
        """
        pool, self._pool, self._model = self._pool, None, Model()
        if pool is not None:
            pool.close()


class _Pooled(Built):
    """A loaded model whose runs take turns on the workers of a pool."""

    def __init__(self, model: RankModel, pool: _Workers) -> None:
        super().__init__(lambda _: model, model)
        self.run = pool.run  # type: ignore[assignment]  # the name of the argument differs


def _run(model: RankModel, feeds: Feeds) -> list[Array]:
    return model.run(feeds)


def _check_path(model_path: object, failed: str) -> None:
    check_isinstance("model_path", model_path, str)
    assert isinstance(model_path, str)
    if not is_there(model_path):
        raise runtime_error(f"{failed}, model_path does not exist! {not_there(model_path)}", ModelError)


def _workers(
    model_path: str,
    context: Context,
    parallel: Parallel,
    options: config.Options,
    planned: Planner,
) -> tuple[list[RankModel], int]:
    """What each worker runs: the same loaded model, as far as several threads can run it at once.

    And how many of them are worth running at once.
    """
    recipes = [planned(ModelType.MINDIR, one, options) for one in _per_device(context, parallel.device_ids)]
    first = recipes[0]
    if is_cut(first.path):
        raise ShardrunError(
            f"{model_path} is made for a group of ranks, which run each prediction together: use Model for "
            "it, and ModelParallelRunner for the whole model."
        )
    on_cpu = first.placement.providers[0] == CPU
    if on_cpu and parallel.device_ids:
        warn_user(f"device_ids {parallel.device_ids} have no effect on the CPU.")
        recipes = [first]
    cores = _cores()
    size, threads = sizes(
        parallel.workers_num, first.threads or 0, cores, devices=0 if on_cpu else len(recipes)
    )
    shared = size == 1 or threads == 1 or not on_cpu
    recipes = [replace(recipe, threads=threads) for recipe in recipes]
    if not shared:
        recipes = [_many(recipe, spin=size * threads <= cores) for recipe in recipes]
    return _load(recipes, size, shared=shared), limits.processors() if on_cpu else size


def _many(recipe: Recipe, *, spin: bool) -> Recipe:
    """The recipe for several sessions of one model: they have weights and the memory for buffers in common.

    Without ``spin`` a session's threads sleep at once when there is nothing to do: where threads are more
    than cores, those that wait by spinning are in the way of those that have work.
    """
    from ranks.sessions import arena
    from ranks.weights.prepared.store import default_store

    arena.register()
    entries = dict(arena.WORKSPACE_ONLY)
    if not spin:
        entries["session.intra_op.allow_spinning"] = "0"
    return replace(recipe, entries=entries, store=recipe.store or default_store())


def _load(recipes: Sequence[Recipe], size: int, *, shared: bool) -> list[RankModel]:
    """``size`` workers, on each recipe in turn; ``shared`` says that those of one recipe can be one."""
    loaded: list[RankModel] = []
    for index in range(size):
        earlier = loaded[index - len(recipes)] if index >= len(recipes) else None
        if earlier is not None and shared and earlier.concurrent:
            loaded.append(earlier)
        else:
            loaded.append(recipes[index % len(recipes)].load())
    heap.trim()
    return loaded


def _per_device(context: Context, device_ids: Sequence[int]) -> list[Context]:
    """The context, once for each device."""
    contexts = []
    for device_id in dict.fromkeys(device_ids):
        one = copy.copy(context)
        one.gpu, one.ascend = copy.copy(context.gpu), copy.copy(context.ascend)
        one.gpu.device_id = one.ascend.device_id = device_id
        contexts.append(one)
    return contexts or [context]


def sizes(workers: int, threads: int, cores: int, devices: int = 0) -> tuple[int, int]:
    """Workers and threads of each, where 0 leaves a number open: together they fill the ``cores``.

    Both open, each worker has one thread, which serves the most predictions per second. On ``devices`` that
    are not the CPU, an open number of workers is one on each.
    """
    if workers > MOST_WORKERS:
        raise ShardrunError(f"workers_num must be at most {MOST_WORKERS}, but is {workers}.")
    if threads == 0:
        threads = max(1, cores // workers) if workers and not devices else 1
    if workers == 0:
        workers = devices or min(max(1, cores // threads), MOST_WORKERS)
    return workers, threads


def _cores() -> int:
    """Cores for this process: its share where a launcher started several on this host."""
    from ranks.identity.identity import identify
    from ranks.sessions.session import default_threads

    identity = identify()
    return default_threads(identity.local_size or identity.world_size)
