"""Arguments travel as arguments: the launcher does not write environment variables of its own process."""

from __future__ import annotations

import ast
from pathlib import Path

import launcher
from tests.test_rooms import OF_LIBRARIES

FOLDER = Path(launcher.__file__).parent


def _written(tree: ast.AST) -> list[int]:
    """The lines that change `os.environ`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed: ast.expr | None = node.value
        elif isinstance(node, ast.Attribute) and node.attr in {"update", "pop", "setdefault", "clear"}:
            changed = node.value
        else:
            continue
        if isinstance(changed, ast.Attribute) and changed.attr == "environ":
            found.append(node.lineno)
    return found


def test_no_environment_variable_is_written() -> None:
    assert _written(ast.parse("os.environ['X'] = 'y'\ndel os.environ['X']\nos.environ.pop('X')")) == [1, 2, 3]
    writers = {
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*.py")
        if _written(ast.parse(path.read_text()))
    }
    named = (name.split(".") for name in OF_LIBRARIES)
    assert writers == {f"{'/'.join(parts[1:])}.py" for parts in named if parts[0] == "launcher"}
