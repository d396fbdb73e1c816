"""What the open lengths of a model count as where a plan is estimated."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharding.graph.symbols import shown
from sharding.graph.values import shape_of
from sharding.slices.expressions import MARK

if TYPE_CHECKING:
    import onnx_ir as ir

SYMBOL_LENGTH = 64
_FORMULA = re.compile(r"[\w\s()+*/-]{1,200}")
NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Sizes:
    """What the open lengths of a model count as in estimates.

    A symbol that ``lengths`` does not name, or an unknown length, counts as one on the first axis, that of a
    batch, and else as `SYMBOL_LENGTH`; also within formulas, as torch's exporter writes them.
    """

    lengths: Mapping[str, int] = field(default_factory=dict)
    """Symbol -> length, from 1 up."""
    rows: frozenset[str] = frozenset()
    """Symbols of batches: they count as one on other axes too."""
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def length(self, axis: int | str | None, *, first: bool = False) -> int:
        """The length of an axis, ``first`` or another one."""
        if isinstance(axis, int):
            return axis
        # As the file names it: what the user says is meant by that name.
        axis = str(shown(axis)).replace(MARK, "*") if axis is not None else None
        if axis is not None and axis in self.lengths:
            return self.lengths[axis]
        if axis is None or axis.isidentifier():
            return 1 if first or axis in self.rows else SYMBOL_LENGTH
        if first and not self.lengths.keys() | self.rows >= set(NAME.findall(axis)):
            return 1
        if axis not in self._known:
            self._known[axis] = self._formula(axis)
        return self._known[axis]

    def _formula(self, text: str) -> int:
        if "**" in text or not _FORMULA.fullmatch(text):
            return SYMBOL_LENGTH
        most = max(SYMBOL_LENGTH, *self.lengths.values(), 1) ** 2
        numbers = NAME.sub(lambda name: str(self.length(name[0])), text)
        try:
            length = _value(ast.parse(numbers, mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return SYMBOL_LENGTH
        return min(max(length, 1), most)

    def count(self, shape: Sequence[int | str | None]) -> int:
        """The elements of a whole shape."""
        return math.prod(self.length(axis, first=number == 0) for number, axis in enumerate(shape))

    def elements(self, value: ir.Value | None) -> int:
        """Estimated elements of a value; 1 where nothing is known."""
        return self.count(shape_of(value) or ())

    def bytes(self, value: ir.Value) -> int:
        """Estimated bytes of a value."""
        size = 4 if value.dtype is None or value.dtype.name == "STRING" else value.dtype.itemsize
        return int(self.elements(value) * size)


ITEM_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
ITEM_BYTES |= {"int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "string": 0}
DEFAULT_ITEM_BYTES = 4
_PACKED = {"int4": 2, "uint4": 2, "float4e2m1": 2, "int2": 4, "uint2": 4}
"""Elements of types that are smaller than a byte, in one."""


def tensor_bytes(dtype: str, shape: Sequence[int | str | None], dims: Mapping[str, int]) -> int:
    """Bytes of a tensor; a symbol that ``dims`` does not name counts as in the solver's cost."""
    count = Sizes(dims).count(shape)
    if (packed := _PACKED.get(dtype)) is not None:
        return -(-count // packed)
    return count * (1 if dtype.startswith("float8") else ITEM_BYTES.get(dtype, DEFAULT_ITEM_BYTES))


def _value(formula: ast.expr) -> int:
    """Sums, differences, products and quotients of whole numbers."""
    if isinstance(formula, ast.Constant) and isinstance(formula.value, int):
        return formula.value
    if isinstance(formula, ast.UnaryOp) and isinstance(formula.op, ast.USub):
        return -_value(formula.operand)
    if isinstance(formula, ast.BinOp):
        a, b = _value(formula.left), _value(formula.right)
        if isinstance(formula.op, ast.Div | ast.FloorDiv):
            return a // b
        if isinstance(formula.op, ast.Add | ast.Sub | ast.Mult):
            return (
                a * b
                if isinstance(formula.op, ast.Mult)
                else a + b
                if isinstance(formula.op, ast.Add)
                else a - b
            )
    raise ValueError
