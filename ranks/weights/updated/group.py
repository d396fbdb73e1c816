"""Replaces the weights of a model that several ranks run together: on all of them, or on none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ranks.agreement import handshake
from ranks.collectives.base import Communicator
from ranks.collectives.broadcast import Spreader
from ranks.collectives.buffers import Memory
from ranks.common.tensors import element_dtype
from ranks.errors import ShardrunError, WeightsError
from ranks.weights.updated.values import (
    NONE_MARKED,
    Delta,
    Given,
    Pair,
    Spec,
    check_value,
    delta,
    not_marked,
    number_of,
)
from sharding.common.arrays import Array

if TYPE_CHECKING:
    # Each rank has a `Together`, but few have weights that are replaced.
    from ranks.weights.updated.parts import Whole
    from ranks.weights.updated.variable import Prepared, VariableWeights

_CHUNK = 64 << 20  # bytes of a weight that are sent at once

Part = tuple[int, list[int]]
"""Element type and shape of an array."""
Header = list[tuple[str, list[Part]]]
"""For each weight its name, and the element type and shape of its value, or of both values of a pair."""


class _Said(TypedDict, total=False):
    """What a rank tells all others: the weights that it was given, their hashes, or why it refuses them."""

    header: Header
    digests: dict[str, str]
    error: str


class Together:
    """The variable weights of a rank, of which the caller gives whole values on rank 0 or on every rank."""

    def __init__(
        self,
        world: Communicator,
        memory: Memory,
        exchange: Communicator,
        weights: VariableWeights | None,
        wholes: Mapping[str, Whole],
    ) -> None:
        """``exchange``: the world as a communicator of ``memory``'s buffers."""
        self._world, self._memory, self._exchange = world, memory, exchange
        self._weights, self._wholes = weights, wholes

    @property
    def names(self) -> frozenset[str]:
        """The variable weights, by the names of the source model."""
        return frozenset(self._wholes)

    @property
    def specs(self) -> dict[str, Spec]:
        """Type and shape of each of them."""
        return {name: whole.spec for name, whole in self._wholes.items()}

    def update(self, given: Given | Exception) -> int:
        """Replaces weights; a collective. Returns the new version.

        ``given`` is empty on ranks that leave it to rank 0; an exception is what this rank refuses its
        arguments with. Where any rank refuses, each raises, and nothing has changed on any.
        """
        own = given if isinstance(given, Exception) else None
        tensors = {} if isinstance(given, Exception) else given
        header = _header(tensors)
        try:
            if own is None:
                self._check(header)
        except ShardrunError as error:
            own = error
        told: _Said = {"header": header}
        if own is not None:
            told["error"] = str(own)
        plan = self._agree(told, own)
        headers = [rank["header"] for rank in plan]
        alone = _giver_alone(headers)
        prepared, failure = self._receive(headers[0], tensors, alone)
        digests: dict[str, str] = {}
        if failure is None and not alone and self._world.size > 1:
            try:
                digests = {
                    name: _digest(value) for name, value in tensors.items() if not self._wholes[name].own
                }
            except MemoryError:
                failure = WeightsError("There is not enough memory to compare the weights with other ranks'.")
        said: _Said = {"digests": digests} if failure is None else {"error": str(failure)}
        _check_equal([rank["digests"] for rank in self._agree(said, failure)])
        assert prepared is not None and self._weights is not None
        return self._weights.commit(prepared)

    def _check(self, header: Header) -> None:
        if self._weights is None:
            raise WeightsError(
                "This rank's model was built without variable weights: name them in variable_weights_list or "
                "variable_weights_file on every rank."
                if self._world.size > 1
                else NONE_MARKED
            )
        for name, parts in header:
            whole = self._wholes.get(name)
            if whole is None:
                raise WeightsError(not_marked(name, tuple(self._wholes)))
            arrays = [
                np.broadcast_to(np.zeros((), element_dtype(element)), shape) for element, shape in parts
            ]
            check_value(name, whole.spec, arrays[0] if len(arrays) == 1 else Pair(*arrays))

    def _agree(self, mine: _Said, own: Exception | None) -> list[_Said]:
        """What every rank says; raises this rank's own error, or one that names a rank that refuses."""
        everyone = handshake.gather_json(mine, self._exchange, self._memory)
        if own is not None:
            raise own
        for rank, said in enumerate(everyone):
            if "error" in said:
                raise WeightsError(
                    f"Rank {rank} refuses the new weights, so that none change: {said['error']}"
                )
        return everyone

    def _receive(
        self, header: Header, given: Given, alone: bool
    ) -> tuple[Prepared | None, ShardrunError | None]:
        """The update with this rank's parts, or why there is none. Takes part in every broadcast."""
        spreader = Spreader(self._world)
        mine: dict[str, Array | Delta] = {}
        failure: ShardrunError | None = None
        for name, parts in header:
            arrays: Sequence[Array | None] = _arrays(given[name]) if name in given else [None] * len(parts)
            try:
                check = [_buffer(array, *part) for array, part in zip(arrays, parts, strict=True)]
            except MemoryError:
                failure = WeightsError(f"There is not enough memory to receive the weight {name!r}.")
                check = []
            if alone:
                for index, (element, shape) in enumerate(parts):
                    size = int(np.prod(shape, dtype=np.int64)) * element_dtype(element).itemsize
                    _broadcast(spreader, check[index] if check else None, size)
            if failure is not None or not check:
                continue
            try:
                mine.update(self._parts(name, check))
            except MemoryError:
                failure = WeightsError(
                    f"There is not enough memory for the new value of the weight {name!r}."
                )
        if failure is not None:
            return None, failure
        assert self._weights is not None
        try:
            return self._weights.prepare(mine, empty=True), None
        except ShardrunError as error:
            return None, error

    def _parts(self, name: str, arrays: Sequence[Array]) -> dict[str, Array | Delta]:
        whole = self._wholes[name]
        if not whole.shares:
            return {}
        if len(arrays) == 1:
            return {share.held: np.array(share.of(arrays[0]), order="C") for share in whole.shares}
        change = delta(Pair(*arrays), whole.spec.dtype)
        return {share.held: Delta(np.array(share.of(change), order="C")) for share in whole.shares}


def _header(given: Given) -> Header:
    return [
        (name, [(number_of(array.dtype), list(array.shape)) for array in _arrays(value)])
        for name, value in given.items()
    ]


def _arrays(value: Array | Pair | Delta) -> list[Array]:
    if isinstance(value, Pair):
        return [value.a, value.b]
    assert not isinstance(value, Delta)
    return [value]


def _giver_alone(headers: Sequence[Header]) -> bool:
    """Whether rank 0 gives for all. Raises `WeightsError` where neither it alone nor every rank gives."""
    givers = [rank for rank, header in enumerate(headers) if header]
    if not givers:
        where = ", on rank 0 or on every rank" if len(headers) > 1 else ""
        raise WeightsError(
            "No weights were given: give one list of tensors that are named as the weights, like [[tensor]]"
            f"{where}."
        )
    if givers == [0]:
        return len(headers) > 1
    if len(givers) < len(headers):
        raise WeightsError(
            f"Weights were given on {'the ranks' if len(givers) > 1 else 'rank'} "
            f"{', '.join(map(str, givers))} of {len(headers)}: give them on rank 0 alone, or on every rank."
        )
    other = next((rank for rank, header in enumerate(headers) if header != headers[0]), None)
    if other is not None:
        raise WeightsError(
            f"Rank {other} was given other weights than rank 0, or in another order: give the same on every "
            "rank."
        )
    return False


def _digest(value: Array | Pair | Delta) -> str:
    """The hash of the bytes of a weight's value or pair; type and shape are compared with the headers."""
    digest = hashlib.blake2b(digest_size=32)
    for array in _arrays(value):
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _check_equal(digests: Sequence[Mapping[str, str]]) -> None:
    """Raises `WeightsError`, the same on all ranks, where one was given other values than rank 0."""
    for rank, others in enumerate(digests):
        for name, digest in digests[0].items():
            if others.get(name, digest) != digest:
                raise WeightsError(
                    f"Rank {rank} was given other values of the weight {name!r} than rank 0, so that none "
                    "change: give the same on every rank, or on rank 0 alone."
                )


def _buffer(array: Array | None, element: int, shape: Sequence[int]) -> Array:
    if array is not None:
        plain: Array = np.ascontiguousarray(array).reshape(array.shape)
        return plain
    return np.empty(tuple(shape), element_dtype(element))


def _broadcast(spreader: Spreader, array: Array | None, size: int) -> None:
    """Rank 0's bytes to all; without an array, past this rank."""
    flat = np.empty(min(size, _CHUNK), np.uint8) if array is None else array.reshape(-1).view(np.uint8)
    for start in range(0, size, _CHUNK):
        length = min(_CHUNK, size - start)
        at = 0 if array is None else start
        spreader.broadcast(flat[at : at + length])
