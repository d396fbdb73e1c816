"""Models on ranks that something else started, as their rank 0 has them: what a `Group` is to a launcher."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.group.group import sliced_for
from launcher.group.model import ReadyModel
from launcher.group.requests import PredictError
from launcher.group.serving.turns import Turns
from launcher.inspection.reference import refer
from launcher.job.start_arguments import RankArguments, Start, check_numbers, count_ranks
from ranks.collectives.broadcast import Spreader
from ranks.errors import CollectiveError, PeerLostError, is_usage
from ranks.run.led import FAILED, MISUSED, WELL, Leader, follow
from ranks.state.session import Known

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ranks.collectives.base import Communicator
    from ranks.run.rank_model import RankModel
    from ranks.state.session import Host, Wish
    from ranks.talk.reports import More
    from sharding.common.arrays import Array
    from sharding.demands.options import SliceOptions

PathLike = str | os.PathLike[str]
T = TypeVar("T")
_GRACE = 2.0
"""Seconds in which rank 0 says why it ends: mpirun may end it as soon as another rank has ended."""


class LedModel(ReadyModel):
    """One of the models that a leader has. Made by `launcher.lead`."""

    def __init__(self, leader: Leader, place: int = 0) -> None:
        model = leader.models[place]
        self.inputs, self.outputs = model.inputs, model.outputs
        self.optional_inputs = model.optional_inputs
        self._model = model.given
        self._leader, self._place = leader, place
        self._host: _LedHost | None = None
        self._lock = threading.Lock()
        self._turns = Turns()

    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs, by name. Calls from several threads take turns.

        Raises as `launcher.Group.predict` does; but after a Ctrl-C in the middle the ranks cannot be asked
        any more.
        """
        tensors = self._tensors(feeds)
        with _told():
            return self._leader.run(self._place, tensors)

    def submit(self, feeds: Mapping[str, Array], *, block: bool = True) -> Future[dict[str, Array]]:
        """As `launcher.Group.submit`; the ranks work on one request at a time. What still waits at the end of
        the work is cancelled."""
        work = functools.partial(self.predict, self._kept(feeds))
        return self._turns.submit(work, block=block)

    def _submit_unbounded(self, feeds: Mapping[str, Array]) -> Future[dict[str, Array]]:
        work = functools.partial(self.predict, self._kept(feeds))
        return self._turns.submit(work, block=True, bounded=False)

    def _kept(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Copies, for the caller may change the arrays from now on."""
        return {name: array.copy() for name, array in self._tensors(feeds).items()}

    def close(self, *, wait: bool = True) -> None:
        """Nothing more is asked. ``wait``: returns when what is asked now is answered."""
        self._turns.close(wait=wait)

    @property
    def session_host(self) -> Host:
        """What sessions and batches of them run on. Raises `ShardrunError` for a model without state."""
        self._check_open()
        with self._lock:  # two hosts would give two sessions one number
            if self._host is None:
                sequences = self._leader.models[self._place].sequences
                filled = [spec.name for spec in sequences.filled]
                known = Known(self.inputs, self.optional_inputs, sequences.pairs, filled)
                self._host = _LedHost(self._leader, self._place, known)
        return self._host

    @property
    def ended(self) -> bool:
        """Whether the ranks can be asked nothing more."""
        return self._leader.ended

    def _check_open(self) -> None:
        if self.ended:
            raise LaunchError("The ranks that this one led have ended: start the job anew.")


class _LedHost:
    """Runs the steps of sessions on all ranks."""

    def __init__(self, leader: Leader, place: int, known: Known) -> None:
        self.known = known
        self._leader, self._place = leader, place

    def step(self, number: int, tensors: dict[str, Array], ask: Wish | None = None) -> dict[str, Array]:
        """As `ranks.state.session.Host.step`. Raises as `LedModel.predict` does."""
        forgotten = self.known.forgotten
        while forgotten:
            self.change("close", forgotten.pop())
        with _told():
            return self._leader.step(self._place, number, tensors, ask)

    def change(self, change: str, number: int, **more: Unpack[More]) -> None:
        """As `ranks.state.session.Host.change`."""
        with _told():
            self._leader.change(self._place, change, number, **more)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors as a group tells them."""
    try:
        yield
    except PeerLostError as error:
        raise RankFailedError(str(error), rank=error.peer) from error
    except CollectiveError as error:
        raise RankFailedError(str(error)) from error
    except (LaunchError, PredictError):
        raise
    except ShardrunError as error:
        raise PredictError(str(error)) from error


def lead_models(
    communicator: Communicator,
    models: Sequence[RankModel],
    work: Callable[[Sequence[LedModel]], T],
    verb: str = "do its work",
) -> T | None:
    """Rank 0 of the group does the ``work``, for which all ranks run the ``models``; its result, or None on
    the other ranks. Every rank calls it with the same models in the same order.

    Raises what the work raises on rank 0; on the others `ConfigError` or `RankFailedError`, which say that
    rank 0 cannot ``verb``, and `CollectiveError` where the group breaks.
    """
    spreader = Spreader(communicator)
    if communicator.rank != 0:
        fate = follow(models, spreader)
        if fate != WELL:
            time.sleep(_GRACE)
            kind = ConfigError if fate == MISUSED else RankFailedError
            raise kind(f"rank 0 cannot {verb} (it says why)")
        return None
    leader = Leader(models, spreader)
    led = [LedModel(leader, place) for place in range(len(models))]
    try:
        try:
            result = work(led)
        except BaseException:
            for one in led:
                one.close(wait=False)
            raise
        for one in led:
            one.close()
    except BaseException as error:
        usage = isinstance(error, ShardrunError) and (isinstance(error, ConfigError) or is_usage(error))
        with contextlib.suppress(CollectiveError):
            leader.end(MISUSED if usage else FAILED)
        raise
    leader.end(WELL)
    return result


def lead_loaded(
    loaded: Sequence[tuple[Communicator, RankModel]],
    work: Callable[[Sequence[LedModel]], T],
    verb: str = "do its work",
) -> T | None:
    """`lead_models`, of models that `ranks.run.target.load` gave; they are closed then."""
    from ranks.run import group

    models = [model for _, model in loaded]
    try:
        return lead_models(loaded[0][0], models, work, verb)
    except BaseException:
        group.leave()  # whoever still waits for this rank need not wait for the end of its process
        raise
    finally:
        for model in models:
            model.close()


def lead(
    model: PathLike,
    work: Callable[[LedModel], T],
    *,
    options: SliceOptions | None = None,
    **named: Unpack[RankArguments],
) -> T | None:
    """In a script that mpirun, srun, torchrun or something else started once for each rank: rank 0 does the
    ``work``, which gets the model as all of them run it, and returns its result; the others run the model for
    it, and return None.

    The arguments are those of `launcher.start` that hold for each rank (`RankArguments`); the environment
    says how many ranks there are. Raises what the work raises, on the other ranks `RankFailedError` or
    `ConfigError` then, and what `launcher.start` raises for a model and arguments that do not fit.
    """
    from ranks.identity.identity import identify
    from ranks.run.executor import LoadOptions
    from ranks.run.target import load

    how = Start.asked("lead", RankArguments, options, named)
    how.check_target()
    identity = identify()
    how = replace(how, ranks=identity.world_size)
    check_numbers(how)
    path = Path(model)
    reference = refer(path)
    reference.check()
    size = count_ranks(reference, how)
    made = sliced_for(path, size, how) if reference.kind == "file" else path
    loaded = load(
        made.absolute(), identity, how.target,
        collectives=how.collectives, threads=how.threads, options=LoadOptions(timeout=how.seconds),
    )  # fmt: skip
    return lead_loaded([loaded], lambda led: work(led[0]))
