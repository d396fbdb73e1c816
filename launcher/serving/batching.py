"""Requests that differ only in the batch axis, joined for one run of the ranks and split again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from launcher.errors import ConfigError
from launcher.group.requests import PredictError
from launcher.serving.fair_queue import FairQueue
from ranks.common.tensors import OBJECT, unlike

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array


class Fed(Protocol):
    """A request with inputs by name."""

    feeds: Mapping[str, Array]


F = TypeVar("F", bound=Fed)


@dataclass(frozen=True)
class Padding:
    """Requests of different lengths: shorter ones are filled up with zeros, as the input ``mask`` says.
    ``axes``: which axes of inputs and outputs are as long as a request, by name."""

    mask: str
    axes: Mapping[str, Sequence[int]]

    def length(self, feeds: Mapping[str, Array]) -> int | None:
        """That of a request; None where its inputs do not agree, or do not say it."""
        found = {
            int(np.shape(value)[axis])
            for name, value in feeds.items()
            for axis in self.axes[name]
            if axis < np.ndim(value)
        }
        return found.pop() if self.mask in feeds and len(found) == 1 else None

    def leaves_some(self, feeds: Mapping[str, Array]) -> bool:
        """Whether the mask leaves something of each row. What models make of nothing depends on how long it
        is: often the mean of all that is masked."""
        return bool(np.asarray(feeds[self.mask]).any(axis=-1).all())

    def filled(self, name: str, value: Array, length: int) -> Array:
        """The values of an input, so long."""
        axes = self.axes[name]
        widths = [(0, length - size if at in axes else 0) for at, size in enumerate(np.shape(value))]
        return np.pad(value, widths)

    def cut(self, name: str, value: Array, length: int) -> Array:
        """The values of an output that are of a request of this length."""
        axes = self.axes[name]
        return value[tuple(slice(length if at in axes else None) for at in range(np.ndim(value)))]


@dataclass
class Batch(Generic[F]):
    """Requests that are computed in one run."""

    requests: list[F]
    padding: Padding | None = None

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
        padding, most = self.padding, max(self._lengths)

        def whole(name: str, value: Array) -> Array:
            return np.asarray(value) if padding is None else padding.filled(name, value, most)

        return {
            name: np.concatenate([whole(name, one.feeds[name]) for one in self.requests])
            for name in self.requests[0].feeds
        }

    @property
    def _lengths(self) -> list[int]:
        """Those of the requests; 0 where they are not filled up."""
        padding = self.padding
        return [0 if padding is None else padding.length(one.feeds) or 0 for one in self.requests]

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
        found: list[Mapping[str, Array]] = [
            {name: part[at] for name, part in parts.items()} for at in range(len(self.requests))
        ]
        if (padding := self.padding) is None:
            return found
        return [
            {name: padding.cut(name, value, length) for name, value in one.items()}
            for one, length in zip(found, self._lengths, strict=True)
        ]


def rows_of(request: Fed) -> int:
    """The length of the batch axis of a request."""
    return next((int(np.shape(value)[0]) for value in request.feeds.values() if np.ndim(value)), 1)


def _kind(request: Fed, padding: Padding | None) -> object:
    """What requests that are joined have in common; None where one cannot be joined."""
    arrays = {name: np.asarray(value) for name, value in request.feeds.items()}
    if (
        any(not array.ndim for array in arrays.values())
        or len({len(array) for array in arrays.values()}) != 1
    ):
        return None
    if padding is not None and (
        padding.length(request.feeds) is None or not padding.leaves_some(request.feeds)
    ):
        return None

    def shape(name: str, array: Array) -> tuple[int, ...]:
        open_axes = () if padding is None else padding.axes[name]
        return tuple(-1 if at in open_axes else size for at, size in enumerate(array.shape) if at)

    return tuple(sorted((name, str(array.dtype), shape(name, array)) for name, array in arrays.items()))


@dataclass(frozen=True)
class Batching:
    """How requests are joined. ``rows``: the most rows of a run, 1 for none; ``seconds``: how long the first
    waits for others."""

    rows: int = 1
    seconds: float = 0.0
    apart: Callable[[Collection[str]], Mapping[str, str] | str] = lambda names: {}
    """Says why rows of inputs and outputs of these names are not computed apart; where they are, which
    symbols must be sums of others for that."""
    mask: str = ""
    """The input that says what of a request is filled up; "" where none is."""
    padding: Padding | None = None
    inputs: Sequence[TensorSpec] = ()
    sums: Mapping[str, str] = field(default_factory=dict)

    def checked(self, model: Computes) -> Batching:
        """The same for a model that is there. Raises `ConfigError` where its requests cannot be joined."""
        if self.rows == 1:
            return self
        specs = (*model.inputs, *model.optional_inputs, *model.outputs)
        for spec in specs:
            if not spec.shape or isinstance(spec.shape[0], int):
                raise ConfigError(
                    f"--max-batch-size: {spec.name!r} is {spec}, whose first axis is no open batch: requests "
                    "of this model cannot be joined"
                )
        sums = self.apart([spec.name for spec in specs])
        if isinstance(sums, str):
            raise ConfigError(f"--max-batch-size: requests cannot be joined, for {sums}")
        padding = _padding(self.mask, model) if self.mask else None
        if padding is not None:
            _prove(padding, model)
        inputs = [*model.inputs, *model.optional_inputs]
        return replace(self, padding=padding, inputs=inputs, sums=sums)

    def _kind(self, request: Fed) -> object:
        """What requests that are joined have in common; None where one cannot be joined. Rows are computed
        apart for inputs only that are as long as their symbols say."""
        given = [spec for spec in self.inputs if spec.name in request.feeds]
        if unlike(given, [np.shape(request.feeds[spec.name]) for spec in given], self.sums):
            return None
        return _kind(request, self.padding)

    def _fits(self, batch: Batch[F], kind: object, room: int, request: F) -> bool:
        if self._kind(request) != kind or rows_of(request) > room:
            return False
        if self.padding is None:
            return True
        # No more is filled up than there was.
        sizes = [(self.padding.length(one.feeds) or 0, rows_of(one)) for one in (*batch.requests, request)]
        longest = max(length for length, _ in sizes)
        own = sum(length * count for length, count in sizes)
        return longest * sum(count for _, count in sizes) <= 2 * own

    async def fill(self, batch: Batch[F], queue: FairQueue[F], *, wait: bool = True) -> None:
        """Adds requests that fit the first of the batch. ``wait``: also those that come in time."""
        kind = self._kind(batch.requests[0]) if self.rows > 1 else None
        if kind is None:
            return
        count, until = batch.rows, time.monotonic() + self.seconds * wait
        while count < self.rows:
            room = self.rows - count
            more = queue.take_if(functools.partial(self._fits, batch, kind, room))
            if more is not None:
                batch.requests.append(more)
                count += rows_of(more)
                continue
            left = until - time.monotonic()
            if left <= 0 or len(queue):  # who is next does not fit
                break
            await queue.some(left)


class Computes(Protocol):
    """What is used of a group."""

    inputs: list[TensorSpec]
    optional_inputs: list[TensorSpec]
    outputs: list[TensorSpec]

    def predict(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs."""


def _padding(mask: str, model: Computes) -> Padding:
    """Which axes are as long as a request: those that have the name of the mask's second one. Raises
    `ConfigError`."""
    inputs = [*model.inputs, *model.optional_inputs]
    found = next((spec for spec in inputs if spec.name == mask), None)
    if found is None:
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise ConfigError(f"--pad-mask {mask}: the model has no such input: expected one of {names}")
    if len(found.shape) != 2 or not isinstance(found.shape[1], str):
        raise ConfigError(f"--pad-mask: expected an input of [batch, length], both open, found {found}")
    symbol = found.shape[1]
    for spec in (*inputs, *model.outputs):
        if spec.shape[0] == symbol:
            raise ConfigError(
                f"--pad-mask: {spec.name!r} is {spec}: expected the batch first, which is not {symbol!r}"
            )
        other = [size for size in spec.shape[1:] if not isinstance(size, int) and size != symbol]
        if other or spec.open_rank:
            raise ConfigError(
                f"--pad-mask: {spec.name!r} is {spec}: expected no open axes but the batch and {symbol!r}"
            )
        if spec.dtype.kind in "OUS" and symbol in spec.shape:
            raise ConfigError(f"--pad-mask: {spec.name!r} is {spec}: texts cannot be filled up")
    return Padding(
        mask,
        {
            spec.name: [at for at, size in enumerate(spec.shape) if size == symbol]
            for spec in (*inputs, *model.outputs)
        },
    )


@dataclass
class _Sample:
    feeds: Mapping[str, Array]


_LENGTHS, _ALIKE = (9, 4, 1), 1e-5


def _prove(padding: Padding, model: Computes) -> None:
    """Has the model compute requests of several lengths alone and joined. Raises `ConfigError` where they
    differ by more than `_ALIKE` of the largest number, and what ranks raise that are lost."""
    random = np.random.default_rng(0)

    def value(spec: TensorSpec, length: int) -> Array:
        # The first axis is the batch, and all other open ones are as long as a request.
        rest = [size if isinstance(size, int) else length for size in spec.shape[1:]]
        shape = [1, *rest]
        if spec.name == padding.mask:
            return np.ones(shape, spec.dtype)
        if spec.dtype.kind in "OUS":
            return np.full(shape, "a", OBJECT)
        made = random.normal(size=shape) if spec.dtype.kind in "fcV" else random.integers(0, 2, shape)
        return np.asarray(made).astype(spec.dtype)

    samples = [_Sample({spec.name: value(spec, length) for spec in model.inputs}) for length in _LENGTHS]
    if padding.mask not in samples[0].feeds:
        raise ConfigError(f"--pad-mask {padding.mask}: expected an input that no request may leave out")
    joined = Batch(samples, padding)
    try:
        together = joined.split(model.predict(joined.feeds()))
        for sample, found in zip(samples, together, strict=True):
            for name, alone in model.predict(sample.feeds).items():
                if not _alike(found[name], alone):
                    raise ConfigError(
                        f"--pad-mask {padding.mask}: requests cannot be filled up, for that changes the "
                        f"output {name!r}: the mask does not keep zeros out of all that is computed"
                    )
    except PredictError as error:
        raise ConfigError(f"--pad-mask {padding.mask}: a trial of it failed: {error}") from None


def _alike(found: Array, alone: Array) -> bool:
    if found.shape != alone.shape:
        return False
    if alone.dtype.kind not in "fcV":
        return bool((found == alone).all())
    far = np.abs(found.astype(np.float64) - alone.astype(np.float64)).max(initial=0)
    return bool(far <= _ALIKE * np.abs(alone.astype(np.float64)).max(initial=0))
