"""A model as one rank has loaded it: run, its variable weights replaced, closed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import onnxruntime as ort

from ranks.cache import locks
from ranks.common import forks
from ranks.common.pulse import by_device, work
from ranks.common.tensors import TensorSpec, checked_feeds
from ranks.errors import ModelError, ShardrunError, WeightsError
from ranks.models import model_file
from ranks.sessions import empty
from ranks.sessions.session import reason

if TYPE_CHECKING:
    from ranks.run.program import Program
    from ranks.run.schedule import Schedule
    from ranks.run.steps.likeliest import Asked
    from ranks.run.steps.sequences import Sequences, Stateful
    from ranks.run.steps.whole_state import WholeState
    from ranks.sessions.idle import Idle
    from ranks.state.session import Host, Session
    from ranks.weights.updated.group import Together
    from ranks.weights.updated.values import Given, Spec
    from ranks.weights.updated.variable import VariableWeights
    from sharding.common.arrays import Array

    class Take(Protocol):
        """Makes a step."""

        def __call__(self, asked: Asked | None = None) -> dict[str, Array]: ...


class Stats(NamedTuple):
    """Figures of one loaded model; ``communication_seconds`` is the time spent in collectives so far. Of
    steps of sequences, ``segment_seconds`` is that in ONNX Runtime, ``choosing_seconds`` that for the choice
    of tokens, and ``waiting_seconds`` the part of collectives in which other ranks were waited for."""

    segments: int
    collectives: int
    weight_bytes: int
    communication_seconds: float
    segment_seconds: float = 0.0
    waiting_seconds: float = 0.0
    choosing_seconds: float = 0.0


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives. ``optional``: inputs that need not be fed; ``defaults``: what a program
    is then given."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    optional: Sequence[TensorSpec] = ()
    defaults: Mapping[str, Array] = field(default_factory=dict)


class RankModel:
    """One rank's model, loaded."""

    kept: Sequence[locks.Pin] = ()
    idle: Idle | None = None
    """Hears of each run, and gives buffers back where there is none; None where none can be given back."""
    on_device: bool = False
    """Whether a device computes it, and not the processors of this process."""
    never_empty: empty.Find = staticmethod(empty.nothing)
    """Finds the inputs' axes that must not be empty; in a group, the same on all ranks."""

    def __init__(
        self,
        path: Path,
        interface: Interface,
        *,
        session: ort.InferenceSession | None = None,
        program: Program | Schedule | WholeState | None = None,
        stats: Stats | None = None,
        weights: VariableWeights | None = None,
        together: Together | None = None,
        stateful: Callable[[], Stateful | None] | None = None,
    ) -> None:
        """``weights``: the variable weights; ``together``: those of a model that several ranks run;
        ``stateful``: makes what runs the model step by step, None where it has no state."""
        self.path = path
        self.given = path  # or the file that it was made of, which errors name
        self.inputs = interface.inputs
        self.outputs = interface.outputs
        self.optional_inputs = list(interface.optional)
        self._defaults = interface.defaults
        self._session = session
        self._program = program
        self._stats = stats
        self._weights = weights
        self._together = together
        self._stateful = stateful
        self._sequences: Sequences | None = None
        self._lock = threading.Lock()
        forks.in_child(self, RankModel._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    @work
    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Runs the model once; in a group every rank must call it, with the same feeds.

        ``feeds`` holds an array per input, and may hold one for each of ``optional_inputs``. Returns the
        outputs in the model's order, which the caller owns.
        Plain models may be run by several threads at once; others wait for one another.

        Raises `ShardrunError` for feeds that do not fit the inputs, `ModelError` where ONNX Runtime cannot
        compute, and the communicator's errors.
        """
        # What runs for each prediction calls as little as it can: that is a part of a tiny model's time.
        specs = self.inputs
        if self.optional_inputs:
            feeds = {**self._defaults, **feeds}
            specs = self._fed(feeds)
        given: Mapping[str, Array | ort.OrtValue] = (checked := checked_feeds(specs, feeds))
        empty.check(checked, self.never_empty)
        session, idle = self._session, self.idle  # another thread may close the model meanwhile
        if session is not None:
            if self._weights is not None:
                given = {**checked, **self._weights.snapshot().feeds}
            if idle is not None:
                idle.begin()
            try:
                if self.on_device:
                    return list(by_device(lambda: session.run(None, given)))
                return list(session.run(None, given))
            except Exception as error:
                raise ModelError(f"ONNX Runtime could not run {self.given}: {reason(error)}") from None
            finally:
                if idle is not None:
                    idle.end()
        with self._lock:
            program, arrays = self._program, list(checked.values())
            if program is None:
                raise ShardrunError(f"The model {self.given} is closed.")
            if idle is not None:
                idle.begin()
            try:
                return by_device(lambda: program.run(arrays)) if self.on_device else program.run(arrays)
            finally:
                if idle is not None:
                    idle.end()

    @property
    def sequences(self) -> Sequences:
        """The sequences of a model with state. Raises `ShardrunError` for a model without."""
        from ranks.run.steps.sequences import Sequences

        with self._lock:
            if self._sequences is not None:
                return self._sequences
            made = self._stateful() if self._stateful is not None else None
            if made is None:
                raise ShardrunError(
                    f"{self.given} has no state that one step leaves to the next, so it has no sessions: "
                    "none of its inputs is named and shaped like one of its outputs. Say it: --state IN=OUT."
                )
            self._sequences = Sequences(made)
            return self._sequences

    def session(self) -> Session:
        """A sequence whose state this object keeps from one step to the next; in a group every rank makes the
        same calls. Raises `ShardrunError` for a model without state."""
        from ranks.state.session import Session

        return Session(self.session_host)

    @property
    def session_host(self) -> Host:
        """What sessions and batches of the model run on."""
        sequences = self.sequences
        with self._lock:  # two hosts would give two sessions one number
            defaults = self._defaults.keys() | sequences.defaults.keys()
            optional = [spec for spec in self.optional_inputs if spec.name in defaults]
            return sequences.serve(self.inputs, optional, self.step)

    def _of_step(self, sequences: Sequences, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What a step is fed: ``feeds``, and the optional inputs that these lack."""
        fed = {**self._defaults, **sequences.defaults, **feeds}
        empty.check(fed, self.never_empty)
        return fed

    @work
    def step(self, number: int, feeds: Mapping[str, Array], asked: Asked | None = None) -> dict[str, Array]:
        """One step of an open sequence: the outputs that are no state, by name; a collective of the group.

        ``feeds``: the inputs that are no state, but for those that follow from the sequence's length
        (`ranks.state.feeds`). ``asked``: what may be enough instead of an output. Raises as `run` does.
        """
        sequences = self.sequences
        fed = self._of_step(sequences, feeds)
        with self._lock:
            if self._session is None and self._program is None:
                raise ShardrunError(f"The model {self.given} is closed.")
            with self.idle or contextlib.nullcontext():
                if self.on_device:
                    return by_device(lambda: sequences.step(number, fed, asked))
                return sequences.step(number, fed, asked)

    @contextlib.contextmanager
    def stepping(self, number: int, feeds: Mapping[str, Array]) -> Iterator[Take]:
        """What makes steps of an open sequence with the same feeds, in which other values may stand each
        time: each is a `step`. The model is not idle meanwhile."""
        from ranks.run.steps.again import Stepping

        sequences = self.sequences
        steps = Stepping(sequences, number, self._of_step(sequences, feeds))

        def take(asked: Asked | None = None) -> dict[str, Array]:
            with self._lock:
                if self._session is None and self._program is None:
                    raise ShardrunError(f"The model {self.given} is closed.")
                return steps.step(asked)

        with self.idle or contextlib.nullcontext():
            yield (lambda asked=None: by_device(lambda: take(asked))) if self.on_device else take

    def _fed(self, feeds: Mapping[str, Array]) -> list[TensorSpec]:
        """The inputs that ``feeds`` must hold: all but the optional ones that it lacks."""
        return self.inputs + [spec for spec in self.optional_inputs if spec.name in feeds]

    @property
    def weights(self) -> VariableWeights | None:
        """The variable weights of this rank's model; None where it was loaded without."""
        return self._weights

    @property
    def variable_names(self) -> frozenset[str]:
        """The variable weights by the names that `update_weights` takes."""
        if self._together is not None:
            return self._together.names
        return frozenset(self._weights.names) if self._weights is not None else frozenset()

    @property
    def variable_specs(self) -> dict[str, Spec]:
        """What `update_weights` takes, by name: types and shapes of the whole model."""
        if self._together is not None:
            return self._together.specs
        return dict(self._weights.specs) if self._weights is not None else {}

    @property
    def gives_parts(self) -> bool:
        """Whether `update_weights` sends rank 0's values to the others; else each rank must be given them."""
        return self._together is not None

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of all open sequences."""
        return self._sequences.held if self._sequences is not None else 0

    def update_weights(self, given: Given | Exception) -> int:
        """Replaces variable weights between two runs, all at once; returns the new version.

        ``given``: whole values by the names of the source model; an exception where the caller refuses them
        already, which is raised. In a group every rank must call it, and either rank 0 or every rank gives
        the values; where one rank refuses, all do. Raises `WeightsError`; nothing has changed then.
        """
        if self._together is not None:
            with self._lock:
                return self._together.update(given)
        if self._weights is None and not isinstance(given, TypeError):
            from ranks.weights.updated.values import NONE_MARKED

            raise WeightsError(NONE_MARKED)
        if isinstance(given, Exception):
            raise given
        assert self._weights is not None
        return self._weights.update(given)

    def share_weights_of(self, other: RankModel) -> None:
        """Uses the variable weights of another load of the same model from now on, with their values."""
        if other._weights is None or self._weights is None:
            return
        with self._lock:
            self._weights, self._together = other._weights, other._together
            for bound in self._program.all_weights() if self._program is not None else ():
                bound.weights = self._weights

    @property
    def stats(self) -> Stats:
        """Segments, collectives per inference, bytes of weights, seconds of communication."""
        if self._stats is None:
            self._stats = Stats(1, 0, model_file.weight_bytes(model_file.read(self.path)), 0.0)
        if self._program is None:
            return self._stats
        seconds, of = self._program.communication_seconds, self._sequences
        if of is None:
            return self._stats._replace(communication_seconds=seconds)
        return self._stats._replace(
            communication_seconds=seconds + of.communication_seconds,
            segment_seconds=of.segment_seconds,
            waiting_seconds=of.waiting_seconds,
            choosing_seconds=of.chose(),
        )

    @property
    def concurrent(self) -> bool:
        """Whether threads run the model at once, and do not wait for one another."""
        return self._session is not None

    @property
    def collectives(self) -> str:
        """The name of the backend that joins the segments; empty where nothing is exchanged."""
        return self._program.collectives if self._program is not None else ""

    def close(self) -> None:
        """Frees sessions and buffers; the communicator stays open. Safe to call twice."""
        with self._lock:
            self._session = self._program = None
            self._sequences = self._stateful = None
            self.idle = None
        self.kept = ()
