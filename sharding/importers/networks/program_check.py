"""What torch's exported programs (``.pt2``) may hold, checked before torch reads them.

`torch.export.load` unpickles what a file says is a pickle, evaluates the expressions of its shapes and the
conditions on its inputs as Python, imports modules that the structure of results names, and calls functions
of torch by the names in it. So a file is refused that has a pickle of more than tensors, an expression that
is no arithmetic, a condition on more than shapes, a structure with names of modules, or a function that is no
operator. Members are read as torch reads them, and as `zipfile` does: one archive may look different to each.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sharding.common.text import one_line, shortened
from sharding.errors import ModelError
from sharding.importers import torch_import
from sharding.importers.checkpoints.torch_file import check_archive
from sharding.importers.networks.factory import described

_MOST_JSON = 1 << 30
_PICKLED_OBJECTS = ("custom_obj_", "opaque_obj_")
"""How torch begins the names of constants that it unpickles whatever they are."""
_OPERATORS = re.compile(
    r"torch\.ops\.(?!load_library\b|import_module\b|loaded_libraries\b)[A-Za-z]\w*\.[A-Za-z_]\w*(\.\w+)?|"
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|truediv|mod|pow|and_|or_|lshift|rshift|getitem)|"
    r"math\.(trunc|ceil|floor|sqrt)|torch\.sym_[a-z]+"
)
"""Names of operators, of control flow, and of arithmetic on shapes."""
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant,
    ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_SYMBOL = re.compile(r"Symbol\('([A-Za-z]\w*)'(?:, \w+=(?:True|False))*\)")
"""How torch writes a symbol: its name and what is known of it."""
_FUNCTIONS = frozenset({
    # Of torch.utils._sympy.functions, and how sympy writes what it has operators for.
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt",
    "CeilDiv", "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat",
    "TruncToInt", "ToFloat", "RoundToInt", "RoundDecimal", "Identity", "Max", "Min",
    "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "Add", "Mul", "Integer", "Float", "Rational",
    "Abs", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan",
    "StrictGreaterThan", "GreaterThan", "And", "Or", "Not", "Piecewise", "ExprCondPair", "Tuple", "Pow",
    "PowByNatural", "FloatPow", "LShift", "RShift",
})  # fmt: skip
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_LARGEST = 1 << 63
_MOST_POWER = 64
"""The product of all exponents in an expression: 9**9**9 has more digits than a memory holds."""
_LENGTHS = re.compile(
    r"L(\['[^'\\\[\]]{0,200}'\]|\[\d{1,4}\])+(\.size\(\)|\.shape)\[\d{1,2}\]|L(\['\w{0,200}'\]|\[\d{1,4}\])+"
)
"""How conditions on inputs name an axis, or an input that is a number."""
_DEEPEST = 8
"""Texts of JSON in texts of JSON: structures have two or three levels."""


def check_program(path: Path) -> None:
    """Raises `ModelError` unless the file can be read without running what it says."""
    check_archive(path)
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.file_size > size:
                    raise ModelError(f"{path} is truncated or damaged: it is shorter than what it lists.")
                _check_member(member.filename, lambda member=member: archive.read(member), path)  # type: ignore[misc]
        reader = torch_import.load()._C.PyTorchFileReader(str(path))
        for name in reader.get_all_records():
            _check_member(name, lambda name=name: reader.get_record(name), path)  # type: ignore[misc]
    except ModelError:
        raise
    except Exception as error:  # both readers fail in ways that have no common base
        reason = getattr(error, "strerror", None) or described(error)
        raise ModelError(f"{path} is truncated or damaged: {shortened(reason, 200)}.") from None


def _check_member(name: str, read: Callable[[], bytes], path: Path) -> None:
    if "aotinductor" in name or name.endswith((".so", ".py")):
        raise ModelError(f"{path} is refused: it holds compiled code ({shortened(one_line(name), 80)}).")
    parts = name.split("/")
    if any(part.startswith(_PICKLED_OBJECTS) for part in parts):
        raise ModelError(f"{path} is refused: it holds the pickled object {shortened(one_line(name), 80)}.")
    shown = shortened(one_line(parts[-1]), 80)
    # Whatever lies among the models is taken for one, and whatever ends so for a pickle.
    if name.endswith(".pt"):
        _check_pickle(read(), shown, path)
    elif name.endswith(".json") or "models" in parts[:2]:
        data = read()
        if len(data) > _MOST_JSON:
            raise ModelError(f"{path} is refused: its {shown} has {len(data)} bytes.")
        try:
            document = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise ModelError(f"{path} is damaged: its {shown} is no JSON.") from None
        _check_json(document, path)


def _check_pickle(data: bytes, name: str, path: Path) -> None:
    if not data:
        return
    try:
        torch_import.load().load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"{path} is refused: its {name} is a pickle of more than tensors and plain "
            f"containers, or damaged ({described(error)[:160]}). Export the program again without example "
            "inputs or constants of other kinds."
        ) from None


def _check_json(document: object, path: Path) -> None:
    def refuse(why: str, what: object, rule: str) -> ModelError:
        return ModelError(f"{path} is refused: {why} {shortened(one_line(str(what)), 80)!r}{rule}.")

    for item in _mappings(document):
        if item.get("use_pickle"):
            raise ModelError(f"{path} is refused: it says that a weight in it is a pickle.")
        place = item.get("path_name")
        if place is not None and not (isinstance(place, str) and re.fullmatch(r"(weight|tensor)_\d+", place)):
            raise refuse("it has a weight in", place, ", which is no place of weights")
        expression = item.get("expr_str")
        if expression is not None and not is_arithmetic(expression):
            raise refuse("its shape", expression, " is no arithmetic")
        for text in _texts(item.get("guards_code")):
            if not is_condition(text):
                raise refuse("its condition", text, " is on more than shapes")
        # A call: it has a target and inputs. Parameters have targets, too, which are names of weights.
        target = item.get("target")
        if "inputs" in item and target is not None and not _OPERATORS.fullmatch(str(target)):
            raise refuse("it calls", target, ", which is no operator")
        for key in ("default_factory_module", "__enum__"):
            if key in item:
                raise refuse(
                    "its inputs or results are built with", item.get("fqn", item[key]), "; use plain ones"
                )


def _texts(item: object) -> list[object]:
    return item if isinstance(item, list) else [] if item is None else [item]


def _mappings(document: object) -> Iterator[dict[str, object]]:
    """All mappings in a document, those too that stand as JSON in its texts."""
    waiting = [(document, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend((inner, depth) for inner in item.values())
        elif isinstance(item, list):
            waiting.extend((inner, depth) for inner in item)
        elif isinstance(item, str) and item.lstrip()[:1] in {"{", "[", '"'} and depth < _DEEPEST:
            try:
                waiting.append((json.loads(item), depth + 1))
            except (ValueError, RecursionError):
                continue  # a text that only begins so


def is_arithmetic(text: object) -> bool:
    """Whether a text is an expression of numbers, symbols, operators and functions of shapes alone, whose
    value cannot be huge."""
    if not isinstance(text, str) or len(text) > 10_000:
        return False
    try:
        tree = ast.parse(_SYMBOL.sub(r"\1", text), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    power = 1.0
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC):
            return False
        if isinstance(node, ast.Constant) and not (
            # Texts are allowed in symbols only, which are taken out.
            isinstance(node.value, (int, float)) and abs(node.value) < _LARGEST
        ):
            return False
        if isinstance(node, ast.Call) and (
            not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords
        ):
            return False
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            return False
        power *= _power(node)
        if not power <= _MOST_POWER:
            return False
    return True


def _power(node: ast.AST) -> float:
    """What a node may multiply the digits of a number by."""
    exponent: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        exponent = node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _POWERS:
        exponent = node.args[1] if len(node.args) == 2 else node.func
    if exponent is None:
        return 1
    while isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    if isinstance(exponent, ast.Call) and len(exponent.args) == 1:
        exponent = exponent.args[0]  # Integer(2)
    while isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    if isinstance(exponent, ast.Constant) and isinstance(exponent.value, (int, float)):
        return max(1.0, float(abs(exponent.value)))
    return _MOST_POWER + 1


def is_condition(text: object) -> bool:
    """Whether a text compares lengths of inputs with arithmetic, and does nothing else."""
    if not isinstance(text, str):
        return False
    return is_arithmetic(re.sub(r"\bmath\.(inf|isnan|isinf)\b", "Max", _LENGTHS.sub("s", text)))
