"""Requests that differ only in the batch axis, joined for one run of the ranks and split again."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from launcher.errors import ConfigError
from launcher.group.requests import PredictError
from launcher.serving.fair_queue import FairQueue

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array


class Fed(Protocol):
    """A request with inputs by name."""

    feeds: Mapping[str, Array]


F = TypeVar("F", bound=Fed)


@dataclass
class Batch(Generic[F]):
    """Requests that are computed in one run."""

    requests: list[F]

    def drop(self, gone: Callable[[F], bool]) -> None:
        """Leaves those out that nobody waits for any more."""
        self.requests = [request for request in self.requests if not gone(request)]

    @property
    def rows(self) -> int:
        """Rows of all; 1 of a request alone that has no axis."""
        return sum(map(rows_of, self.requests))

    def feeds(self) -> Mapping[str, Array]:
        """The inputs of all."""
        if len(self.requests) == 1:
            return self.requests[0].feeds
        first = self.requests[0].feeds
        return {
            name: np.concatenate([np.asarray(one.feeds[name]) for one in self.requests]) for name in first
        }

    def split(self, outputs: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The outputs of each. Raises `PredictError` for outputs that have not one row for each."""
        if len(self.requests) == 1:
            return [outputs]
        for name, value in outputs.items():
            if np.shape(value)[:1] != (self.rows,):
                raise PredictError(
                    f"the output {name!r} of {self.rows} rows has the shape {list(np.shape(value))}"
                )
        ends = np.cumsum([rows_of(request) for request in self.requests])[:-1]
        parts = {name: np.split(value, ends) for name, value in outputs.items()}
        return [{name: part[at] for name, part in parts.items()} for at in range(len(self.requests))]


def rows_of(request: Fed) -> int:
    """The length of the batch axis of a request."""
    return next((int(np.shape(value)[0]) for value in request.feeds.values() if np.ndim(value)), 1)


def _kind(request: Fed) -> object:
    """What requests that are joined have in common; None where one cannot be joined."""
    arrays = {name: np.asarray(value) for name, value in request.feeds.items()}
    if (
        any(not array.ndim for array in arrays.values())
        or len({len(array) for array in arrays.values()}) != 1
    ):
        return None
    return tuple(sorted((name, str(array.dtype), array.shape[1:]) for name, array in arrays.items()))


def _fits(kind: object, room: int, request: Fed) -> bool:
    return _kind(request) == kind and rows_of(request) <= room


@dataclass(frozen=True)
class Batching:
    """How requests are joined. ``rows``: the most rows of a run, 1 for none; ``seconds``: how long the first
    waits for others."""

    rows: int = 1
    seconds: float = 0.0
    dependent: Callable[[Collection[str]], str | None] = lambda names: None
    """Says why rows of inputs and outputs of these names are not computed apart; None where they are."""

    def check(self, model: _Specs) -> None:
        """Raises `ConfigError` for a model whose requests cannot be joined."""
        if self.rows == 1:
            return
        specs = (*model.inputs, *model.optional_inputs, *model.outputs)
        for spec in specs:
            if not spec.shape or isinstance(spec.shape[0], int):
                raise ConfigError(
                    f"--max-batch-size: {spec.name!r} is {spec}, whose first axis is no open batch: requests "
                    "of this model cannot be joined"
                )
        if (why := self.dependent([spec.name for spec in specs])) is not None:
            raise ConfigError(f"--max-batch-size: requests cannot be joined, for {why}")

    async def fill(self, batch: Batch[F], queue: FairQueue[F], *, wait: bool = True) -> None:
        """Adds requests that fit the first of the batch. ``wait``: also those that come in time."""
        kind = _kind(batch.requests[0]) if self.rows > 1 else None
        if kind is None:
            return
        count, until = batch.rows, time.monotonic() + self.seconds * wait
        while count < self.rows:
            room = self.rows - count
            more = queue.take_if(functools.partial(_fits, kind, room))
            if more is not None:
                batch.requests.append(more)
                count += rows_of(more)
                continue
            left = until - time.monotonic()
            if left <= 0 or len(queue):  # who is next does not fit
                break
            await asyncio.sleep(min(left, 0.0005))


class _Specs(Protocol):
    inputs: list[TensorSpec]
    optional_inputs: list[TensorSpec]
    outputs: list[TensorSpec]
