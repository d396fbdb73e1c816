"""Inputs to export a network with: their names, shapes and types; an axis with a name stays open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharding.common.arrays import Array
from sharding.common.text import parse_whole
from sharding.errors import OptionError

if TYPE_CHECKING:
    import onnx

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_FIRST_LENGTH = 2
"""An open axis has at least this length in the example: torch takes 0 and 1 for special cases."""
_MOST = 1 << 31


@dataclass(frozen=True)
class Input:
    """An input of a network. ``shape``: lengths, and names of open axes. ``array``: an example, if given."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    array: Array | None = None


def parse_input(text: str) -> Input:
    """Reads ``NAME:SHAPE[:DTYPE]``, such as ``x:batch,3,224,224:float32``; no shape is a scalar.

    Raises `OptionError`.
    """
    name, *rest = text.split(":")
    expected = f"--input {text!r}: expected NAME:SHAPE[:DTYPE], such as x:batch,3,224,224:float32"
    if not 1 <= len(rest) <= 2 or not NAME.fullmatch(name):
        raise OptionError(f"{expected}.")
    shape: list[int | str] = []
    for part in rest[0].split(",") if rest[0] else []:
        if (length := parse_whole(part, 0, _MOST - 1)) is not None:
            shape.append(length)
        elif NAME.fullmatch(part):
            shape.append(part)
        else:
            raise OptionError(f"{expected}; {part!r} is neither a length nor a name.")
    dtype = rest[1] if len(rest) == 2 else "float32"
    if dtype not in DTYPES:
        raise OptionError(f"{expected}; the type {dtype!r} is none of {', '.join(DTYPES)}.")
    return Input(name, tuple(shape), dtype)


def parse_dynamic(texts: Iterable[str]) -> dict[str, dict[int, str]]:
    """Reads ``NAME:AXIS=SYMBOL,...``: input -> axis -> the name of its open length. Raises `OptionError`."""
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        name, colon, axes = text.partition(":")
        for part in axes.split(","):
            axis, equals, symbol = part.partition("=")
            number = parse_whole(axis, 0, 99)
            if not (colon and equals and NAME.fullmatch(name) and NAME.fullmatch(symbol)) or number is None:
                raise OptionError(f"--dynamic {text!r}: expected NAME:AXIS=SYMBOL, such as x:0=batch.")
            found.setdefault(name, {})[number] = symbol
    return found


def with_dynamic(inputs: Sequence[Input], dynamic: Mapping[str, Mapping[int, str]]) -> list[Input]:
    """The inputs with these axes open. Raises `OptionError` for an input or axis that is not there."""
    names = [item.name for item in inputs]
    found = []
    for name in dynamic:
        if name not in names:
            raise OptionError(f"--dynamic {name}: there is no such input (the inputs: {', '.join(names)}).")
    for item in inputs:
        shape = list(item.shape)
        for axis, symbol in dynamic.get(item.name, {}).items():
            if axis >= len(shape):
                raise OptionError(f"--dynamic {item.name}:{axis}={symbol}: it has {len(shape)} axes.")
            shape[axis] = symbol
        found.append(replace(item, shape=tuple(shape)))
    return found


def example_lengths(inputs: Sequence[Input], lengths: Mapping[str, int]) -> dict[str, int]:
    """A length for every open axis: as given, that of an example array, or another small one for each."""
    found = dict(lengths)
    for item in inputs:
        if item.array is not None:
            for axis, length in zip(item.shape, item.array.shape, strict=True):
                if isinstance(axis, str):
                    found.setdefault(axis, int(length))
    symbols = [axis for item in inputs for axis in item.shape if isinstance(axis, str)]
    unknown = sorted(set(lengths) - set(symbols))
    if unknown:
        raise OptionError(f"--dim {unknown[0]}: no input has an open axis of this name.")
    for symbol in symbols:
        if symbol not in found:
            taken = {*found.values()}
            found[symbol] = next(n for n in range(_FIRST_LENGTH, 10**6) if n not in taken)
    for symbol in symbols:
        if found[symbol] < _FIRST_LENGTH:
            raise OptionError(
                f"The open axis {symbol!r} has length {found[symbol]} in the example, which torch takes for "
                f"a fixed one: give it another with --dim {symbol}=2."
            )
    return found


def from_arrays(arrays: Mapping[str, Array], names: Sequence[str]) -> list[Input]:
    """Inputs like the arrays of an archive: by the names of the network's arguments, or ``in_0``, ...

    Raises `OptionError` for an array that holds no numbers.
    """
    found = []
    for index, name in enumerate(names):
        array = arrays.get(name, arrays.get(f"in_{index}"))
        if array is None:
            continue
        if array.dtype.kind not in "biuf":
            raise OptionError(f"The array for the input {name!r} holds {array.dtype}; expected numbers.")
        # The type's name says nothing of the byte order, which may be another machine's.
        found.append(Input(name, tuple(array.shape), array.dtype.name, array))
    return found


def name_axes(model: onnx.ModelProto, inputs: Sequence[Input]) -> None:
    """Open axes get the names that the user gave; exporters call them s77 and the like."""
    names: dict[str, str] = {}
    for value, item in zip(model.graph.input, inputs, strict=False):
        for dim, length in zip(value.type.tensor_type.shape.dim, item.shape, strict=False):
            if isinstance(length, str) and dim.dim_param:
                names.setdefault(dim.dim_param, length)
    if not names:
        return
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = pattern.sub(lambda found: names[found.group(1)], dim.dim_param)
