"""Where types end: the modules that may say ``Any``, each with the reason, and mypy's settings."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

import pytest

from launcher.serving.grpc.schema import MESSAGES
from sharding.errors import ModelError
from sharding.importers.mindir.schema import _MESSAGES
from sharding.onnx_files.attributes import integer, integers
from sharding.onnx_files.made_messages import Fields
from tests.trees import MODULES, PACKAGES, ROOT, nodes

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

BORDER = {
    "the element type of an array is known only when it has been read": """
        sharding.common.arrays""",
    "a buffer is an array or a tensor of torch: its memory and backend know which": """
        ranks.collectives.base""",
    "torch, mpi4py and ray are loaded late, and their objects are handed back to them": """
        ranks.collectives.beginning ranks.collectives.mpi ranks.collectives.torch.device
        ranks.collectives.torch.distributed
        launcher.starters.ray launcher.starters.ray_cluster""",
    "a user's network, its arguments and what its library gives have no common type": """
        sharding.importers.networks.arguments sharding.importers.networks.cells
        sharding.importers.networks.export sharding.importers.networks.factory
        sharding.importers.networks.packages sharding.importers.networks.pretrained
        sharding.importers.networks.program sharding.importers.networks.weights""",
    "a MindIR program decides what its names, settings and functions stand for": """
        sharding.importers.mindir.primitives.base sharding.importers.mindir.tracing.outcomes
        sharding.importers.mindir.values""",
    "a rule hands values on without a look at them": """
        sharding.planning.emit""",
    "data of JSON, whose rows hold several types": """
        ranks.agreement.handshake ranks.collectives.rendezvous""",
    "what a script gives to predict is checked after it has been put in order": """
        ranks.lite.arguments""",
    "a chat template gives a filter whatever it likes": """
        launcher.generation.text.render""",
    "argparse takes and gives objects of any type": """
        launcher.cli launcher.commands.convert launcher.commands.options""",
}
"""Reason to modules. It may only become shorter: see `test_any_stays_at_the_border`."""
ALIASES = {
    "sharding.common.arrays": {"Array", "DType"},
    "ranks.collectives.base": {"Buffer"},
    "sharding.importers.mindir.tracing.outcomes": {"Traced"},
    "sharding.planning.emit": {"Given"},
    "ranks.agreement.handshake": {"Event"},
}
"""Names that stand for ``Any``, or hold it, by their module: others may import them."""
MOST = 86
"""How often all modules together may say ``Any``."""


def test_any_stays_at_the_border() -> None:
    listed = [name for modules in BORDER.values() for name in modules.split()]
    assert len(listed) == len(set(listed))
    said = {name: count for name in MODULES if (count := sum(n.id == "Any" for n in nodes(name, ast.Name)))}
    new = sorted(said.keys() - set(listed))
    assert not new, (
        f"{', '.join(new)} say Any, which turns checks off for all that touches it: give the value its type, "
        "`object` where nothing is known of it, or a small Protocol for what is used of a library. If it "
        "really is the border of an untyped library, list the module in BORDER with the reason."
    )
    gone = sorted(set(listed) - said.keys())
    assert not gone, f"{', '.join(gone)} no longer say Any: take them out of BORDER."
    assert sum(said.values()) <= MOST, "a value has a type, or is an `object` of which nothing is known"


def test_any_has_few_other_names() -> None:
    """An alias would carry it into modules that do not say it."""
    found: dict[str, set[str]] = {}
    for name in MODULES:
        said = {id(node) for node in nodes(name, ast.Name) if node.id == "Any"}
        for node in nodes(name, ast.AnnAssign, ast.Assign) if said else ():
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                targets = [node.target]
            elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
                targets = node.targets
            else:
                continue
            if node.value is not None and not said.isdisjoint(map(id, ast.walk(node.value))):
                found.setdefault(name, set()).update(map(ast.unparse, targets))
    assert found == ALIASES


def test_no_module_is_checked_less_strictly() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    own = [
        (rule["module"], key)
        for rule in settings["overrides"]
        for key in rule
        if key not in {"module", "ignore_missing_imports", "follow_imports"}
        or any(str(name).startswith(PACKAGES) for name in rule["module"])
    ]
    assert not own, "overrides are for libraries that ship no types"


@pytest.mark.parametrize(
    ("module", "messages", "whole"),
    [
        ("sharding.importers.mindir.messages", _MESSAGES, True),
        ("launcher.serving.grpc.messages", MESSAGES, False),
    ],
)
def test_messages_have_the_fields_of_their_format(
    module: str, messages: Mapping[str, Fields], whole: bool
) -> None:
    """The types that code is checked with, of all messages where ``whole``, and the classes that are made
    when it runs."""
    python = {"string": "str", "bytes": "bytes", "bool": "bool", "float": "float", "double": "float"}
    typed = {
        node.name: {
            item.target.id: ast.unparse(item.annotation)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in nodes(module, ast.ClassDef)
    }
    assert typed and (not whole or typed.keys() == messages.keys())
    wanted: dict[str, dict[str, str]] = {}
    for name in typed:
        wanted[name] = {}
        for field, (_, said) in messages[name].items():
            kind = said.rstrip("*{}")
            single = kind if kind in messages else python.get(kind, "int")
            many = "Composite" if kind in messages else "Scalar"
            form = {"*": f"Repeated{many}FieldContainer[{single}]", "}": f"MessageMap[{single}]"}
            wanted[name][field] = form.get(said[-1], single)
    assert typed == wanted


@pytest.mark.parametrize("value", ["4", [4], None, b"4"])
def test_an_attribute_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"attribute 'K' of an operator (is|is missing).*a whole number"):
        integer({"K": value}, "K")


@pytest.mark.parametrize("value", [4, "4", ["a"]])
def test_attributes_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(ModelError, match=r"attribute 'axes' of an operator is .*whole number"):
        integers({"axes": value}, "axes")


def test_attributes_of_the_right_type_are_given() -> None:
    assert integer({"K": 4}, "K") == 4 and integer({}, "K", 3) == 3
    assert integers({"axes": [0, 2]}, "axes") == [0, 2]
    assert integers({}, "axes", (1,)) == [1] and integers({"axes": []}, "axes", (1,)) == []
