"""Facts that stand in one place: names of environment variables, and what else would be written twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from ranks.common import settings, sources
from tests.test_rooms import MODULES

OURS = re.compile(r"\bSHARDRUN_[A-Z]+(?:_[A-Z]+)*\b")
LAUNCHERS = re.compile(
    r"\b(?:RANK|WORLD_SIZE|RANK_ID|RANK_SIZE|RANK_TABLE_FILE|DEVICE_ID|LOCAL_(?:RANK|WORLD_SIZE)"
    r"|MASTER_(?:ADDR|PORT)|MPI_LOCAL[A-Z]+"
    r"|(?:TORCHELASTIC|SLURM|OMPI_COMM_WORLD|PMIX|PMI|PBS|LSB)_[A-Z]+(?:_[A-Z]+)*)\b"
)
"""Variables by which launchers and batch systems tell a process who and where it is."""
OF_SYSTEMS = {"SLURM_CONF", "PBS_O_WORKDIR"}
"""What messages and scripts alone name: no code reads it."""


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings, with their lines."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def _names(module: object) -> set[str]:
    return {value for value in vars(module).values() if isinstance(value, str)}


@pytest.mark.parametrize(
    ("pattern", "home", "known"),
    [
        (OURS, "ranks.common.settings", {variable.name for variable in settings.VARIABLES}),
        (LAUNCHERS, "ranks.common.sources", _names(sources)),
    ],
    ids=["settings", "launchers"],
)
def test_names_of_variables_stand_in_one_module(pattern: re.Pattern[str], home: str, known: set[str]) -> None:
    """Elsewhere a variable is named by the constant. Messages and scripts may have its name within a longer
    text, if it is one of those known: no typing error comes to a user."""
    alone, unknown, seen = [], [], 0
    for name, path in MODULES.items():
        if name == home:
            continue
        for line, text in _texts(ast.parse(path.read_text())):
            if pattern.fullmatch(text):
                alone.append(f"{name}:{line}: {text}")
            found = set(pattern.findall(text))
            seen += len(found)
            unknown += [f"{name}:{line}: {word}" for word in sorted(found - known - OF_SYSTEMS)]
    assert seen > 10 and alone == [] and unknown == []
