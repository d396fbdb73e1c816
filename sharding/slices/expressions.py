"""Lengths of axes as exporters write them: expressions of names and numbers."""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Mapping

MARK = "·"
"""Stands between the factors of a length that is a product (`sharding.rules.products`)."""
_LONGEST = 200
"""Characters of an expression that is read."""
_WORD = re.compile(r"[^\W\d]\w*")
_NO_KEYWORD = "__name"
"""Stands behind a name that is a keyword of Python (``in``), while Python reads it."""


def number_of(length: str, numbers: Mapping[str, int]) -> int | None:
    """What an expression (``past + 1``, ``Min(128, sequence)``) of these names is; None where it cannot be
    told."""
    try:
        return _value(parsed(length), numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_expression(axis: str, names: Iterable[str]) -> bool:
    """Whether a name reads as an expression of some of these names."""
    if axis.isidentifier():
        return False
    text = axis.replace(MARK, "*")
    return number_of(text, {}) is None and number_of(text, dict.fromkeys(names, 7)) is not None


def parsed(length: str) -> ast.expr:
    """The expression's tree, in which any name may stand. Raises `SyntaxError`, `ValueError` (also for a long
    one: its beginning means something else), and what else Python's parser does."""
    words = set(_WORD.findall(length))
    names = {word + _NO_KEYWORD: word for word in words if keyword.iskeyword(word)}
    if len(length) > _LONGEST or not words.isdisjoint(names):
        raise ValueError("it is too long, or has a name that is one of those made here")
    for made, word in names.items():
        length = re.sub(rf"\b{word}\b", made, length)
    tree = ast.parse(length, mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return tree


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"min": min, "max": max, "floor": lambda x: x}


def _value(node: ast.expr, numbers: Mapping[str, int]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) < 1 << 31 else None
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, numbers)
        return None if value is None else -value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and node.args:
        function = _FUNCTIONS.get(node.func.id.lower())
        found = [_value(item, numbers) for item in node.args]
        if function is None or None in found or (function not in {min, max} and len(found) > 1):
            return None
        return function(*found) if len(found) > 1 else found[0]
    operation = _OPERATIONS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if operation is None or not isinstance(node, ast.BinOp):
        return None
    a, b = _value(node.left, numbers), _value(node.right, numbers)
    if a is None or b is None or abs(a) > 1 << 31 or abs(b) > 1 << 31:
        return None
    return None if b == 0 and operation in {operator.floordiv, operator.mod} else operation(a, b)
