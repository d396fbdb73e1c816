"""Runs a rank's program as its mesh says: its rows of the batch, in micro-batches, and everyone's outputs.

Each data rank takes a run of the batch's rows and cuts it into micro-batches. A stage runs its program for
one micro-batch after the other, and waits only in the sends and receives of the program. So different stages
work on different micro-batches at the same time. At the end one rank of each stage and data rank shows its
outputs to the others, which put them together in the order of the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ranks.collectives.broadcast import Spreader
from ranks.common.tensors import unlike
from ranks.errors import CollectiveError, ModelError, ShardError, ShardrunError
from ranks.run.point_to_point import RemoteError
from ranks.talk.wire import MAX_TENSORS, Kind, Message

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.common.tensors import TensorSpec
    from ranks.models.part import Part
    from ranks.run.program import Program
    from ranks.run.steps.whole_state import WholeState
    from ranks.weights.updated.bound import BoundWeights
    from sharding.common.arrays import Array


def shares(count: int, parts: int) -> list[slice]:
    """``count`` rows in ``parts`` runs; the first get one row more where they do not come out even."""
    sizes = [count // parts + (part < count % parts) for part in range(parts)]
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


class Schedule:
    """A program run for each of its micro-batches; stands in for the `Program` of a rank without a mesh."""

    def __init__(
        self,
        program: Program | WholeState,
        part: Part,
        world: Communicator,
        inputs: Sequence[TensorSpec],
        own: Sequence[str],
    ) -> None:
        """``inputs`` and ``own``: the rank model's inputs and the names of its outputs, in order."""
        if len(part.outputs) > MAX_TENSORS:
            raise ShardError(
                f"The model has {len(part.outputs)} outputs; with data or pipeline parallelism or "
                f"micro-batches at most {MAX_TENSORS} are possible."
            )
        self._program = program
        self.part = part
        self.inputs = inputs
        self._own = list(own)
        self._world = world
        columns = part.columns()
        self._column = next(column for column in columns if part.rank in column)
        self._spreader = Spreader(world.split(columns))

    @property
    def collectives(self) -> str:
        """The name of the backend in use."""
        return self._world.name

    def all_weights(self) -> list[BoundWeights]:
        """The program's variable weights."""
        return self._program.all_weights()

    @property
    def communication_seconds(self) -> float:
        """Seconds that this rank spent in the program's collectives so far."""
        return self._program.communication_seconds

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """Runs the whole model on whole inputs; every rank gets every output, whole."""
        rows = self._rows(feeds)
        data = self.part.mesh.length("data")
        parts = shares(rows, data) if rows else [slice(0, rows or 0)] + [slice(0, 0)] * (data - 1)
        mine = parts[self.part.place["data"]]
        busy = [index for index, part in enumerate(parts) if index == 0 or part.stop > part.start]
        outputs: dict[str, Array] = {}
        failure: ModelError | None = None
        if self.part.place["data"] in busy:
            outputs, failure = self._compute(feeds, None if rows is None else mine)
        return self._together(outputs, failure, busy)

    def _rows(self, feeds: Sequence[Array]) -> int | None:
        """The batch's length; None where no input has a batch axis, and where lengths are not what symbols
        say: two for one symbol, or no sum where it stands for one. The proof that rows are computed apart
        holds for such lengths only: nothing is cut then."""
        if unlike(self.inputs, [array.shape for array in feeds], self.part.batch_lengths):
            return None
        first: int | None = None
        for spec, array in zip(self.inputs, feeds, strict=True):
            axis = self.part.batch_inputs.get(spec.name)
            if axis is None:
                continue
            if axis >= array.ndim:
                raise ShardrunError(f"Input {spec.name!r} has no axis {axis}, along which it must be cut.")
            length = array.shape[axis]
            if first not in {None, length}:
                return None
            first = length
        return first

    def _compute(
        self, feeds: Sequence[Array], rows: slice | None
    ) -> tuple[dict[str, Array], ModelError | None]:
        """This rank's outputs for its rows, or why it has none, which its peers then know as well."""
        count = 0 if rows is None else rows.stop - rows.start
        pieces = [rows]
        if rows is not None and count > 0:
            micro = shares(count, min(self.part.micro_batches, count))
            pieces = [slice(rows.start + piece.start, rows.start + piece.stop) for piece in micro]
        results: list[list[Array]] = []
        failure: ModelError | None = None
        for piece in pieces:
            if failure is not None:
                self._program.fail(str(failure))
                continue
            try:
                self._check_fixed(piece)
                results.append(self._program.run(self._cut(feeds, piece)))
            except CollectiveError:
                raise
            except ModelError as error:
                failure = error
                self._program.fail(str(error))
        outputs = {}
        for index, name in enumerate(self._own if failure is None else ()):
            axis = self.part.batch_outputs.get(name)
            found = [result[index] for result in results]
            try:
                outputs[name] = found[0] if axis is None else joined(found, name, axis)
            except ModelError as error:
                failure = error
        return ({}, failure) if failure is not None else (outputs, None)

    def _check_fixed(self, rows: slice | None) -> None:
        """A rank model that fixes its batch runs with that length only."""
        for spec in self.inputs if rows is not None else ():
            axis = self.part.batch_inputs.get(spec.name)
            if rows is None or axis is None or axis >= len(spec.shape):
                continue
            fixed = spec.shape[axis]
            if isinstance(fixed, int) and fixed != rows.stop - rows.start:
                raise ModelError(
                    f"Input {spec.name!r} would have {rows.stop - rows.start} rows in a micro-batch, but the "
                    f"rank model fixes {fixed}: give a batch of "
                    f"{fixed * self.part.micro_batches * self.part.mesh.length('data')} rows."
                )

    def _cut(self, feeds: Sequence[Array], rows: slice | None) -> list[Array]:
        cut = []
        for spec, array in zip(self.inputs, feeds, strict=True):
            axis = self.part.batch_inputs.get(spec.name)
            if axis is not None and rows is not None:
                piece = array[(slice(None),) * axis + (rows,)]
                # Strings go to ONNX Runtime as they are; other values are copied to their buffer anyway.
                array = piece.copy() if piece.dtype.hasobject else piece  # noqa: PLW2901 - its rows
            cut.append(array)
        return cut

    def show(self, outputs: dict[str, Array], failure: ShardrunError | None) -> dict[str, Array]:
        """The outputs that any stage gives, by name, on every rank: after a run of the program alone, with a
        batch that nothing cuts. ``failure``: why this rank has none."""
        found = self.gathered(outputs, failure, [0])
        return {name: arrays[0] for name, arrays in found.items() if arrays}

    def _together(
        self, outputs: dict[str, Array], failure: ModelError | None, busy: Sequence[int]
    ) -> list[Array]:
        """Everyone's outputs, whole, in the whole model's order."""
        found = self.gathered(outputs, failure, busy)
        return [
            joined(found[name], name, self.part.batch_outputs.get(name, 0)) for name, _ in self.part.outputs
        ]

    def gathered(
        self, outputs: dict[str, Array], failure: ShardrunError | None, busy: Sequence[int]
    ) -> dict[str, list[Array]]:
        """The outputs of all stages by name, and what else their ranks tell beside them, from each data rank
        that is ``busy``; outputs that have no batch from the first of them. Raises the ``failure`` of this
        rank, and `RemoteError` for another's."""
        place, mesh = self.part.place, self.part.mesh
        found: dict[str, list[Array]] = {name: [] for name, _ in self.part.outputs}
        without_batch = found.keys() - self.part.batch_outputs.keys()
        reasons: list[str] = []
        for data, stage in itertools.product(busy, sorted({stage for _, stage in self.part.outputs})):
            owner = mesh.rank(data=data, pipeline=stage, tensor=place["tensor"])
            message = None
            if owner == self.part.rank:
                tensors = {
                    name: array
                    for name, array in outputs.items()
                    if data == busy[0] or name not in without_batch
                }
                fields: dict[str, object] = {} if failure is None else {"failed": str(failure)}
                message = Message(Kind.RESULT, fields, tensors)
            message = self._spreader.spread(message, self._column.index(owner))
            if "failed" in message.fields:
                reasons.append(str(message.fields["failed"]))
            for name, array in message.tensors.items():
                found.setdefault(name, []).append(array)
        if failure is not None:
            raise failure
        if reasons:
            raise RemoteError(reasons[0])
        return found


def joined(pieces: Sequence[Array], name: str, axis: int) -> Array:
    """The pieces of an output, put together. Raises `ModelError` where they do not fit."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return np.concatenate(pieces, axis)
    except ValueError:
        raise ModelError(
            f"Output {name!r} cannot be put together along its batch axis {axis}: its pieces have the shapes "
            f"{', '.join(str(list(piece.shape)) for piece in pieces[:4])}."
        ) from None
