"""Symbols of the inputs' open axes: which axes of different inputs may be taken to be of one length.

A file names axes, and exporters give one name to axes that are not of one length: ``?`` for whatever they do
not know, or ``n`` for two inputs that are each as long as they like. ONNX Runtime does not hold a model to
its symbols. So each axis of the inputs has a symbol of its own while a model is planned, and only lengths
that come from one axis are equal. What is shown, and written into rank models, is the file's own name.

A name may look like an expression of other names (``batch-size``, beside ``batch`` and ``size``). Some
exporters mean it so, and a length inside the graph that is called ``past + 1`` is that; what an input calls
so is as long as it likes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.rules.base import Dim
from sharding.slices.expressions import MARK, is_expression

if TYPE_CHECKING:
    import onnx_ir as ir

MADE_UP = "unk__"
"""How onnx's inference names lengths that it knows nothing of."""
NUMBERED = re.compile(rf"{MADE_UP}(\d+)")
_MARK = "\x1f"
_TOLD_APART = re.compile(rf"{_MARK}\d+")
_NO_PRODUCT = "\x1e"
"""Stands for the mark of products in a name."""
_OWN = "\x1d"
"""Before a name of the file's own that reads as if inference had made it up: tf2onnx names axes so."""


def tell_apart(graph: ir.Graph) -> None:
    """Gives each open axis of the inputs a symbol of its own, which no length inside the graph has that is
    an expression."""
    import onnx_ir as ir

    names = [axis for value in graph.inputs for axis in shape_of(value) or () if isinstance(axis, str)]
    seen = {axis for axis in names if is_expression(axis, names)}
    for value in graph.inputs:
        shape = shape_of(value)
        if shape is None:
            continue
        axes = [f"{_OWN}{axis}" if is_made_up(axis) else axis for axis in shape]
        for index, axis in enumerate(axes):
            if isinstance(axis, str) and axis in seen:
                axes[index] = f"{axis.replace(MARK, _NO_PRODUCT)}{_MARK}{len(seen)}"
            if isinstance(axes[index], str):
                seen.add(str(axes[index]))
        value.shape = ir.Shape(axes)


def shown_shape(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """A value's shape with the file's symbols; None where the rank is unknown."""
    shape = shape_of(value)
    return None if shape is None else tuple(map(shown, shape))


def shown(axis: Dim) -> Dim:
    """An axis as the file names it, or a product of such."""
    if not isinstance(axis, str):
        return axis
    return _TOLD_APART.sub("", axis).replace(_NO_PRODUCT, MARK).replace(_OWN, "")


def is_made_up(axis: Dim) -> bool:
    """Whether inference made up this symbol, for a length that it does not know."""
    return isinstance(axis, str) and axis.startswith(MADE_UP)


def made_up_names(values: Iterable[ir.Value]) -> Iterator[str]:
    """Further names as onnx's inference makes up, behind those that the shapes of ``values`` have."""
    taken = [
        int(number)
        for value in values
        for axis in shape_of(value) or ()
        if isinstance(axis, str) and MADE_UP in axis
        for number in NUMBERED.findall(axis)
    ]
    return (f"{MADE_UP}{number}" for number in itertools.count(max(taken, default=-1) + 1))


def all_known(shape: Sequence[Dim]) -> bool:
    """Whether no axis is open."""
    return all(isinstance(axis, int) for axis in shape)
