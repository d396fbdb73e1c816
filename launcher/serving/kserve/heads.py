"""Heads of binary requests that came before: clients send the same one again and again, and to read it takes
longer than to read its tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from launcher.serving.bodies import field_of, object_of
from launcher.serving.kserve.tensors import Question, declared, from_bytes, json_length, question_of
from launcher.serving.refusals import RefusalError

if TYPE_CHECKING:
    from sharding.common.arrays import Array, DType

_KNOWN, _LONGEST = 64, 1 << 10
"""How many are known, and how long those are at most."""
_MET = 1 << 12
"""Of so many that came, the last ones, is remembered that they came."""


class _Place(NamedTuple):
    """Where a tensor lies in what follows a head."""

    name: str
    dtype: DType
    shape: list[int]
    size: int
    where: str


class _Known(NamedTuple):
    """What a head says. ``question``: without tensors."""

    question: Question
    places: list[_Place]
    size: int


def question_known(data: bytes, header: str | None) -> Question | None:
    """The request in a body; ``header``: the value of `tensors.HEADER`. None for one that is to be read, or
    refused, in full. Raises `RefusalError` for tensors that are none."""
    length = None if header is None else json_length(header, len(data))
    if length is None or length > _LONGEST:
        return None
    head = data[:length]
    # What comes once, as with an id of its own, is not worth the room, nor to be read here and in full.
    known = _known(head) if next(_before(hash(head))) else None
    if known is None or known.size != len(data) - length:
        return None
    feeds, rest, at = {}, memoryview(data), length
    for name, dtype, shape, size, where in known.places:
        feeds[name] = from_bytes(rest[at : at + size], dtype, shape, where)
        at += size
    outputs, binary = known.question.outputs, known.question.binary
    return Question(feeds, outputs, known.question.id, binary, known.question.parameters)


@functools.lru_cache(_MET)
def _before(head: int) -> Iterator[int]:
    """How often a head of this hash has come, one more each time; one is taken for another without harm."""
    return itertools.count()


@functools.lru_cache(_KNOWN)
def _known(head: bytes) -> _Known | None:
    places: list[_Place] = []

    def read(item: Mapping[str, object], where: str) -> Array:
        shape, dtype, parameters = declared(item, where)
        size = field_of(parameters, "binary_data_size", int, f"{where}parameters.")
        places.append(_Place(cast("str", item["name"]), dtype, shape, -1 if size is None else size, where))
        if "data" in item or places[-1].size < 0:
            raise RefusalError(HTTPStatus.BAD_REQUEST, "it is to be read in full")
        return np.empty(0)

    try:
        return _Known(question_of(object_of(head), read), places, sum(place.size for place in places))
    except RefusalError:
        return None
