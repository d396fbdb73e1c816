"""What a plan costs: the bytes of weights that a rank holds, then the estimated seconds of one inference.

The constants describe a CPU core and ranks of one host over shared memory, rounded: only their proportions
matter, for they choose between plans. `Sizes` says what lengths count as that are symbols.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharding.graph.symbols import shown
from sharding.graph.values import shape_of
from sharding.rules.products import MARK
from sharding.slices.placement import Partial, Placement, Replicated, Split, is_finer

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.search.steps import Step

SYMBOL_LENGTH = 64
FLOPS_PER_SECOND = 5e10
"""Multiply-adds of matrix products count two."""
ELEMENTS_PER_SECOND = 4e9
"""Of every other operator: most work in cache, and ONNX Runtime fuses many of them."""
COLLECTIVE_SECONDS = 5e-5
"""Latency of one collective, waiting for the slowest rank, ending one segment and starting the next."""
BYTES_PER_SECOND = 8e9
"""Between two ranks of a host."""
NODE_SECONDS = 5e-7
"""Of a node that only selects: a local slice."""

IMPOSSIBLE = math.inf


_FORMULA = re.compile(r"[\w\s()+*/-]{1,200}")
_NAME = re.compile(r"[^\W\d]\w*")


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
        if first and not self.lengths.keys() | self.rows >= set(_NAME.findall(axis)):
            return 1
        if axis not in self._known:
            self._known[axis] = self._formula(axis)
        return self._known[axis]

    def _formula(self, text: str) -> int:
        if "**" in text or not _FORMULA.fullmatch(text):
            return SYMBOL_LENGTH
        most = max(SYMBOL_LENGTH, *self.lengths.values(), 1) ** 2
        numbers = _NAME.sub(lambda name: str(self.length(name[0])), text)
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

    def seconds(self, step: Step) -> float:
        """Estimated seconds of a node on one rank that computes all of it."""
        output = max((self.elements(value) for value in step.node.outputs), default=1)
        shapes = step.view.shapes
        if step.node.op_type in _PRODUCTS and shapes[0]:
            axis = 0 if step.view.attributes.get("transA") else -1
            return 2.0 * output * self.length(shapes[0][axis]) / FLOPS_PER_SECOND
        if step.node.op_type in _CONVOLUTIONS:
            kernel = shapes[3] if step.node.op_type == "QLinearConv" else shapes[1]
            if kernel:
                inner = math.prod(self.length(axis) for axis in kernel[1:])
                return 2.0 * output * inner / FLOPS_PER_SECOND
        return output / ELEMENTS_PER_SECOND


_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "FusedMatMul"}
_CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"}


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


def weight_cost(size: int, placement: Placement, world: int) -> tuple[int, float]:
    """(bytes, seconds) that count for a weight of ``size`` bytes held at a placement.

    Copies of a part count as if they were cut further: key-value heads fewer than ranks are held by group, as
    Megatron-LM and others do, rather than gathered in every layer of every inference.
    """
    if not isinstance(placement, Split):
        return size, 0.0
    return size // world, 0.0 if placement.copies == 1 else NODE_SECONDS


def reshard_seconds(source: Placement, target: Placement, size: int, world: int) -> float:
    """Estimated seconds of bringing a value of ``size`` bytes (whole) from one placement to another."""
    if source == target:
        return 0.0
    sent = size * (world - 1) / world / BYTES_PER_SECOND
    if isinstance(target, Partial):
        return IMPOSSIBLE
    if isinstance(source, Replicated):
        return NODE_SECONDS
    if isinstance(source, Partial):
        return COLLECTIVE_SECONDS + 2 * sent + (NODE_SECONDS if isinstance(target, Split) else 0.0)
    if isinstance(target, Split) and is_finer(target, source):
        return NODE_SECONDS
    sent *= source.copies
    if isinstance(target, Split) and target.axis != source.axis and source.copies == target.copies == 1:
        # Cutting and joining the parts before and after the exchange is not free.
        return COLLECTIVE_SECONDS + sent / world + 4 * world * NODE_SECONDS
    # Parts of an inner axis are interleaved as they come, in strides; blocks need one more pass.
    passes = 0.5 if source.blocks == source.copies == 1 else 1.5
    return COLLECTIVE_SECONDS + sent + passes * size / BYTES_PER_SECOND
