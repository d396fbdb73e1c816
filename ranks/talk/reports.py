"""What a rank says of itself in the fields of its messages: JSON, which the launcher reads by these names."""

from __future__ import annotations

from typing import TypedDict


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


class Ready(TypedDict):
    """What a rank has loaded, in its message that it is ready."""

    inputs: list[TensorReport]
    optional_inputs: list[TensorReport]
    outputs: list[TensorReport]
    stats: StatsReport
    collectives: str
    load_seconds: float
