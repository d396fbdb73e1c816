"""torch's exported programs (``.pt2``)."""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharding.common.text import human_bytes, one_line, shortened
from sharding.errors import ModelError
from sharding.importers.networks.export import HeldWeight, export_program, quiet
from sharding.importers.networks.factory import described
from sharding.importers.networks.packages import need
from sharding.importers.networks.program_check import check_program

if TYPE_CHECKING:
    import onnx

_UNFOLDED_MOST = 4
"""Weights may repeat the numbers that lie in the file (a stride of 0), up to so many times its size."""
_SPARE = 1 << 20
_ON_SHAPES = tuple(f"sym_{name}" for name in ("float", "int", "ite", "max", "min", "not", "sqrt"))
_MODULES = frozenset({operator.__name__, "_operator", math.__name__})


def import_program(path: Path, opset: int) -> tuple[onnx.ModelProto, dict[str, HeldWeight]]:
    """Reads a ``.pt2`` file as ONNX; the weights are in torch's memory.

    Raises `ModelError`: truncated, damaged, not to be trusted (`program_check`), or torch cannot export it.
    """
    torch = need("torch", f"{path} is an exported program of torch")
    with quiet():
        check_program(path)
        try:
            program = torch.export.load(str(path))
        except Exception as error:  # a damaged file fails anywhere in torch
            reason = described(error)
            if "warnings above" in reason:  # torch says what in its log only
                reason = f"it is damaged, or not for torch {torch.__version__}"
            raise ModelError(f"{path} cannot be read as an exported program: {reason}.") from None
    _check_calls(torch, program, path)
    _check_weights(program, path)
    return export_program(program, opset, str(path))


def _check_calls(torch: Any, program: Any, path: Path) -> None:
    """Raises `ModelError` where the program calls anything but operators: torch finds more by name."""
    kinds = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = node.target
            allowed = isinstance(target, kinds) or getattr(target, "__module__", "") in _MODULES
            allowed = allowed or any(target is getattr(torch, name, None) for name in _ON_SHAPES)
            if node.op in {"call_module", "call_method"} or (node.op == "call_function" and not allowed):
                name = shortened(one_line(str(target)), 80)
                raise ModelError(f"{path} is refused: it calls {name!r}, which is no operator.")


def _check_weights(program: Any, path: Path) -> None:
    """Raises `ModelError` where weights are much larger than the file, which they would become in memory."""
    size = path.stat().st_size
    held = {id(item): item for group in (program.state_dict, program.constants) for item in group.values()}
    needed = sum(
        item.numel() * item.element_size() for item in held.values() if hasattr(item, "element_size")
    )
    if needed > _UNFOLDED_MOST * size + _SPARE:
        raise ModelError(
            f"{path} describes weights of {human_bytes(needed)}, but has {human_bytes(size)}: it is damaged."
        )
