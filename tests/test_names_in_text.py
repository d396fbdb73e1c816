"""What pages, docstrings and comments name is there: files, folders, modules, and what modules hold."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_rooms import FLOORS

ROOT = Path(__file__).parents[1]
PACKAGES = ("sharding", "ranks", "launcher")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (*PACKAGES, "tests", "scripts", "benchmarks", "examples", "configs", "rank_tables", "docs")

SUFFIXES = "py|md|sh|c|json|yaml|ini|txt|png|svg"
PATH = re.compile(rf"(?<![\w./~$-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*]\.(?:{SUFFIXES})\b(?!\()")
"""A file of the repository; a star stands for any."""
FOLDER = re.compile(rf"(?<![\w./~$-])(?:{'|'.join(PACKAGES)}|tests|docs)/(?:\w+/)*(?!\w)")
DOTTED = re.compile(rf"(?<![\w./@-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+(?![\w/])")
FILES = {"json", "yaml", "yml", "log", "onnx", "npz", "md", "txt", "sh", "py", "ini"}
"""What follows the dot where a name is a file's, as in `ranks.json`."""


@cache
def _contents(module: Path) -> frozenset[str]:
    """The names that a module has at its top, those that are imported there too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # names that are imported when first used stand in tables
    return frozenset(names)


@cache
def _exists(dotted: str) -> bool:
    """Whether a module of this name is there, or one that has the rest's first part."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        module = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        if module.is_file():
            return length == len(parts) or parts[length] in _contents(module)
    return False


@cache
def _is_file(path: str) -> bool:
    return any(ROOT.glob(path))


def _wrong(text: str) -> Iterator[str]:
    for path in PATH.findall(text):
        if not _is_file(path):
            yield path
    for folder in FOLDER.findall(text):
        if not (ROOT / folder).is_dir():
            yield folder
    for name in DOTTED.findall(text):
        if name.rsplit(".", 1)[1] not in FILES and not _exists(name):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_is_there(page: Path) -> None:
    assert list(_wrong(page.read_text("utf-8"))) == []


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "scripts", "benchmarks", "examples"])
def test_docstrings_and_comments_name_what_is_there(folder: str) -> None:
    sources = {path: path.read_text("utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, source in sources.items()
        if any(_wrong(source))  # the rest need not be parsed
        for line, text in _prose(source)
        for name in _wrong(text)
    ]
    assert wrong == []


def test_the_design_describes_every_room_from_the_lowest_up() -> None:
    described = re.findall(
        r"^\*\*`(\w+/\w+)`\*\*", (ROOT / "docs/design.md").read_text("utf-8"), re.MULTILINE
    )
    rooms = [room.replace(".", "/") for room in FLOORS if room.count(".") == 1]
    assert described == rooms


def test_the_design_is_read_in_ten_minutes() -> None:
    """What is longer goes to docs/decisions.md, by room."""
    assert len((ROOT / "docs/design.md").read_text("utf-8").split()) <= 2200


def test_decisions_stand_by_room_from_the_lowest_up() -> None:
    page = (ROOT / "docs/decisions.md").read_text("utf-8")
    rooms = [heading.replace("/", ".") for heading in re.findall(r"^### (.+)$", page, re.MULTILINE)]
    assert len(rooms) > 10 and rooms == [room for room in FLOORS if room in rooms]


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"\bSHARDRUN_[A-Z_]*[A-Z]\b", source)}
    page = (ROOT / "docs/environment.md").read_text("utf-8")
    assert used and {name for name in used if f"`{name}`" not in page} == set()


def test_where_things_are() -> None:
    """CONTRIBUTING's table: each file holds one of the names to look for, and each name is in a file."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Where is")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert len(rows) >= 15
    for question, place, names in rows:
        files = [(ROOT / path).read_text("utf-8") for path in PATH.findall(place)]
        wanted = [re.compile(rf"\b{name}\b") for name in re.findall(r"`([^`]+)`", names)]
        assert files and wanted, question
        assert all(any(name.search(file) for name in wanted) for file in files), question
        assert all(any(name.search(file) for file in files) for name in wanted), question


def test_a_wrong_name_is_found() -> None:
    text = (
        "`launcher/nowhere.py`, `ranks.nowhere`, `sharding/nowhere/`, `ranks.Nothing`, `tests/*/nothing.py`"
    )
    assert len(list(_wrong(text))) == 5
    assert not list(
        _wrong("`launcher/cli.py`, `ranks.Model`, `sharding/rules/`, `launcher.start`, `ranks.json`")
    )
