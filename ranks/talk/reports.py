"""What a rank says of itself in the fields of its messages: JSON, which the launcher reads by these names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

WHOLE = "whole"
"""In the fields of a request that each rank gets with all its tensors; of any other rank 0 gets them."""


class TensorReport(TypedDict):
    """An input or output; ``dtype`` as `ranks.talk.wire` names types."""

    name: str
    dtype: str
    shape: list[int | str | None]
    open_rank: bool


class StatsReport(TypedDict):
    """Numbers of a loaded model: `ranks.run.rank_model.Stats`."""

    segments: int
    collectives: int
    weight_bytes: int
    communication_seconds: float
    segment_seconds: float
    waiting_seconds: float
    choosing_seconds: float


class More(TypedDict, total=False):
    """What changes of sequences take besides the sequence's number: see `ranks.state.session.Host.change`."""

    new: int
    length: int
    members: Sequence[Sequence[int]]


class Change(More):
    """A change to a sequence: the arguments of `ranks.state.session.Host.change`."""

    change: str
    number: int


class PairReport(TypedDict):
    """A `sharding.slices.state.StatePair`."""

    input: str
    output: str
    axis: int | None
    kind: str
    buffer: bool
    placement: str


class StateReport(TypedDict):
    """What the sessions of a model take; ``filled``: inputs that follow from a sequence's length."""

    pairs: list[PairReport]
    filled: list[str]


class TextReport(TypedDict):
    """A text so far, and how it goes on: what `ranks.tokens.chooser.Chooser` takes, ``options`` as JSON;
    ``prompt`` is empty where its tokens do not count."""

    options: dict[str, object]
    number: int
    ends: list[int]
    prompt: list[int]
    ids: list[int]


class AskReport(TypedDict):
    """What is wanted of logits instead of all of them: `ranks.tokens.wanted.Ask`. Of each row: how many of
    the best tokens, how many named besides, whether log-probabilities, and their slack; where tokens are
    drawn also temperature, top-p, min-p, and by how many random numbers."""

    output: str
    vocabulary: int
    every: bool
    rows: list[list[float]]


class RunReport(TypedDict):
    """Steps that the ranks make by themselves: the names of the input of ids and of the output of logits, how
    many ids there are, how many steps at most, how many until the launcher wants more, and the text that the
    tokens are chosen for."""

    tokens: str
    logits: str
    vocabulary: int
    most: int
    ahead: int
    text: TextReport


class WorkReport(TypedDict):
    """What a rank has done since it was ready, in seconds: computed, been in collectives, and waited for
    requests; and the bytes of the state of its sequences, and of its process in memory."""

    computing: float
    communicating: float
    waiting: float
    state_bytes: int
    memory_bytes: int


class WeightReport(TypedDict):
    """A weight that can be replaced; ``dtype`` as `ranks.talk.wire` names types."""

    name: str
    dtype: str
    shape: list[int]


class Ready(TypedDict):
    """What a rank has loaded, in its message that it is ready; ``cpus``: the processors that it may use, such
    as 0-3."""

    inputs: list[TensorReport]
    optional_inputs: list[TensorReport]
    outputs: list[TensorReport]
    stats: StatsReport
    collectives: str
    load_seconds: float
    cpus: str
    variable: list[WeightReport]
