"""Prepared weights on disk, which all sessions that need them map and so hold in memory once.

ONNX Runtime maps external data (a private mapping, of which a process copies only what it writes: nothing),
so that sessions of any number of processes share the pages of a file. That covers packed weights if the file
holds them. So a session's graph is optimised once and written with its packed weights (`prepare`), and every
session, the first one too, opens what was written.

Nothing stays in memory after the last process: pages of a file are the page cache's.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort

from ranks.cache import place, weight_entries
from ranks.cache.folder import ELSEWHERE, cache_folder, locked
from ranks.cache.limit import bound, limit_of
from ranks.common import settings
from ranks.common.waiting import HeldError
from ranks.devices.providers import CPU
from ranks.errors import ModelError, WeightsError
from ranks.models.content import size_of
from ranks.sessions import arena, session
from ranks.sessions.session import SessionConfig
from ranks.weights.prepared.keys import key_of
from ranks.weights.prepared.pages import give_back_memory, populate
from ranks.weights.prepared.prepare import prepare
from sharding.common.storage import what_to_do

log = logging.getLogger(__name__)


class Store:
    """A folder of prepared weights.

    ``limit``: the most bytes that it may take (None: no limit), or that the whole cache folder may take where
    it is a part of one, ``cache``. ``read_only``: nothing is prepared; what is not there is an error.
    """

    providers: tuple[str, ...] = (CPU,)
    """What sessions run on that find their weights here."""

    def __init__(
        self,
        folder: Path,
        limit: int | None = None,
        *,
        cache: Path | None = None,
        read_only: bool = False,
    ) -> None:
        self.folder = folder
        self.cache = cache
        self.limit = limit
        self.read_only = read_only
        self._opened: dict[str, None] = {}
        self._reasons: dict[str, str] = {}

    @property
    def opened(self) -> tuple[str, ...]:
        """Keys of all entries that were opened here, in order."""
        return tuple(self._opened)

    def reason(self, key: str) -> str:
        """Why the weights of a key that was to be opened were not kept."""
        return self._reasons.get(key, "what was kept is damaged")

    def key(self, model: bytes | Path, config: SessionConfig) -> str:
        """The key of a model's prepared weights. Raises `ModelError` where the model cannot be read."""
        return key_of(model, config)

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """A session over the prepared weights of a model, which are made if they are not there.

        ``what`` names the model in errors. Where weights cannot be kept (no space, a graph that ONNX Runtime
        cannot write) the session has its own. Raises `ModelError`, and `WeightsError` where the store is
        read-only and lacks them.
        """
        config = replace(config, store=None)
        if not self.read_only and (why := self.too_large(model, what)):  # to hash it may take hours
            log.info("%s: prepared weights in %s cannot be used: %s", what, self.folder, why)
            return session.create_plain(model, config, what)
        try:
            key = self.key(model, config)
        except ModelError:
            if self.read_only:
                raise
            return session.create_plain(model, config, what)  # says better what is wrong with the model
        try:
            found = self._open_entry(key, config, what)
            if found is None and not self.read_only:
                self._make(key, model, config, what)
                found = self._open_entry(key, config, what)
        except HeldError as problem:  # it goes on with weights of its own
            log.warning("%s is loaded without its prepared weights: %s", what, problem)
            self._reasons[key], found = str(problem), None
        except OSError as problem:
            log.info("%s: prepared weights in %s cannot be used: %s", what, self.folder, problem)
            self._reasons[key] = in_words(problem)
            found = None
        if found is not None:
            self._opened[key] = None
            return found
        if self.read_only:
            raise WeightsError(f"the prepared weights of {what} ({key}) are not in {self.folder}.")
        return session.create_plain(model, config, what)

    def too_large(self, model: bytes | Path, what: str) -> str:
        """Why no entry can ever hold the weights of a model; "" where one may, and where there are entries of
        a file of this name, or of parts of one, which were made under another limit: it may lie elsewhere."""
        if self.limit is None or (size := size_of(model)) <= self.limit:
            return ""
        name = Path(what).name
        made = [entry.what for entry in weight_entries.listing(self.folder) if not entry.refused]
        if any(Path(other).name == name for other in made):
            return ""
        return f"they have {size} bytes, and the cache may take {self.limit} (SHARDRUN_CACHE_LIMIT)"

    @contextlib.contextmanager
    def pin(self, keys: Iterable[str]) -> Iterator[None]:
        """Holds entries, so that nobody throws them out. Raises `WeightsError` where one is not there."""
        with contextlib.ExitStack() as stack:
            for key in keys:
                taken = weight_entries.take(self.folder, key)
                if taken is None:
                    raise WeightsError(f"the prepared weights {key} are not in {self.folder}.")
                stack.callback(taken[1].close)
            yield

    def _open_entry(self, key: str, config: SessionConfig, what: str) -> ort.InferenceSession | None:
        taken = weight_entries.take(self.folder, key, check=not self.read_only)
        if taken is None:
            return None
        entry, pin = taken
        if entry.refused:
            self._reasons[key] = entry.refused
            return None
        graph = weight_entries.graph_of(self.folder, entry)
        opened: ort.InferenceSession | None = None
        if graph is not None:
            options = session.options_for(replace(config, folder=self.folder))
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            if not config.many and not arena.SHARED.items() <= config.entries.items():
                # With a memory pattern an arena keeps the first run's buffers beside the planned block, twice
                # what a run needs, in each process that shares the weights. It gains no time in one of them
                # (BERT-base, CPU time without to with: 0.99, 1.02, 0.99, 1.00 at sequence 1, 8, 32, 128).
                options.enable_mem_pattern = False
                # A buffer that ONNX Runtime plans to use again is held from its first use to its last, and so
                # across layers: BERT-base holds 8 MB at sequence 128, of which 4 are in use at one time. The
                # arena takes no longer (the same measure: 1.01, 1.00, 0.99, 0.99).
                options.enable_mem_reuse = False
            try:
                opened = session.create_plain(graph, config, what, options)
            except ModelError as problem:
                log.info("%s: %s", self.folder / key, problem)
        if opened is None:
            pin.close()
            if not self.read_only:
                self._say_damaged(what)
                weight_entries.remove(self.folder, key)
            return None
        weakref.finalize(opened, pin.close)
        give_back_memory()
        populate([blob.name for blob in entry.blobs])
        return opened

    @staticmethod
    def _say_damaged(what: str) -> None:
        log.warning("the prepared weights of %s were damaged and are made again", what)

    def _make(self, key: str, model: bytes | Path, config: SessionConfig, what: str) -> None:
        """Makes an entry, unless another process did so while this one waited for it. Raises `OSError`."""
        weight_entries.make_folders(self.folder)
        self._demand_space(model)
        with locked(self.folder / weight_entries.LOCKS / key[:2], config.timeout):
            if weight_entries.take(self.folder, key) is not None:
                return
            if weight_entries.is_there(self.folder, key):
                self._say_damaged(what)
            with weight_entries.workplace(self.folder) as work:
                try:
                    made = prepare(model, config, what, work)
                except (ModelError, WeightsError) as problem:
                    log.info("%s cannot be prepared: %s", what, problem)
                    weight_entries.refuse(self.folder, key, what, str(problem), work)
                    return
                weight_entries.publish(self.folder, key, what, made, work)
        if self.limit is not None and self.cache is not None:
            bound(self.cache, self.limit, keep=[key])
        elif self.limit is not None:
            weight_entries.throw_out(self.folder, self.limit, keep=[key])

    def _demand_space(self, model: bytes | Path) -> None:
        """Raises `OSError` where a model's prepared weights cannot fit: they take up to twice its size, and
        while they are made twice that."""
        import shutil

        expected = 2 * size_of(model)
        if self.limit is not None and expected > self.limit:
            raise OSError(
                errno.EDQUOT,
                f"{expected} bytes may be needed, and the cache may take {self.limit} (SHARDRUN_CACHE_LIMIT)",
            )
        if 2 * expected > (free := shutil.disk_usage(self.folder).free):
            raise OSError(errno.ENOSPC, f"{2 * expected} bytes may be needed, and {free} are free")


def default_store() -> Store | None:
    """The store in the cache folder; None where ``SHARDRUN_WEIGHTS`` is ``off`` or no folder can be used.

    ``SHARDRUN_CACHE_LIMIT`` gives the cache's size (`limit_of`). Raises `ShardrunError` for other values.
    """
    try:
        return needed_store()
    except WeightsError as problem:
        log.info("no prepared weights: %s", problem)
        return None


def needed_store() -> Store:
    """As `default_store`, but raises `WeightsError` with the reason where there is none."""
    if settings.weights() == "off":
        raise WeightsError("SHARDRUN_WEIGHTS is off.")
    cache = cache_folder()
    folder = place.place_of(cache, "weights")
    try:
        place.prepare(cache, "weights")
        weight_entries.make_folders(folder)
        return Store(folder, limit_of(folder), cache=cache)
    except OSError as problem:
        raise WeightsError(
            f"{folder} cannot be used ({in_words(problem)}): {what_to_do(problem, ELSEWHERE)}."
        ) from None


def in_words(problem: OSError) -> str:
    """What went wrong, and where."""
    said = problem.strerror or str(problem)
    return f"{said}: {problem.filename}" if problem.filename else said
