"""What a primitive's conversion is: a function from its operands to what it adds to the ONNX graph.

One function per MindSpore primitive, registered by name::

    @primitive("MatMul")
    def matmul(b, x, y, *, transpose_a=False, transpose_b=False):
        ...
        return b.op("MatMul", [x, y])

or one for primitives that differ by a name or a number, which is its first argument::

    @table({"ReduceMax": "ReduceMax", ("ReduceMin", "Min"): "ReduceMin"})
    def reduction(op_type, b, x):
        ...

Operands come in the order of the node's inputs. Tensors are `Value`s; constants that are no tensors come as
Python's own: bool, int, float, str, None, and tuples of these. A tuple may also hold `Value`s: tensors, or
integers that are known only at run time (int64 without axes).

Parameters may be annotated with Python's own types instead of `Operand`: `int`, `float`, `bool`, and the
`Number`, `Ints` and `Axis` of `operands`. What is given for such a one must be known before a run, and comes
as that.

Settings, the keyword-only parameters, are what a version 1 file keeps as attributes of the primitive and a
version 3 file as further inputs after the operands: an input beyond the function's positional parameters is
the next setting, and what the inputs do not give is taken from the attributes of that name. What neither has
keeps the function's default. A function that wants other attributes, or the declared types, takes ``node``
after ``b``.

What is returned, a value or a tuple for a primitive with several results, is converted to the element type
that the file declares for the result, and takes the lengths from there that were not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, Union

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.importers.mindir.dtypes import ValueProblem, dtype_of_id

Shape = tuple["int | None", ...]


@dataclass(eq=False)
class Value:
    """A tensor in the ONNX graph."""

    name: str
    dtype: DType
    shape: Shape | None = None
    """Lengths, None where one is not known before a run; None where even their number is not."""
    constant: Array | None = None
    """What it holds, where that is known: weights (mapped from the file, read-only) and what follows from
    small constants."""
    sequence: bool = False
    """Whether it stands for a tuple of integers whose number is not known: int64 with one axis."""
    storage: str = ""
    """Where it lies, for networks that change tensors in place (`memory`); empty: nothing else lies there."""

    @property
    def rank(self) -> int | None:
        """The number of axes."""
        return None if self.shape is None else len(self.shape)


@dataclass(eq=False)
class ComplexValue(Value):
    """Complex numbers as two tensors; the name is that of the real parts."""

    real: Value = field(kw_only=True)
    imaginary: Value = field(kw_only=True)


Operand = Union[Value, bool, int, float, str, None, tuple["Operand", ...]]  # noqa: UP007 - it names itself
"""What a primitive is given and what it returns."""


class Absent:
    """A result of a primitive that has no conversion, unlike its first ones; most networks leave it."""


ABSENT = Absent()


@dataclass(frozen=True)
class TensorType:
    """The type of a result as the file declares it."""

    dtype: DType
    shape: Shape | None


@dataclass(frozen=True)
class Node:
    """One use of a primitive."""

    op_type: str
    layer: str
    """Where in the network: ``Default/fc1-Dense/MatMul-op0``."""
    attributes: Mapping[str, Operand] = field(default_factory=dict)
    """The primitive's attributes, as Python's own; an element type is a numpy dtype."""
    result_types: tuple[TensorType | None, ...] = ()
    """What the file declares for each result; None where a result is no tensor."""
    version: int = 3

    @property
    def result(self) -> TensorType | None:
        """The first result's type."""
        return self.result_types[0] if self.result_types else None


class RefusedError(Exception):
    """A use of a primitive that cannot be converted: why, as the end of a sentence without a full stop.

    All of a file are collected and told at once.
    """


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Names = TypeVar("_Names", bound=Sequence[str])
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Primitive:
    """A registered conversion."""

    name: str
    function: Callable[..., Operand]
    family: str
    """The module that registers it."""
    takes_node: bool
    operands: int | None
    """How many positional parameters it has; None for any number."""
    needed: int
    """How many of these have no default."""
    settings: tuple[str, ...]
    own: Mapping[str, str] = field(default_factory=dict)
    """How the function names settings that it names otherwise."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """The annotations of its parameters."""
    declared: bool = True
    """Whether its results have the types that the file declares."""
    rank: int | None = None
    """How many axes its first operand always has."""
    of_complex: bool = False
    """Whether it takes complex numbers itself."""

    def convert(self, b: object, node: Node, *operands: object, **settings: object) -> Operand:
        """What a use of it gives, added to the builder's graph."""
        given = (b, node) if self.takes_node else (b,)
        return self.function(*given, *operands, **settings)


PRIMITIVES: dict[str, Primitive] = {}


def primitive(
    *names: str, settings: str = "", rank: int | None = None, **flags: bool
) -> Callable[[_Function], _Function]:
    """Registers a function for primitives of these names; see this module's text. ``settings``: their names
    in order, where these are not the function's (``axis=dim keep_dims``: the first is its ``dim``);
    ``declared``: whether the types hold that MindSpore writes for the results; ``rank``: the axes of the
    first operand, of which a file may not say how many there are; ``of_complex``: whether the function takes
    complex numbers."""

    def register(function: _Function) -> _Function:
        _register(names, function, settings, rank, flags)
        return function

    return register


def table(
    rows: Mapping[_Names, _Row], *, settings: str = "", rank: int | None = None, **flags: bool
) -> Callable[[_Function], _Function]:
    """Registers one function for the primitives of each row, with what the row holds as first argument."""

    def register(function: _Function) -> _Function:
        for names, row in rows.items():
            every = (names,) if isinstance(names, str) else names
            _register(every, partial(function, row), settings, rank, flags)
        return function

    return register


def alike(*names: str) -> dict[str | tuple[str, ...], str]:
    """Rows of a table for primitives that ONNX names as MindSpore does."""
    return {name: name for name in names}


def _register(
    names: Sequence[str],
    function: Callable[..., Operand],
    settings: str,
    rank: int | None,
    flags: Mapping[str, bool],
) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    takes_node = bool(parameters) and parameters[0].name == "node"
    kinds = [item.kind for item in parameters]
    positional = [item for item in parameters[takes_node:] if item.kind is item.POSITIONAL_OR_KEYWORD]
    given = settings.split() or [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
    pairs = [(outer, own or outer) for outer, _, own in (item.partition("=") for item in given)]
    for name in names:
        if name in PRIMITIVES:
            raise TypeError(f"the primitive {name} is registered twice")
        PRIMITIVES[name] = Primitive(
            name,
            function,
            getattr(function, "func", function).__module__.rpartition(".")[2],
            takes_node,
            None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
            sum(item.default is item.empty for item in positional),
            tuple(outer for outer, _ in pairs),
            dict(pairs),
            {item.name: str(item.annotation) for item in parameters[takes_node:]},
            rank=rank,
            **flags,
        )


def element_type(setting: Operand) -> DType:
    """The element type that a setting names: MindSpore's number (version 3) or one already (version 1)."""
    if isinstance(setting, np.dtype):
        return setting
    if isinstance(setting, int) and not isinstance(setting, bool):
        try:
            return dtype_of_id(setting)
        except ValueProblem as problem:
            raise RefusedError(str(problem)) from None
    raise RefusedError(f"expected an element type, found {setting!r:.80}")


def _tensors(operands: Sequence[object], settings: int) -> int:
    """Of a primitive with any number of operands: how many there are before the settings at the end."""
    count = len(operands)
    while count > max(1, len(operands) - settings) and not _holds_tensor(operands[count - 1]):
        count -= 1
    return count


def _holds_tensor(operand: object) -> bool:
    if isinstance(operand, tuple):
        return any(_holds_tensor(item) for item in operand)
    return isinstance(operand, Value)


def arguments(
    known: Primitive, operands: Sequence[object], attributes: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """A primitive's positional arguments and settings: see this module's text."""
    if operands and operands[-1] is None and attributes.get("side_effect_mem") is True:
        operands = operands[:-1]  # the order of effects
    count = _tensors(operands, len(known.settings)) if known.operands is None else known.operands
    if len(operands) < known.needed:
        raise RefusedError(f"expected {known.needed} operands, found {len(operands)}")
    positional, rest = list(operands[:count]), list(operands[count:])
    if known.rank is not None and positional and isinstance(positional[0], Value):
        first = positional[0]
        if first.shape is None:
            positional[0] = replace(first, shape=(None,) * known.rank)
    if len(rest) > len(known.settings):
        expected = count + len(known.settings)
        raise RefusedError(f"expected at most {expected} operands and settings, found {len(operands)}")
    settings = dict(zip(known.settings, rest, strict=False))
    for name in known.settings[len(rest) :]:
        if name in attributes:
            settings[name] = attributes[name]
    return positional, {known.own.get(name, name): item for name, item in settings.items()}
