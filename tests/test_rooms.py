"""The layout of the code: rooms import downward only, modules in no circle, no room too full."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sharding", "ranks", "launcher")

FLOORS = (
    *("sharding.common", "sharding.slices", "sharding.onnx_files", "sharding.importers"),
    *("sharding.rules", "sharding.graph", "sharding.rewrite", "sharding.reading", "sharding.search"),
    *("sharding.pipeline", "sharding.demands", "sharding.planning", "sharding.writing", "sharding"),
    *("ranks.common", "ranks.identity", "ranks.devices", "ranks.talk", "ranks.cache", "ranks.collectives"),
    *("ranks.models", "ranks.sessions", "ranks.precision", "ranks.agreement", "ranks.weights.prepared"),
    *("ranks.weights.updated", "ranks.weights.device", "ranks.weights.shared", "ranks.weights"),
    *(
        "ranks.state",
        "ranks.tokens",
        "ranks.run",
        "ranks.evaluation",
        "ranks.lite.options",
        "ranks.lite",
        "ranks",
    ),
    *("launcher.common", "launcher.inspection", "launcher.job", "launcher.starters"),
    *(
        "launcher.submission",
        "launcher.generation",
        "launcher.group",
        "launcher.checkup",
        "launcher.tasks",
        "launcher.serving",
        "launcher.commands",
        "launcher",
    ),
)
"""From the lowest up: a room imports from itself and from those before it. A package's errors, which users
import, are in its common room."""

FULL = {"sharding.rules", "sharding.importers.mindir.primitives"}
"""Rooms of which each module is one family of operators: they may hold more than `MOST_MODULES`."""
MOST_MODULES, MOST_LINES = 16, 400
OF_SHARDING = {f"sharding.{room}" for room in ("errors", "common", "slices", "onnx_files", "importers")}
"""What ranks take from sharding: no graph, no plan."""


def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


@functools.cache
def _tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def _imports(name: str, *, runs: bool) -> Iterator[str]:
    """The modules that a module imports, inside functions too. ``runs``: without what only annotations need;
    otherwise also those that it names in a text, to import them by it."""
    tree = _tree(name)
    hidden = set()
    if runs:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                hidden |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.Constant) and not runs:
            if isinstance(node.value, str) and "." in node.value and node.value in MODULES:
                yield node.value
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{name}: relative imports are not used here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in MODULES or node.module in MODULES:
                    yield whole if whole in MODULES else node.module


def _outside(name: str) -> set[str]:
    """The packages that a module imports, by their first names."""
    found = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def _floor(name: str) -> int:
    name = name.replace(".errors", ".common") if name.count(".") == 1 else name
    room = max((room for room in FLOORS if name == room or name.startswith(f"{room}.")), key=len)
    return FLOORS.index(room)


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_downward_only(package: str) -> None:
    upward = [
        f"{name} imports {other}"
        for name in MODULES
        if name.split(".")[0] == package
        for other in _imports(name, runs=False)
        if _floor(other) > _floor(name)
    ]
    assert not upward


def test_ranks_know_nothing_of_plans() -> None:
    taken = {
        f"{name} imports {other}"
        for name in MODULES
        if name.split(".")[0] == "ranks"
        for other in _imports(name, runs=False)
        if other.startswith("sharding") and ".".join(other.split(".")[:2]) not in OF_SHARDING
    }
    assert not taken


def test_the_core_of_ranks_knows_nothing_of_mindspore_lite() -> None:
    """Not even by name, but where environment variables are read."""
    core = [
        name for name in MODULES if name.startswith("ranks.") and _floor(name) < _floor("ranks.lite.options")
    ]
    named = [name for name in core if "mindspore_lite" in MODULES[name].read_text().lower()]
    assert len(core) > 50 and named == ["ranks.common.settings"]


def test_no_modules_import_each_other() -> None:
    """What is imported for annotations only does not count: nothing of it runs."""
    below = {name: set(_imports(name, runs=True)) - {name} for name in MODULES}
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as found:
        circle = found.args[1][::-1]  # each imports the next, the last is the first again
    assert circle == []


@pytest.mark.parametrize("library", ["torch", "onnxruntime", "mpi4py"])
def test_sharding_runs_nothing(library: str) -> None:
    """Torch is imported in one place of the importers, by name; sessions and MPI are the ranks' alone."""
    users = [name for name in MODULES if name.split(".")[0] == "sharding" and library in _outside(name)]
    assert not users


def test_no_room_is_too_full() -> None:
    rooms: dict[str, int] = {}
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            room = name.rpartition(".")[0]
            rooms[room] = rooms.get(room, 0) + 1
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES and room not in FULL} == {}
    assert max(len(path.read_text().splitlines()) for path in MODULES.values()) <= MOST_LINES
    modules = [path for path in MODULES.values() if path.name != "__init__.py"]
    lines = sorted(len(path.read_text().splitlines()) for path in modules)
    assert lines[len(lines) // 2] <= 150


def test_every_room_says_what_it_is() -> None:
    missing = [name for name in MODULES if not ast.get_docstring(_tree(name))]
    assert not missing


CONTRACTS = {
    "ranks.lite.options.legacy_device.__init__": "mindspore_lite's",
}
"""Functions whose parameters somebody else has fixed; those of a MindIR primitive are its settings."""


def test_functions_with_many_parameters_take_an_object() -> None:
    found = set()
    for name in MODULES:
        for node in ast.walk(_tree(name)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            makers = {ast.unparse(item).partition("(")[0] for item in node.decorator_list}
            if len(given) - (given[:1] in (["self"], ["cls"])) > 8 and not makers & {"primitive", "table"}:
                found.add(f"{name}.{node.name}")
    assert found == CONTRACTS.keys()


REGISTRIES = {
    "sharding.rules.base.RULES",
    "sharding.rules.base.GIVES",
    "sharding.pipeline.rows.ROW_RULES",
    "sharding.importers.mindir.primitives.base.PRIMITIVES",
    "ranks.common.pulse.PLACES",
}
"""Variables of modules that functions change: only decorators do, and classes that are made, while
modules are imported."""
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "update"),
}


def _assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _changed_in(function: ast.AST, variables: set[str]) -> Iterator[str]:
    """The variables of a module that a function changes: binds anew, or the items of a container."""
    nodes = list(ast.walk(function))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Global):
            yield from node.names
            own -= set(node.names)
        items = [item.value for item in _assigned(node) if isinstance(item, ast.Subscript)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            items.append(node.func.value)
        for item in items:
            inner = item
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in variables - own:
                yield inner.id


def test_no_variable_of_a_module_changes_after_import() -> None:
    found = set()
    for name in MODULES:
        tree = _tree(name)
        places = [place for node in tree.body for target in _assigned(node) for place in ast.walk(target)]
        variables = {place.id for place in places if isinstance(place, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                found |= {f"{name}.{changed}" for changed in _changed_in(node, variables)}
    assert found == REGISTRIES


OF_LIBRARIES = {
    "ranks": "ONNX Runtime's telemetry is off, unless a user says otherwise",
    "ranks.boot": "a spawned rank starts with the environment made for it",
    "ranks.collectives.mpi": "an MPI library reads nothing else",
    "ranks.compat": "a script's children inherit where it runs",
    "launcher.commands.exec": "a script's children inherit its options",
    "launcher.starters.staging.receiver": "a process of another host has its job's settings",
    "ranks.identity.binding": "a script's children inherit its cores, and that no other rank has them",
    "sharding.common.variables": "torch and Ray read nothing else; what was there is put back",
    "ranks.common.settings": "what is for this process alone is taken away from those that it starts",
}
"""Modules that write environment variables, and why."""


def _writes_environment(tree: ast.Module) -> list[int]:
    """The lines that change this process's variables."""
    found = []
    for node in ast.walk(tree):
        written = [item.value for item in _assigned(node) if isinstance(item, ast.Subscript)]
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in {*CHANGES, "putenv", "unsetenv"}:
            written.append(called.value)
        if any(ast.unparse(item) in {"os.environ", "environ", "os"} for item in written):
            found.append(node.lineno)
    return found


def test_environment_variables_are_no_way_to_pass_arguments() -> None:
    changes = "os.environ['X'] = 'y'\ndel os.environ['X']\nos.environ.pop('X')\nos.putenv('X', 'y')\n"
    assert _writes_environment(ast.parse(changes)) == [1, 2, 3, 4]
    assert {name for name in MODULES if _writes_environment(_tree(name))} == OF_LIBRARIES.keys()
