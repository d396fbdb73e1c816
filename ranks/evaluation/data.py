"""Which array of the data is which input of the model, which is the label, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ranks.common.tensors import OBJECT, TensorSpec, as_text, is_extended, is_text
from ranks.evaluation.columns import Header, Shard, find_shards, readable
from ranks.evaluation.errors import EvaluationError
from sharding.common.arrays import Array
from sharding.common.text import did_you_mean

Feeds = dict[str, "Array"]
LABELS = ("label", "labels", "target", "targets", "y")
"""Names that an array of labels is known by, unless an input of the model has that name."""


@dataclass(frozen=True)
class Roles:
    """Input of the model -> array of the data, the array of labels, and arrays that nothing needs."""

    inputs: Mapping[str, str]
    label: str
    unused: tuple[str, ...] = ()


def assign(
    arrays: Sequence[str],
    specs: Sequence[TensorSpec],
    where: str,
    *,
    optional: Sequence[TensorSpec] = (),
    label: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Roles:
    """Finds the role of each array by its name.

    An input takes the array of its name, or the one that ``renamed`` gives it. The label is ``label``, else
    the one of `LABELS` that is there, else the only array left over. The only input of a model takes the only
    array left over, whatever its name. Raises `EvaluationError` where this says nothing.
    """
    renamed = dict(renamed or {})
    known = {spec.name: spec for spec in (*specs, *optional)}
    listed = ", ".join(map(repr, arrays)) or "no arrays"
    for name, array in renamed.items():
        if name not in known:
            hint = did_you_mean(name, known) or "."
            raise EvaluationError(
                f"the model has no input {name!r}: it has {', '.join(map(repr, known))}{hint}"
            )
        if array not in arrays:
            hint = did_you_mean(array, arrays) or "."
            raise EvaluationError(f"{where} has no array {array!r}: it has {listed}{hint}")
    inputs = {name: renamed.get(name, name) for name in known if renamed.get(name, name) in arrays}
    left = [name for name in arrays if name not in inputs.values()]
    if label is not None:
        if label not in arrays:
            hint = did_you_mean(label, arrays) or "."
            raise EvaluationError(
                f"{where} has no array {label!r} to take labels from: it has {listed}{hint}"
            )
    else:
        candidates = [name for name in left if name.lower() in LABELS]
        missing = any(spec.name not in inputs for spec in specs)
        if not candidates and not missing:
            candidates = left
        if len(candidates) != 1:
            raise EvaluationError(
                f"{where}: which array holds the labels? It has {listed}, and the model's inputs are "
                f"{', '.join(map(repr, known))}: name it with --label (in Python: label=...)."
            )
        label = candidates[0]
    left = [name for name in left if name != label]
    missing_names = [spec.name for spec in specs if spec.name not in inputs]
    if len(specs) == 1 and missing_names and len(left) == 1:
        inputs[missing_names[0]] = left.pop()
        missing_names = []
    if missing_names:
        raise EvaluationError(
            f"{where} has no array for the model's input {missing_names[0]!r}: it has {listed}; name arrays "
            "as inputs are named, or say --rename INPUT=ARRAY (in Python: rename={...})."
        )
    return Roles(inputs, label, tuple(left))


@dataclass(frozen=True)
class Batch:
    """Inputs by name, labels, and how many of the rows are samples (the rest repeats the last one)."""

    feeds: Feeds
    labels: Array
    samples: int


class Stored:
    """Data in files: how many samples, and their batches."""

    def __init__(
        self,
        path: Path,
        specs: Sequence[TensorSpec],
        *,
        optional: Sequence[TensorSpec] = (),
        label: str | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Reads what the files hold, but no data; checks all of it against the model's inputs.

        Raises `EvaluationError`.
        """
        self._shards = find_shards(path)
        first = self._shards[0]
        self.roles = assign(
            list(first.headers), specs, first.where, optional=optional, label=label, renamed=rename
        )
        self._specs = {spec.name: spec for spec in (*specs, *optional) if spec.name in self.roles.inputs}
        self._lengths = [self._check(shard) for shard in self._shards]
        self.samples = sum(self._lengths)
        if self.samples == 0:
            raise EvaluationError(f"{path} has no samples: its arrays have the length 0.")

    def _check(self, shard: Shard) -> int:
        """The number of samples in it."""
        for name in (*self.roles.inputs.values(), self.roles.label):
            if name not in shard.headers:
                raise EvaluationError(
                    f"{shard.where} has no array {name!r}, which {self._shards[0].where} has: parts of the "
                    "data must have the same arrays."
                )
        lengths: dict[str, int] = {}
        for name, spec in self._specs.items():
            header = shard.headers[self.roles.inputs[name]]
            _check_input(spec, header)
            if header.shape:
                lengths[self.roles.inputs[name]] = header.shape[0]
        label = shard.headers[self.roles.label]
        if not label.shape:
            raise EvaluationError(f"{label.where} is one number: expected a label for each sample.")
        lengths[self.roles.label] = label.shape[0]
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
            raise EvaluationError(
                f"{shard.where}: arrays have different numbers of samples (their first axis): {each}."
            )
        return label.shape[0]

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of ``size`` samples; the last of each file may have fewer."""
        names = sorted({*self.roles.inputs.values(), self.roles.label})
        for shard, length in zip(self._shards, self._lengths, strict=True):
            whole = {name for name in names if not shard.headers[name].shape}
            with shard.open(names) as columns:
                fixed = {name: np.asarray(columns.pop(name).take(1)) for name in whole}
                for start in range(0, length, size):
                    count = min(size, length - start)
                    rows = dict(fixed)
                    for name, column in columns.items():
                        with readable(shard.headers[name].where):
                            rows[name] = _native(column.take(count))
                    feeds = {
                        name: _as_input(rows[array], self._specs[name])
                        for name, array in self.roles.inputs.items()
                    }
                    yield Batch(feeds, rows[self.roles.label], count)


def given_batches(data: Iterable[object], specs: Sequence[TensorSpec]) -> Iterator[Batch]:
    """Batches from an iterable of (inputs, labels): inputs are an array, a sequence in the model's order, or
    a mapping of names. Raises `TypeError` for other items."""
    for index, item in enumerate(data):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(
                f"data must give pairs (inputs, labels), but item {index} is {type(item)}"
                + (f" of length {len(item)}." if isinstance(item, (tuple, list)) else ".")
            )
        inputs, labels = item[0], np.asarray(item[1])
        if isinstance(inputs, Mapping):
            feeds = {name: np.asarray(array) for name, array in inputs.items()}
        else:
            arrays = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
            if len(arrays) != len(specs):
                raise EvaluationError(
                    f"item {index} of the data has {len(arrays)} inputs, but the model has {len(specs)}."
                )
            feeds = {spec.name: np.asarray(array) for spec, array in zip(specs, arrays, strict=True)}
        if labels.ndim == 0:
            raise EvaluationError(
                f"item {index} of the data has one number for labels: expected one a sample."
            )
        yield Batch(feeds, labels, labels.shape[0])


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """The batch that the model's inputs are fixed to; None where they take any.

    Raises `EvaluationError` where inputs are fixed to different ones.
    """
    lengths = {spec.shape[0]: spec.name for spec in specs if spec.shape and isinstance(spec.shape[0], int)}
    if len(lengths) > 1:
        each = ", ".join(f"{name!r} {length}" for length, name in lengths.items())
        raise EvaluationError(
            f"the model fixes different batches for its inputs ({each}): it has no one batch."
        )
    return next(iter(lengths), None)


def padded(batch: Batch, size: int) -> Batch:
    """The batch with its last sample repeated up to ``size``."""
    if batch.samples >= size or batch.samples == 0:
        return batch
    feeds = {
        name: np.concatenate([array, np.repeat(array[-1:], size - batch.samples, axis=0)])
        if array.ndim and array.shape[0] == batch.samples
        else array
        for name, array in batch.feeds.items()
    }
    return Batch(feeds, batch.labels, batch.samples)


def _check_input(spec: TensorSpec, header: Header) -> None:
    expected, found = spec.dtype, header.dtype.newbyteorder("=")
    accepted = is_text(found) if expected.hasobject else found == expected
    # .npy cannot name bfloat16 and the 8-bit floats, so they come as float32.
    accepted |= is_extended(expected) and found == np.float32
    if not accepted:
        what = "text" if expected.hasobject else str(expected)
        raise EvaluationError(
            f"{header.where}, for the input {spec.name!r}: expected {what}, found {header.dtype}."
        )
    if not spec.is_tensor:
        raise EvaluationError(f"the input {spec.name!r} is no tensor, so no array can be given for it.")
    fits = spec.open_rank or (
        len(spec.shape) == len(header.shape)
        and all(
            not isinstance(want, int) or want == have
            for want, have in zip(spec.shape[1:], header.shape[1:], strict=True)
        )
    )
    if not fits:
        wanted = ", ".join(
            "samples" if i == 0 else "?" if d is None else str(d) for i, d in enumerate(spec.shape)
        )
        raise EvaluationError(
            f"{header.where}, for the input {spec.name!r}: expected the shape [{wanted}], found "
            f"{list(header.shape)}."
        )


def _native(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _as_input(array: Array, spec: TensorSpec) -> Array:
    return as_text(array, f"Input {spec.name!r}") if spec.dtype == OBJECT else np.asarray(array, spec.dtype)
