"""torch's exported programs (``.pt2``), checked before torch reads them.

`torch.export.load` unpickles what a file says is a pickle, evaluates the expressions of its shapes as
Python, and finds functions of torch by the names in it. So a file is refused that has a pickle of more than
tensors, an expression that is no arithmetic, or a function that is no operator.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharding import torch_import
from sharding.errors import ModelError
from sharding.importers.checkpoints.torch_file import check_archive
from sharding.importers.networks.export import HeldWeight, export_program, quiet
from sharding.importers.networks.factory import described
from sharding.importers.networks.packages import need
from sharding.text import one_line, shortened

if TYPE_CHECKING:
    import onnx

_MOST_JSON = 1 << 30
_OPERATORS = re.compile(
    r"torch\.ops\.[A-Za-z0-9_.]+|_operator\.[a-z_]+|math\.[a-z0-9_]+|torch\.sym_[a-z_]+|"
    r"torch\._higher_order_ops\.[A-Za-z0-9_.]+"
)
"""Names of operators, of arithmetic on shapes, and of control flow."""
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant,
    ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_SYMBOL = re.compile(r"Symbol\('([A-Za-z]\w*)'(?:, \w+=(?:True|False))*\)")
"""How torch writes a symbol: its name and what is known of it."""
_FUNCTION = re.compile(r"[A-Z]\w*")
"""Functions in expressions are classes of sympy and torch, such as ``FloorDiv`` and ``Max``."""


def import_program(path: Path, opset: int) -> tuple[onnx.ModelProto, dict[str, HeldWeight]]:
    """Reads a ``.pt2`` file as ONNX; the weights are in torch's memory.

    Raises `ModelError`: truncated, damaged, not to be trusted (see above), or torch cannot export it.
    """
    torch = need("torch", f"{path} is an exported program of torch")
    check_program(path)
    with quiet():
        try:
            program = torch.export.load(str(path))
        except Exception as error:  # a damaged file fails anywhere in torch
            raise ModelError(f"{path} cannot be read as an exported program: {described(error)}.") from None
    return export_program(program, opset, str(path))


def check_program(path: Path) -> None:
    """Raises `ModelError` unless the file can be read without running what it says."""
    check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(archive, member, path)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(str(error))
        raise ModelError(f"{path} is truncated or damaged: {reason}.") from None


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    name = member.filename
    if "aotinductor" in name or name.endswith((".so", ".py")):
        raise ModelError(f"{path} is refused: it holds compiled code ({shortened(one_line(name), 80)}).")
    base = name.rpartition("/")[2]
    if base.startswith(("custom_obj_", "opaque_obj_")):
        raise ModelError(f"{path} is refused: it holds the pickled object {one_line(base)[:80]}.")
    if base.endswith(".json"):
        if member.file_size > _MOST_JSON:
            raise ModelError(f"{path} is refused: its {one_line(base)[:80]} has {member.file_size} bytes.")
        try:
            document = json.loads(archive.read(member))
        except (ValueError, RecursionError):
            raise ModelError(f"{path} is damaged: its {one_line(base)[:80]} is no JSON.") from None
        _check_json(document, path)
    elif base.endswith(".pt"):
        _check_pickle(archive.read(member), base, path)


def _check_pickle(data: bytes, name: str, path: Path) -> None:
    torch = torch_import.load()
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"{path} is refused: its {one_line(name)[:80]} is a pickle of more than tensors and plain "
            f"containers, or damaged ({described(error)[:160]}). Export the program again without example "
            "inputs or constants of other kinds."
        ) from None


def _check_json(document: Any, path: Path) -> None:
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
            continue
        if not isinstance(item, dict):
            continue
        waiting.extend(item.values())
        if item.get("use_pickle"):
            raise ModelError(f"{path} is refused: it says that a weight in it is a pickle.")
        expression = item.get("expr_str")
        if expression is not None and not is_arithmetic(expression):
            raise ModelError(
                f"{path} is refused: its shape {shortened(one_line(str(expression)), 80)!r} is no arithmetic."
            )
        target = item.get("target")
        # A call: it has a target and inputs. Parameters have targets, too, which are names of weights.
        if isinstance(target, str) and "inputs" in item and not _OPERATORS.fullmatch(target):
            raise ModelError(
                f"{path} is refused: it calls {shortened(one_line(target), 80)!r}, which is no operator."
            )


def is_arithmetic(text: Any) -> bool:
    """Whether a text is an expression of numbers, symbols, operators and functions of sympy alone."""
    if not isinstance(text, str) or len(text) > 10_000:
        return False
    try:
        tree = ast.parse(_SYMBOL.sub(r"\1", text), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC):
            return False
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)):
            return False  # texts are allowed in symbols only, which are taken out
        if isinstance(node, ast.Call) and (
            not isinstance(node.func, ast.Name) or not _FUNCTION.fullmatch(node.func.id) or node.keywords
        ):
            return False
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            return False
    return True
