"""The layout of the code: rooms import downward only, modules in no circle, no room too full."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterable, Iterator

import pytest

from sharding.importers import torch_import
from tests.trees import MODULES, PACKAGES, nodes, tree

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


def _imports(name: str, *, runs: bool) -> Iterator[str]:
    """The modules that a module imports, inside functions too. ``runs``: without what only annotations need;
    otherwise also those that it names in a text, to import them by it."""
    hidden = set()
    for node in nodes(name, ast.If) if runs else ():
        if "TYPE_CHECKING" in ast.unparse(node.test):
            hidden |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in nodes(name, ast.Import):
        if id(node) not in hidden:
            yield from (alias.name for alias in node.names if alias.name in MODULES)
    for node in nodes(name, ast.ImportFrom):
        if id(node) in hidden or not node.module:
            continue
        assert not node.level, f"{name}: relative imports are not used here"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in MODULES or node.module in MODULES:
                yield whole if whole in MODULES else node.module
    for node in nodes(name, ast.Constant) if not runs else ():
        if isinstance(node.value, str) and "." in node.value and node.value in MODULES:
            yield node.value


def _outside(name: str) -> set[str]:
    """The packages that a module imports, by their first names."""
    plain = {alias.name.split(".")[0] for node in nodes(name, ast.Import) for alias in node.names}
    return plain | {(node.module or "").split(".")[0] for node in nodes(name, ast.ImportFrom)}


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
    missing = [name for name in MODULES if not ast.get_docstring(tree(name))]
    assert not missing


CONTRACTS = {
    "ranks.lite.options.legacy_device.__init__": "mindspore_lite's",
}
"""Functions whose parameters somebody else has fixed; those of a MindIR primitive are its settings."""


def test_functions_with_many_parameters_take_an_object() -> None:
    found = set()
    for name in MODULES:
        for node in nodes(name, ast.FunctionDef, ast.AsyncFunctionDef):
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
    inside = list(ast.walk(function))
    own = {node.arg for node in inside if isinstance(node, ast.arg)}
    own |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in inside:
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
        body = tree(name).body
        places = [place for node in body for target in _assigned(node) for place in ast.walk(target)]
        variables = {place.id for place in places if isinstance(place, ast.Name)}
        for node in nodes(name, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
            found |= {f"{name}.{changed}" for changed in _changed_in(node, variables)}
    assert found == REGISTRIES


OF_LIBRARIES = {
    "ranks": "ONNX Runtime's telemetry is off, unless a user says otherwise",
    "ranks.boot": "a spawned rank starts with the environment made for it",
    "ranks.collectives.mpi": "an MPI library reads nothing else",
    "ranks.talk.keeper": "an MPI library reads nothing else",
    "ranks.compat": "a script's children inherit where it runs",
    "launcher.commands.exec": "a script's children inherit its options",
    "launcher.starters.staging.receiver": "a process of another host has its job's settings",
    "ranks.identity.binding": "a script's children inherit its cores, and that no other rank has them",
    "sharding.common.variables": "torch and Ray read nothing else; what was there is put back",
    "ranks.common.settings": "what is for this process alone is taken away from those that it starts",
}
"""Modules that write environment variables, and why."""


WRITES = (ast.Assign, ast.Delete, ast.AugAssign, ast.AnnAssign, ast.Call)
"""What can write a variable."""


def _writes_environment(written_by: Iterable[ast.AST]) -> list[int]:
    """The lines that change this process's variables."""
    found = []
    for node in written_by:
        written = [item.value for item in _assigned(node) if isinstance(item, ast.Subscript)]
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in {*CHANGES, "putenv", "unsetenv"}:
            written.append(called.value)
        names = (ast.unparse(item) for item in written if isinstance(item, ast.Attribute | ast.Name))
        if not {"os.environ", "environ", "os"}.isdisjoint(names):
            found.append(node.lineno)
    return found


def test_environment_variables_are_no_way_to_pass_arguments() -> None:
    changes = "os.environ['X'] = 'y'\ndel os.environ['X']\nos.environ.pop('X')\nos.putenv('X', 'y')\n"
    written_by = [node for node in ast.walk(ast.parse(changes)) if isinstance(node, WRITES)]
    assert sorted(_writes_environment(written_by)) == [1, 2, 3, 4]
    assert {name for name in MODULES if _writes_environment(nodes(name, *WRITES))} == OF_LIBRARIES.keys()


def _imports_torch(name: str) -> bool:
    named = [node.args for node in nodes(name, ast.Call) if _called(node).endswith("import_module")]
    texts = [item.value for args in named for item in args if isinstance(item, ast.Constant)]
    return "torch" in _outside(name) or any(str(text).partition(".")[0] == "torch" for text in texts)


def _called(node: ast.Call) -> str:
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
    return str(name)


def test_torch_is_imported_in_one_place() -> None:
    """Beside a package for a device whose driver is missing its import fails, unless it is told to leave that
    package alone."""
    found = [name for name in MODULES if _imports_torch(name)]
    assert not found, f"use {torch_import.__name__}"
