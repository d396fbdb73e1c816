"""The sessions of a loaded model: sequences whose state stays on this rank between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from ranks.errors import CollectiveError, ShardrunError
from ranks.run.steps.likeliest import Asked, Shared, telling
from ranks.run.steps.runner import Steps
from ranks.run.steps.shown import Rows, shown
from ranks.state import feeds as known_feeds
from ranks.state import pairs as state_pairs
from ranks.state.parts import part
from ranks.state.rows import Row, merged
from ranks.state.sequence import SequenceState, Slot
from ranks.state.session import Host, Known, Wish
from ranks.tokens.wanted import SHOWN, Ask

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ranks.common.tensors import TensorSpec
    from ranks.run.steps.again import Again
    from ranks.run.steps.copies import Copies, Owners
    from ranks.run.steps.parts import Parts
    from ranks.talk.reports import More
    from ranks.weights.updated.variable import VariableWeights
    from sharding.common.arrays import Array
    from sharding.slices.state import StatePair


_LOST = {
    "open": "The sequence could not be opened",
    "fork": "The sequence could not be copied",
    "rewind": "The sequence could not be rewound",
    "merge": "The batch could not be made",
    "close": "The sequence could not be closed",
}
"""What to say where a change fails."""
Shown = Callable[["dict[str, Array]", ShardrunError | None], "dict[str, Array]"]
Step = Callable[[int, "dict[str, Array]", "Asked | None"], "dict[str, Array]"]


@dataclass(frozen=True)
class Stateful:
    """What it takes to run a rank's model step by step."""

    steps: Steps
    parts: Parts
    pairs: tuple[StatePair, ...]
    specs: Mapping[str, TensorSpec]
    """The inputs of the rank's own model, by name: state has its local shape."""
    sizes: Mapping[str, int]
    """`ranks.state.pairs.head_sizes` of the rank's model."""
    shown: Shown | None = None
    """Gives each rank the outputs of all stages, where a model has several."""
    copies: Copies | None = None
    """The copies of the model that share rows, where there are several."""
    defaults: Mapping[str, Array] = field(default_factory=dict)
    """What optional inputs are where a step does not give them, as far as the steps do not know it."""

    @classmethod
    def of(
        cls,
        parts: Parts,
        pairs: tuple[StatePair, ...],
        specs: Mapping[str, TensorSpec],
        weights: VariableWeights | None,
    ) -> Stateful:
        """Over the sessions of a rank's model; ``weights``: the variable ones, of which each step has one
        version."""
        if weights is not None:
            from ranks.weights.updated.bound import BoundWeights

            parts = replace(parts, weights=BoundWeights(weights))
        sizes = state_pairs.head_sizes(parts.cut.model, pairs)
        return cls(Steps(parts, pairs), parts, pairs, specs, sizes)


class Sequences:
    """Open sequences, by the number that whoever opened them gave them."""

    def __init__(self, model: Stateful) -> None:
        self._model = model
        self._open: dict[int, SequenceState | None] = {}
        """None: no step was made yet, or all rows lie on other copies of the model."""
        self._owners: dict[int, Owners] = {}
        """Where a model has several copies: which has each row of a sequence that has made a step."""
        held = {pair.output for pair in model.pairs if pair.output in model.parts.cut.outputs}
        self._held = [pair for pair in model.pairs if pair.output in held]
        self._buffered = any(pair.buffer for pair in self._held)
        self._host: _Host | None = None
        self.choosing_seconds = 0.0
        """What it took to choose tokens, but for `Steps.choosing_seconds`."""
        self._failed: dict[int, str] = {}
        self._expected: dict[int, int] = {}
        """How many positions a sequence will have, where whoever opened it said so."""
        states = {pair.input for pair in model.pairs}
        self.pairs, self.defaults = model.pairs, model.defaults
        self.fresh = [spec for name, spec in model.specs.items() if name not in states]
        self.filled = known_feeds.filled(self.fresh)
        """The inputs that follow from a sequence's length, which a step need not give."""
        self._batch_axes = {
            pair.input: state_pairs.batch_axis(model.specs[pair.input], self.fresh) for pair in self._held
        }

    def serve(self, inputs: Sequence[TensorSpec], optional: Sequence[TensorSpec], step: Step) -> Host:
        """What sessions of a model in this process run on; these are its whole inputs."""
        if self._host is None:
            self._host = _Host(self, Known(inputs, optional, self.pairs, [s.name for s in self.filled]), step)
        return self._host

    @property
    def apart(self) -> bool:
        """Whether some ranks have other layers of the model than others, or another copy of it."""
        return self._model.shown is not None

    @property
    def communication_seconds(self) -> float:
        """Seconds that this rank spent in collectives of steps so far."""
        return self._model.steps.communication_seconds

    @property
    def segment_seconds(self) -> float:
        """Seconds that this rank's sessions of ONNX Runtime ran in steps so far."""
        return self._model.steps.segment_seconds

    @property
    def waiting_seconds(self) -> float:
        """What of the time in collectives this rank waited for others, as far as they can tell."""
        return self._model.steps.waiting_seconds

    def chose(self) -> float:
        """Seconds that this rank spent in looking for the best tokens, and in choosing among them."""
        return self.choosing_seconds + self._model.steps.choosing_seconds

    def change(self, change: str, number: int, **more: Unpack[More]) -> None:
        """Opens (for ``length`` positions), copies (``new``), cuts back (``length``) or closes a sequence.

        Nobody waits for it. What fails is told by the sequence's next step: ranks that fail alike go on, and
        so do those of other stages and copies of the model, which hear of it.
        """
        try:
            if change == "open":
                self.open(number, more.get("length", 0))
            elif change == "fork":
                self.fork(number, more["new"])
            elif change == "rewind":
                self.rewind(number, more["length"])
            elif change == "merge":
                self.merge(number, more["members"])
            else:
                self.close(number)
        except Exception as error:
            if isinstance(error, ShardrunError):
                why = str(error)
            elif isinstance(error, MemoryError):
                why = f"{_LOST[change]}: {str(error) or 'there is no memory left'}."
            else:
                why = f"{_LOST[change]}: {type(error).__name__}: {error}."
            self._fail(more.get("new", number), why)

    def _fail(self, number: int, why: str) -> None:
        """Each step of this sequence from here on says why it cannot be made; its memory is free."""
        self._failed[number], self._open[number] = why, None

    def open(self, number: int, expected: int = 0) -> None:
        """A new sequence; its first step may give whole values of state inputs to start from. ``expected``:
        the positions for which room is made at once, where operators fill buffers in place."""
        self._open[number] = None
        if expected:
            self._expected[number] = expected

    def close(self, number: int) -> None:
        """Frees a sequence; one that is not open is let be."""
        for kept in (self._open, self._failed, self._owners, self._expected):
            kept.pop(number, None)

    def fork(self, number: int, new: int) -> None:
        """Makes ``new`` a copy of a sequence."""
        state = self._open[number]
        if number in self._owners:
            self._owners[new] = self._owners[number]
        if number in self._failed:
            self._fail(new, self._failed[number])
            return
        self._open[new] = state.fork() if state is not None else None

    def rewind(self, number: int, length: int) -> None:
        """Forgets the positions of a sequence from ``length`` on."""
        state = self._open[number]
        if length == 0:
            # As if it were new: its next step may give state to start from.
            self._open[number] = None
            for kept in (self._failed, self._owners):
                kept.pop(number, None)
        elif state is not None:
            state.rewind(length)

    def merge(self, number: int, members: Sequence[Sequence[int]]) -> None:
        """A sequence for a batch, of copies of rows: of which sequence, which row, and its length."""
        rows, copies = [], self._model.copies
        if copies is not None and all(source in self._owners for source, _, _ in members):
            # Before anything fails: all copies must know which of them say so.
            self._owners[number] = tuple(self._owners[source][row] for source, row, _ in members)
        for source, row, length in members:
            state = self._open[source]
            if source in self._failed:
                self._fail(number, self._failed[source])
                return
            if copies is not None and source in self._owners:
                if self._owners[source][row] != copies.here:
                    continue
                row = copies.mine(self._owners[source]).index(row)  # noqa: PLW2901 - its place here
            if state is None:
                raise ShardrunError("A session joins a batch after its first step.")
            rows.append(Row(state, row, length))
        longest = max(length for _, _, length in members)
        self._open[number] = None
        if rows:
            self._open[number] = merged(rows, self._batch_axes, self._model.parts.memory, longest)

    def nbytes(self, number: int) -> int:
        """Bytes of a sequence's state on this rank."""
        state = self._open[number]
        return state.nbytes if state is not None else 0

    @property
    def held(self) -> int:
        """Bytes of the state of all sequences on this rank."""
        return sum(state.nbytes for state in self._open.values() if state is not None)

    def step(self, number: int, feeds: Mapping[str, Array], asked: Asked | None = None) -> dict[str, Array]:
        """One step of a sequence: the outputs that are no state, by name.

        ``feeds``: all inputs that are neither state nor filled in here (`ranks.state.feeds`). Every rank of
        the model makes the same call. ``asked``: as `Steps.run`; not `apart` only what is `Shared`.
        """
        copies, shown, owners = self._model.copies, self._model.shown, self._owners.get(number)
        if shown is None:
            return self._one_step(number, feeds, None, asked)
        shared = asked if isinstance(asked, Shared) else None  # of others, not all would hear what was found
        if copies is None:
            return self._one_step(number, feeds, partial(_hear, shown, shared), shared)
        if owners is None:
            owners = copies.owners(feeds)
        else:
            copies.check(owners, feeds)
        together = partial(copies.together, owners=owners, asked=shared)
        if mine := copies.mine(owners):
            own = shared.of(mine, len(owners)) if shared is not None else None
            results = self._one_step(number, copies.cut(feeds, owners), together, own, owners)
        else:
            results = together({}, None)
        self._owners[number] = owners
        return results

    def again(self, number: int, feeds: Mapping[str, Array]) -> Again | None:
        """Further steps of a sequence with the same feeds, where they are like the one before."""
        state = self._open.get(number)
        if self.apart or state is None:
            return None
        return self._model.steps.again(state, feeds, self.filled)

    def _one_step(
        self,
        number: int,
        feeds: Mapping[str, Array],
        shown: Shown | None,
        asked: Asked | Shared | None = None,
        owners: Owners | None = None,
    ) -> dict[str, Array]:
        """A step of the rows that this copy of the model has. The state changes only where no rank fails."""
        steps, state = self._model.steps, self._open[number]
        results: dict[str, Array] = {}
        failure: ShardrunError | None = None
        found = known_feeds.size(feeds)
        try:
            if number in self._failed:
                raise ShardrunError(self._failed[number])
            if state is None:
                states = {pair.input for pair in self._model.pairs}
                initial = {name: array for name, array in feeds.items() if name in states}
                feeds = {name: array for name, array in feeds.items() if name not in states}
                state = self._begin(feeds, initial)
                state.expected = self._expected.get(number, 0)
            given = known_feeds.fill(self.filled, feeds, state.length)
            if self._buffered:
                known_feeds.check_masks(given, state.length)
            if self._model.copies is not None and owners is not None:
                self._model.copies.check_lengths(owners, given, state.length)
            count = found[1] if found is not None else 0
            results = steps.run(state, given, count, asked)
            if shown is not None:
                results = telling(results, cast("Shared | None", asked))
        except CollectiveError:
            raise
        except ShardrunError as error:
            if shown is None:
                raise
            failure = error
            steps.fail(str(error))
        if shown is not None:
            try:
                results = shown(results, failure)
            except BaseException:
                if state is not None:
                    state.abandon()
                raise
        assert state is not None
        state.commit(found[1] if found is not None else 0)
        self._open[number] = state
        return results

    def _begin(self, feeds: Mapping[str, Array], initial: Mapping[str, Array]) -> SequenceState:
        model = self._model
        asked = [pair for pair in self._held if pair.input not in initial]
        shapes = state_pairs.first_shapes(asked, model.specs, model.sizes, self.fresh, feeds)
        first = {}
        for pair in self._held:
            array = initial.get(pair.input)
            if array is None:
                continue
            if model.parts.group is not None:
                array = part(array, pair, model.parts.group.rank, model.parts.group.size)
            shapes[pair.input] = array.shape
            first[pair.input] = model.parts.memory.allocate(
                array.shape, model.parts.elements[pair.input] or 0
            )
            model.parts.memory.load(first[pair.input], array)
        least = state_pairs.least_rooms(model.parts.cut.model)
        slots = [
            Slot(pair, model.parts.elements[pair.input] or 0, shapes[pair.input], least.get(pair.input, 0))
            for pair in self._held
        ]
        state = SequenceState(slots, model.parts.memory, first)
        lengths = {
            shapes[pair.input][pair.axis]
            for pair in self._held
            if pair.input in first and pair.axis is not None and pair.kind == "append"
        }
        if len(lengths) > 1:
            raise ShardrunError(
                f"The initial state has values of {sorted(lengths)} positions: give equal lengths."
            )
        state.length = lengths.pop() if lengths else 0
        return state


def _hear(
    shown: Shown, asked: Shared | None, results: dict[str, Array], failure: ShardrunError | None
) -> dict[str, Array]:
    """The outputs of all stages; what one of them tells of what is ``asked`` goes there."""
    found = shown(results, failure)
    told = found.pop(SHOWN, None)
    if asked is not None and told is not None:
        asked.hear([told])
    return found


class _Host:
    """Runs the steps of sessions in this process."""

    def __init__(self, sequences: Sequences, known: Known, step: Step) -> None:
        self.known = known
        self._sequences = sequences
        self._step = step

    def step(self, number: int, tensors: dict[str, Array], ask: Wish | None = None) -> dict[str, Array]:
        """As `ranks.state.session.Host.step`."""
        rows = None if ask is None else Rows(Ask.of(*ask.told()))
        return shown(self._step(number, tensors, rows), rows)

    def change(self, change: str, number: int, **more: Unpack[More]) -> None:
        """As `ranks.state.session.Host.change`."""
        while self.known.forgotten:
            self._sequences.close(self.known.forgotten.pop())
        self._sequences.change(change, number, **more)
