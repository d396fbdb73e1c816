"""A decoder over anything that computes a graph: the state goes in and comes out with every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

import numpy as np

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.decoder import Arrays, Ids, Logits, Sequence, step_each
from launcher.generation.names import Names, find_states
from launcher.generation.scoring import NOTHING, Wants, whole
from ranks.common.tensors import TensorSpec
from ranks.state.feeds import FOLLOWING
from ranks.tokens.scores import Scores
from sharding.slices.state import LOGITS_FROM
from sharding.slices.state_names import is_next, outputs_for

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ranks.state.session import Host
    from sharding.common.arrays import Array
    from sharding.slices.state import StatePair

Compute = Callable[["Mapping[str, Array]"], "Mapping[str, Array]"]


class Ranks(Protocol):
    """Ranks that compute a graph, such as a `launcher.Group`."""

    @property
    def inputs(self) -> list[TensorSpec]: ...

    @property
    def optional_inputs(self) -> list[TensorSpec]: ...

    @property
    def outputs(self) -> list[TensorSpec]: ...

    @property
    def session_host(self) -> Host:
        """What sessions run on. Raises `ShardrunError` for a model without state."""

    def predict(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs, by name, for one set of inputs, by name."""


@dataclass(frozen=True)
class Program:
    """A graph that can be computed: its inputs by name to its outputs by name."""

    run: Compute
    inputs: Several[TensorSpec]
    outputs: Several[TensorSpec]
    group: Ranks | None = None
    """The ranks that compute it, where sessions are possible: they keep the state."""

    @property
    def pairs(self) -> Several[StatePair]:
        """The state that the ranks found in the graph."""
        return () if self.group is None else tuple(self.group.session_host.known.states.values())

    def takes(self, name: str) -> TensorSpec | None:
        """The input of this name."""
        return next((spec for spec in self.inputs if spec.name == name), None)


def graph_inputs(inputs: Several[TensorSpec], optional: Several[TensorSpec]) -> list[TensorSpec]:
    """What a step may be given. Which logits are computed is asked for only where sessions run the graph
    (`launcher.generation.resident`)."""
    return [spec for spec in (*inputs, *optional) if spec.name != LOGITS_FROM]


def program_of(group: Ranks) -> Program:
    """The graph that a group of ranks computes."""
    inputs = graph_inputs(group.inputs, group.optional_inputs)
    return Program(group.predict, inputs, group.outputs, group if _has_state(group) else None)


def _has_state(group: Ranks) -> bool:
    try:
        return bool(group.session_host.known.states)
    except (RankFailedError, LaunchError):
        raise
    except ShardrunError:  # recomputed, or carried along
        return False


class SaidOfDecoder(TypedDict, total=False):
    """What `StatefulDecoder` takes by name."""

    names: Names | None
    encoder_names: Names | None
    vocabulary: int | None
    """How many tokens there are, where the logits' shape does not say it."""
    context: int | None


class StatefulDecoder:
    """A decoder of which each step takes all state in, and gives it out.

    ``later`` is the graph for all steps but the first, where a model has two; ``encoder`` that of an
    encoder-decoder model.
    """

    def __init__(
        self,
        first: Program,
        later: Program | None = None,
        encoder: Program | None = None,
        **said: Unpack[SaidOfDecoder],
    ) -> None:
        self.names = said.get("names") or Names()
        self.first, self.later, self.encoder = first, later or first, encoder
        self.encoder_names = said.get("encoder_names") or Names()
        self.states = {
            id(program): find_states(self.names, program.inputs, program.outputs, program.pairs)
            for program in (self.first, self.later)
        }
        self.context = said.get("context")
        self.logits = self._logits(said.get("vocabulary"))
        self.vocabulary = self._vocabulary(said.get("vocabulary"))
        for program in {id(item): item for item in (self.first, self.later)}.values():
            self._check_inputs(program)

    def _logits(self, said: int | None) -> str:
        names = [spec.name for spec in self.first.outputs]
        if self.names.of("logits") in names:
            return self.names.of("logits")
        carried = {state.present for states in self.states.values() for state in states}
        others = [spec for spec in self.first.outputs if spec.name not in carried and len(spec.shape) == 3]
        if len(others) != 1:
            raise ConfigError(
                f"the model is no language model: expected an output {self.names.of('logits')!r} (batch, "
                f"tokens, vocabulary), found {', '.join(map(repr, names[:6]))}"
            )
        [found] = others
        last = found.shape[-1]
        few = isinstance(last, int) and said is not None and 2 * last < said  # a head may be a little shorter
        if few or ("hidden" in found.name.lower() and last != said):
            size = "" if said is None else f" of {said} tokens"
            raise ConfigError(
                f"the model gives no logits: its output {found.name!r} (shape {list(found.shape)}) holds no "
                f"number for each token of the vocabulary{size}; export the model with its head"
            )
        return found.name

    def _vocabulary(self, said: int | None) -> int:
        shape = next(spec.shape for spec in self.first.outputs if spec.name == self.logits)
        last = shape[-1] if shape else None
        if isinstance(last, int):
            return last
        if said is None:
            raise ConfigError(
                f"nothing says how many tokens there are: the output {self.logits!r} has the open shape "
                f"{list(shape)}, and no configuration beside the model has a vocab_size"
            )
        return said

    def _check_inputs(self, program: Program) -> None:
        """Raises `ConfigError` for inputs that nothing gives."""
        known = {state.past for state in self.states[id(program)]}
        known |= {self.names.of(what) for what in ("input_ids", *FOLLOWING)}
        if self.encoder is not None:
            known |= {self.names.of("encoder_hidden_states"), self.names.of("encoder_attention_mask")}
        missing = [spec.name for spec in program.inputs if spec.name not in known]
        if self.names.of("input_ids") not in [spec.name for spec in program.inputs]:
            raise ConfigError(
                f"the model is no decoder of tokens: expected an input {self.names.of('input_ids')!r}, found "
                f"{', '.join(repr(spec.name) for spec in program.inputs[:6])}"
            )
        if missing:
            raise ConfigError(
                f"the model's input {missing[0]!r} is none that generation knows: expected ids, mask, "
                "positions and state whose inputs are called past... and whose outputs present..., of the "
                "same type and number of axes"
            )
        self._check_given(program)

    def _check_given(self, program: Program) -> None:
        """Raises `ConfigError` for state of an encoder's output that no graph computes, such as that of more
        layers than the encoder was exported for."""
        made = [] if self.encoder is None else [spec.name for spec in self.encoder.outputs]
        made += [spec.name for spec in self.first.outputs if program is not self.first]
        for state in self.states[id(program)]:
            if state.cross and not state.present and not any(is_next(name, state.past) for name in made):
                wanted = next(outputs_for(state.past))[0]
                raise ConfigError(
                    f"the decoder's input {state.past!r} is computed from what an encoder gives, but no "
                    f"graph of the model does: expected an output {wanted!r}, found "
                    f"{', '.join(map(repr, made[:8])) or 'no encoder'}; export encoder and decoder together"
                )

    @property
    def rewinds(self) -> bool:
        """Recurrent state cannot."""
        return all(
            state.axis is not None for states in self.states.values() for state in states if not state.cross
        )

    @property
    def encoder_inputs(self) -> Several[TensorSpec]:
        """The encoder's inputs."""
        return [] if self.encoder is None else self.encoder.inputs

    def sequence(self, inputs: Arrays | None = None) -> Sequence:
        """A new sequence; the encoder runs here."""
        if self.encoder is None:
            return StatefulSequence(self, {}, {})
        return StatefulSequence(self, *self._encode(inputs or {}))

    def _encode(self, inputs: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        """What the decoder is given with each step, and the state that the encoder computed."""
        assert self.encoder is not None
        feeds = {
            spec.name: np.asarray(inputs[spec.name], spec.dtype)
            for spec in self.encoder.inputs
            if spec.name in inputs
        }
        mask = self.encoder.takes("attention_mask")
        if mask is not None and "attention_mask" not in feeds:
            shape = _shape_by_lengths(mask, self.encoder.inputs, feeds)
            if shape is not None:
                feeds["attention_mask"] = np.ones(shape, mask.dtype)
        encoded = self.encoder.run(feeds)
        pasts = [state.past for state in self.states[id(self.later)]]
        state = {past: array for past in pasts for name, array in encoded.items() if is_next(name, past)}
        given = {}
        hidden = self.encoder_names.tensors.get("encoder_hidden_states", "encoder_hidden_states")
        for name in (hidden, "last_hidden_state", self.encoder.outputs[0].name):
            if name in encoded:
                given[self.names.of("encoder_hidden_states")] = encoded[name]
                break
        if "attention_mask" in feeds:
            given[self.names.of("encoder_attention_mask")] = feeds["attention_mask"]
        return given, state

    def step_many(self, sequences: Several[Sequence], ids: Ids) -> list[Logits]:
        """One after another."""
        return step_each(sequences, ids)


def _shape_by_lengths(
    wanted: TensorSpec, specs: Several[TensorSpec], feeds: Mapping[str, Array]
) -> tuple[int, ...] | None:
    """The shape of what nobody gave, by the names that its lengths share with what was given: samples
    and frames of sound have masks as tokens do. None where these do not tell it."""
    known: dict[object, int] = {}
    for spec in specs:
        if spec.name in feeds:
            known.update(zip(spec.shape, feeds[spec.name].shape, strict=False))
    shape = [dim if isinstance(dim, int) else known.get(dim) for dim in wanted.shape]
    ids = feeds.get("input_ids")
    if None in shape or None in wanted.shape:
        return None if ids is None else ids.shape
    return tuple(length for length in shape if length is not None)


class StatefulSequence:
    """A sequence whose state is held here. Arrays are never changed, so that forks share them."""

    def __init__(self, decoder: StatefulDecoder, given: dict[str, Array], state: dict[str, Array]) -> None:
        self._decoder = decoder
        self._given = given
        self._start = state
        self._state = dict(state)
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return len(self._ids)

    def step(self, ids: Ids, *, every: bool = False) -> Logits:
        """Reads tokens; the logits of the last one, or of ``every`` one."""
        return whole(self.scores(ids, [None] * (len(ids) if every else 1), every=every))

    def scores(self, ids: Ids, wants: Wants, *, every: bool = False) -> list[Scores]:
        """As `launcher.generation.scoring.Scored.scores`."""
        states = self._decoder.states[id(self._decoder.later)]
        program = self._decoder.later if self._ids and states else self._decoder.first
        spec = program.takes(self._decoder.names.of("input_ids"))
        assert spec is not None
        if len(ids) > 1 and states and len(spec.shape) > 1 and spec.shape[1] == 1:
            return self._one_by_one(ids, wants if every else [*[NOTHING] * (len(ids) - 1), *wants])[
                -len(wants) :
            ]
        count = len(ids) if every else 1
        if states:
            rows = self._run(program, ids, len(self._ids), every, wants)
        else:
            rows = self._run(program, np.array([*self._ids, *ids.tolist()], np.int64), 0, every, wants)
        if len(rows) < count:  # the graph computes the last position's logits only
            assert every
            return self._one_by_one(ids, wants)
        self._ids += ids.tolist()
        return rows[len(rows) - count :]

    def _one_by_one(self, ids: Ids, wants: Wants) -> list[Scores]:
        return [self.scores(ids[k : k + 1], wants[k : k + 1])[0] for k in range(len(ids))]

    def _run(self, program: Program, ids: Ids, past: int, every: bool, wants: Wants) -> list[Scores]:
        """Computes a step. The state becomes that after it, unless logits of ``every`` token are missing.

        ``wants``: of the rows that are read; those before them may come as well."""
        decoder = self._decoder
        feeds = self._feeds(program, ids, past, every)
        states = decoder.states[id(program)]
        for state in states:
            feeds[state.past] = self._state.get(state.past, state.empty())
        outputs = program.run(feeds)
        logits = np.asarray(outputs[decoder.logits], np.float32)
        logits = logits.reshape(-1, logits.shape[-1])
        if logits.shape[-1] != decoder.vocabulary:
            raise ShardrunError(
                f"the model gave logits of {logits.shape[-1]} tokens, but its vocabulary has "
                f"{decoder.vocabulary}"
            )
        rows = [Scores(row) for row in logits[-len(wants) :]]
        if every and len(rows) < len(ids):
            return rows
        for state in decoder.states[id(decoder.later)]:
            # Of a graph without past inputs, the same names say which outputs are its state.
            name = state.present if state.present in outputs else None
            if state.cross and state.past in self._state:
                continue  # computed once
            if name is None:
                name = next((other for other in outputs if is_next(other, state.past)), None)
            if name is not None:
                self._state[state.past] = outputs[name]
        return rows

    def _feeds(self, program: Program, ids: Ids, past: int, every: bool) -> dict[str, Array]:
        """All inputs but state."""
        feeds = {}
        for what in ("input_ids", *FOLLOWING):
            spec = program.takes(self._decoder.names.of(what))
            if spec is None:
                continue
            if what == "input_ids":
                array = np.asarray(ids[None], spec.dtype)
            else:
                array = FOLLOWING[what](spec, 1, past, len(ids))
            if what == "num_logits_to_keep" and not every:
                array = np.ones_like(array)
            feeds[spec.name] = array
        feeds |= {name: array for name, array in self._given.items() if program.takes(name) is not None}
        return feeds

    def rewind(self, length: int) -> None:
        """Forgets tokens from ``length`` on."""
        if not 0 <= length <= len(self._ids):
            raise ConfigError(f"a sequence of {len(self._ids)} tokens cannot be rewound to {length}")
        if length == len(self._ids):
            return
        if length == 0:
            self._state = dict(self._start)
        else:
            if not self._decoder.rewinds:
                raise ConfigError("the model's state is recurrent: it cannot forget its last tokens")
            for state in self._decoder.states[id(self._decoder.later)]:
                if not state.cross:
                    self._state[state.past] = state.cut(self._state[state.past], length)
        del self._ids[length:]

    def fork(self) -> StatefulSequence:
        """An independent sequence that has read the same."""
        twin = StatefulSequence(self._decoder, self._given, self._start)
        twin._state, twin._ids = dict(self._state), list(self._ids)
        return twin

    def close(self) -> None:
        """Frees the state."""
        self._state = {}
