"""State: what a model is given back of its own outputs with the next step.

A pair is an input and an output: keys and values so far, the hidden state of a recurrent network, the last
samples that a convolution saw. `sharding.slices.state_search` finds them; here they are written, and read
strictly. Imports only the standard library and `sharding.common`: every rank reads pairs while it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sharding.slices.manifest_fields import Field
from sharding.slices.placement import Split, parse_placement

METADATA = "shardrun.state"
"""The key of a rank model's metadata with its pairs."""
LOGITS_FROM = "shardrun.logits_from"
"""An optional input of a language model: the first position of which logits are wanted."""
KINDS = ("append", "replace", "once")
LONGEST_STATE = 1 << 16
"""More pairs than this are refused where they are read."""

Shape = Sequence["int | str | None"]
Tensor = tuple[str, str, "Shape | None"]
"""Name, element type, lengths of the axes (None: their number is not known)."""


@dataclass(frozen=True)
class StatePair:
    """An input and the output that is its value in the next step."""

    input: str
    output: str
    axis: int | None = None
    """The axis that grows by the new positions with each step; None: the same shape in each step, or any."""
    kind: str = "replace"
    """``append``: the output is the input with new positions at the end of ``axis``; ``replace``: a new
    value; ``once``: computed in the first step, and the same from then on."""
    buffer: bool = False
    """Whether the operator that reads the input takes a longer buffer than is filled, and may write into
    it."""
    placement: str = "replicated"
    """How ranks hold input and output alike, printed as in `sharding.slices.placement`."""


def to_json(pairs: Iterable[StatePair]) -> list[dict[str, str | int | bool | None]]:
    """The pairs as plain JSON values."""
    return [asdict(pair) for pair in pairs]


def metadata_text(pairs: Iterable[StatePair]) -> str:
    """The pairs as the text of a rank model's metadata."""
    return json.dumps(to_json(pairs), ensure_ascii=False)


def parse_metadata(text: str, where: str) -> tuple[StatePair, ...]:
    """The pairs of a rank model's metadata; ``where`` names the file in errors (`ShardError`)."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text
    return read_pairs(Field(where, METADATA, data))


def read_pairs(item: Field) -> tuple[StatePair, ...]:
    """Reads pairs strictly. Raises `ShardError`."""
    if isinstance(item.value, list) and len(item.value) > LONGEST_STATE:
        raise item.error(f"a list of at most {LONGEST_STATE} pairs", f"{len(item.value)} of them")
    pairs = tuple(map(_read_pair, item.items()))
    for key in ("input", "output"):
        names = [str(getattr(pair, key)) for pair in pairs]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise item.error(f"pairs of which each has another {key}", twice)
    return pairs


def _read_pair(item: Field) -> StatePair:
    keys = {"input", "output", "axis", "kind", "buffer", "placement"}
    if set(item.mapping()) != keys:
        raise item.error(f"an object with the keys {', '.join(sorted(keys))}", sorted(item.mapping()))
    kind = item.text("kind")
    if kind not in KINDS:
        raise item["kind"].error(f"one of {', '.join(KINDS)}", kind)
    axis = None if item["axis"].value is None else item["axis"].integer(0)
    if (axis is not None) != (kind == "append"):
        raise item["axis"].error("an axis where the kind is append, else null", axis)
    placement = item["placement"].placement()
    if placement == "partial":
        raise item["placement"].error('a placement such as "replicated" or "split:1"', placement)
    return StatePair(item.text("input"), item.text("output"), axis, kind, item["buffer"].boolean(), placement)


def check_pairs(
    item: Field,
    pairs: Sequence[StatePair],
    inputs: Mapping[str, Shape | None],
    outputs: Mapping[str, Shape | None],
    world: int,
) -> None:
    """Raises `ShardError` for pairs that are not of these inputs and outputs (name to whole shape, None where
    the number of axes is not known), or that so many ranks cannot hold as they say."""
    for pair, where in zip(pairs, item.items(), strict=False):
        for key, name, known in (("input", pair.input, inputs), ("output", pair.output, outputs)):
            if name not in known:
                raise where[key].error(f"the name of one of the model's {key}s", name)
            shape = known[name]
            if pair.axis is not None and shape is not None and pair.axis >= len(shape):
                raise where["axis"].error(f"an axis of {name!r}", pair.axis)
            if not _divides(pair.placement, shape, world):
                raise where["placement"].error(f"parts of {name!r} for {world} ranks", pair.placement)


def _divides(text: str, shape: Shape | None, world: int) -> bool:
    """Whether so many ranks can hold a value of this shape so."""
    placement = parse_placement(text)
    if not isinstance(placement, Split):
        return True
    length = shape[placement.axis] if shape is not None and placement.axis < len(shape) else None
    if not isinstance(length, int) or world % placement.copies:
        return False
    return length % (placement.parts(world) * placement.blocks) == 0


def placed(pair: StatePair, placement: object) -> StatePair:
    """The pair as ranks hold it."""
    return replace(pair, placement=str(placement))
