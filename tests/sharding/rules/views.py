"""How rules cut nodes of which only the shapes are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharding.rules.base import RULES, NodeView
from sharding.slices.placement import Placement, Split

UNKNOWN = "unknown"
MICROSOFT = "com.microsoft"
Shape = list[int] | str | None


def options(
    op_type: str,
    *shapes: Shape,
    domain: str = "",
    constants: dict[int, Any] | None = None,
    kinds: dict[int, str] | None = None,
    output: list[int] | None = None,
    version: int = 18,
    **attributes: Any,
) -> list[tuple[Placement, ...]]:
    """How the inputs are cut in each option for two ranks; shapes are None where an input is absent."""
    known = [shape if isinstance(shape, list) else None for shape in shapes]
    given = {index: np.asarray(item) for index, item in (constants or {}).items()}
    view = NodeView(
        op_type,
        domain,
        version=version,
        world=2,
        attributes=attributes,
        shapes=known,
        dtypes=[np.dtype((kinds or {}).get(index, "float32")) for index in range(len(shapes))],
        constants=[given.get(index) for index in range(len(shapes))],
        present=[shape is not None for shape in shapes],
        output_shapes=[output if output is not None else known[0]],
    )
    return [option.inputs for option in RULES[domain, op_type](view)]


def cut_axes(*arguments: Any, of: int = 0, **more: Any) -> set[int]:
    """The axes along which an input is cut in any option."""
    found = [inputs[of] for inputs in options(*arguments, **more)]
    return {item.axis for item in found if isinstance(item, Split)}
