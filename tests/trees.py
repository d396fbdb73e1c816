"""The syntax trees of all modules of the code, read once for the tests that look through them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
PACKAGES = ("sharding", "ranks", "launcher")

Kind = TypeVar("Kind", bound=ast.AST)


def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


@cache
def tree(name: str) -> ast.Module:
    """The module of this name."""
    return ast.parse(MODULES[name].read_text())


@cache
def _by_type(name: str) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree(name)):
        found.setdefault(type(node), []).append(node)
    return found


def nodes(name: str, *kinds: type[Kind]) -> Iterator[Kind]:
    """The nodes of these types in a module, type by type, each in the order of `ast.walk`."""
    for kind in kinds:
        yield from _by_type(name).get(kind, ())
