"""A session: one sequence whose state stays where the model runs. A step is given only what is new."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ranks.common.tensors import TensorSpec, checked_feeds
from ranks.errors import ShardrunError
from ranks.state.feeds import MASKS, ONE_LENGTH, POSITIONS, size
from sharding.slices.state import StatePair
from sharding.slices.state_names import TOKENS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ranks.talk.reports import AskReport, More
    from sharding.common.arrays import Array


INTERRUPTED = (
    "A step was interrupted, so that nobody knows how far its state is: open another session, and fork "
    "before what may be interrupted."
)


class Wish(Protocol):
    """What a step is asked for instead of an output, as `ranks.tokens.wanted.Ask`."""

    def told(self) -> tuple[AskReport, dict[str, Array]]:
        """How it travels: as JSON, and the tensors that go with it."""


class Host(Protocol):
    """What runs the steps of sessions: a model in this process, or the ranks of a group."""

    known: Known

    def step(self, number: int, tensors: dict[str, Array], ask: Wish | None = None) -> dict[str, Array]:
        """One step of a sequence: the outputs that are no state, by name. What ``ask`` says may come instead
        of one of them."""

    def change(self, change: str, number: int, **more: Unpack[More]) -> None:
        """Opens a sequence (for ``length`` positions, if that is known), makes another (``new``) a copy of
        it, rewinds it to a ``length``, closes it, or makes it of rows (``members``: sequence, row and length)
        of others ("merge")."""


class Known:
    """What all sessions of a model have in common."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        optional: Sequence[TensorSpec],
        pairs: Sequence[StatePair],
        filled: Sequence[str],
    ) -> None:
        """``inputs`` and ``optional``: those of the whole model; ``filled``: inputs that follow from how much
        has been read, which are filled in where a step leaves them out."""
        self.states = {pair.input: pair for pair in pairs}
        self.filled = frozenset(filled)
        self.replaced = [pair.input for pair in pairs if pair.kind == "replace"]
        wanted = [spec for spec in inputs if spec.name not in self.states]
        self.required = [spec for spec in wanted if spec.name not in filled]
        self.tokens = next((spec for spec in self.required if spec.name in TOKENS), inputs[0])
        """What has a step's new positions along axis 1."""
        self.batches = _batches(pairs, [spec for spec in wanted if spec.name in filled])
        """How sequences of different lengths lie in one batch: each from the front of a buffer ("buffer"),
        each at the end, behind padding ("pad"), or not at all ("")."""
        if self.required != [self.tokens]:  # such as types of tokens, which a batch is not given
            self.batches = ""
        self.others = [spec for spec in (*inputs, *optional) if spec not in self.required]
        self.numbers: Iterator[int] = itertools.count(1)
        self.forgotten: list[int] = []
        """Sessions that nobody closed and nobody has any more; the next step frees them."""


def _batches(pairs: Sequence[StatePair], filled: Sequence[TensorSpec]) -> str:
    growing = [pair for pair in pairs if pair.kind == "append"]
    masked = any(spec.name in MASKS for spec in filled)
    if not growing or not masked or any(spec.name in ONE_LENGTH for spec in filled):
        return ""
    placed = [spec for spec in filled if spec.name in POSITIONS]
    if any(len(spec.shape) < 2 for spec in placed):  # the same for each row
        return ""
    if all(pair.buffer for pair in growing):
        return "buffer"
    return "pad" if placed and not any(pair.buffer for pair in growing) else ""


class Session:
    """One sequence, or a batch of sequences of one length; `close` frees its state.

    ``length``: the positions read so far. Sessions of one model take turns, also from several threads.
    """

    def __init__(
        self,
        host: Host,
        parent: Session | None = None,
        member: tuple[int, int, int] | None = None,
        *,
        expected: int = 0,
    ) -> None:
        """``parent``: what to be a copy of; ``member``: a row of a batch to be a copy of; ``expected``: the
        positions that a new one will have, for which room is made at once."""
        self._host, self._known = host, host.known
        self._number = next(self._known.numbers)
        self.length: int = 0 if parent is None else parent.length
        self._begun: bool = parent is not None and parent._begun
        self._interrupted = False
        if member is not None:
            host.change("merge", self._number, members=[list(member)])
            self.length, self._begun = member[2], True
        elif parent is None:
            host.change("open", self._number, length=expected)
        else:
            host.change("fork", parent._number, new=self._number)
        # Garbage may be collected while a thread holds the host's lock: nothing is called from here.
        self._closer = weakref.finalize(self, self._known.forgotten.append, self._number)

    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """One step: the outputs that are no state, by name.

        ``feeds``: arrays for the inputs that are no state. Masks and positions may be left out: they are then
        those of a sequence without padding. The first step may give whole values of state inputs to start
        from. Raises `ShardrunError` for inputs that do not fit, and what the model's own prediction raises;
        the state is then what it was before.
        """
        return self.step(feeds, None)

    def step(self, feeds: Mapping[str, Array], ask: Wish | None) -> dict[str, Array]:
        """As `predict`; where the ranks can show what is asked for, it comes instead of its output."""
        self._check_open()
        if not isinstance(feeds, Mapping):
            raise ShardrunError(
                "Inputs are a mapping of names to arrays, such as {'input_ids': array}, but are "
                f"{type(feeds).__name__}."
            )
        known = self._known
        late = [name for name in feeds if name in known.states] if self._begun else []
        if late:
            raise ShardrunError(
                f"The state {late[0]!r} is kept by the session: only its first step may give it."
            )
        specs = [*known.required, *(spec for spec in known.others if spec.name in feeds)]
        tensors = checked_feeds(specs, feeds)
        try:
            results = self._host.step(self._number, tensors, ask)
        except ShardrunError:
            raise
        except BaseException:  # Ctrl-C: the ranks may finish the step, and nobody knows how far the state is
            self._interrupted = True
            self.close()
            raise
        self._begun = True
        found = size(tensors)
        self.length += found[1] if found is not None else 0
        for name, array in tensors.items():
            pair = known.states.get(name)
            if pair is not None and pair.kind == "append" and pair.axis is not None:
                self.length += array.shape[pair.axis]
                break
        return results

    def read(self, count: int) -> None:
        """Notes positions that whoever runs the steps has read without `predict`."""
        self.length += count

    @property
    def number(self) -> int:
        """What the host calls it."""
        return self._number

    def rewind(self, length: int) -> None:
        """Forgets all positions from ``length`` on; with 0 the session is as new, also without the state that
        its first step may have brought.

        Raises `ShardrunError` where that is no length of this session, or where the model's state has no
        positions to forget, as that of a recurrent model."""
        self._check_open()
        known = not isinstance(length, bool) and isinstance(length, int) and 0 <= length <= self.length
        if self._known.replaced and not (known and length in {0, self.length}):
            raise ShardrunError(
                f"This session cannot be rewound to {length!r}{self._reached}: each step replaces the state "
                f"{self._known.replaced[0]!r}. Fork the session before what may have to be undone, or rewind "
                "to 0."
            )
        if not known:
            raise ShardrunError(
                f"A session of {self.length} positions cannot be rewound to {length!r}: give 0 to "
                f"{self.length}."
            )
        self._host.change("rewind", self._number, length=length)
        self.length = length
        self._begun = self._begun and length > 0

    @property
    def _reached(self) -> str:
        """Of how many positions, where steps count any: frames of a streaming model are none."""
        return f" of {self.length} positions" if self.length else ""

    def fork(self) -> Session:
        """Another session that has read the same, and goes its own way from here on."""
        self._check_open()
        return Session(self._host, self)

    def close(self) -> None:
        """Frees the state. Safe to call twice."""
        if self._closer.detach() is not None:
            self._host.change("close", self._number)

    def _check_open(self) -> None:
        if self._interrupted:
            raise ShardrunError(INTERRUPTED)
        if not self._closer.alive:
            raise ShardrunError("This session is closed: open another one.")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
