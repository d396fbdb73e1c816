"""Exported programs (``.pt2``): hostile ones run nothing, damaged ones are refused in one sentence."""

from __future__ import annotations

import io
import json
import math
import operator
import os
import pickle
import random
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.errors import ModelError, ShardrunError

pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports with it")
torch = pytest.importorskip("torch", reason="torch is not installed")

from sharding.importers.networks import program, program_check  # noqa: E402 - after torch is known to be there


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch may be absent
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.register_buffer("offset", torch.arange(8.0))

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.up(x)) + self.offset + torch.tensor([1.0])
        return {"y": hidden.reshape(x.shape[0] * 2, -1), "n": hidden.sum(-1)}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What torch writes, by name."""
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    axes = ({0: torch.export.Dim("n", min=2, max=64)},)
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(3, 4),), dynamic_shapes=axes), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        program.import_program(path, 18)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_torch_writes_is_read(members: dict[str, bytes], tmp_path: Path) -> None:
    model, _ = program.import_program(packed(tmp_path / "p.pt2", members), 18)
    assert [value.name for value in model.graph.output] == ["y", "n"]


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trap),)


def edit_json(members: dict[str, bytes], name: str, edit: Callable[[Any], object]) -> None:
    key = next(item for item in members if item.endswith(name))
    document = json.loads(members[key])
    edit(document)
    members[key] = json.dumps(document).encode()


def everywhere(document: Any) -> Iterator[dict[str, Any]]:
    waiting = [document]
    while waiting:
        item = waiting.pop()
        waiting.extend(item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        if isinstance(item, dict):
            yield item


def call(target: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        next(item for item in everywhere(document) if "target" in item and "inputs" in item)["target"] = (
            target
        )

    return edit


def shape(text: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        next(item for item in everywhere(document) if "expr_str" in item)["expr_str"] = text

    return edit


def structure(context: Any, kind: str = "collections.defaultdict") -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        signature = next(item for item in everywhere(document) if item.get("out_spec"))
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        signature["out_spec"] = json.dumps(
            [1, {"type": kind, "context": context, "children_spec": [leaf, leaf]}]
        )

    return edit


FACTORY = {"default_factory_module": "trap_module", "default_factory_name": "x", "dict_context": ["y", "n"]}
ENUM = json.dumps([{"__enum__": True, "fqn": "trap_module:x", "name": "x"}, "n"])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (call("torch.hub.load"), "is no operator"),
        (call("torch.ops.load_library"), "is no operator"),
        (call("torch.ops.load_library.__call__"), "is no operator"),
        (call("_operator.attrgetter"), "is no operator"),
        (call("_operator.call"), "is no operator"),
        (call("torch._higher_order_ops.utils.contextlib.os.mkdir"), "is no operator"),
        (call("torch.ops.aten.__class__.__init__.__globals__"), "is no operator"),
        (shape("__import__('os').mkdir('trap')"), "is no arithmetic"),
        (shape("Matrix(99999, 99999)"), "is no arithmetic"),
        (shape("9**9**9**9"), "is no arithmetic"),
        (shape("Pow(Integer(9), Pow(Integer(99), Integer(99)))"), "is no arithmetic"),
        (shape("((9**60)**60)**60"), "is no arithmetic"),
        (shape("LShift(1, 99999999999)"), "is no arithmetic"),
        (lambda d: d.update(guards_code=["__import__('os').mkdir('trap')"]), "is on more than shapes"),
        (lambda d: d.update(guards_code=["L['x'].size()[0] and [] == print()"]), "is on more than shapes"),
        (structure(FACTORY), "are built with 'trap_module'"),
        (
            structure(ENUM.replace("__enum", "\\u005f_enum"), "builtins.dict"),
            "are built with 'trap_module:x'",
        ),
        (structure(ENUM, "builtins.dict"), "are built with 'trap_module:x'"),
    ],
)
def test_what_would_run_is_refused(
    members: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap_module.py").write_text("import os\nos.mkdir('trap')\nx = dict\n")
    changed = dict(members)
    edit_json(changed, "models/model.json", edit)
    assert message in refused(packed(tmp_path / "p.pt2", changed))
    # The same under a name that torch takes for a model, too.
    name = next(item for item in changed if item.endswith("models/model.json"))
    other = {item.replace("model.json", "model.jso_"): data for item, data in changed.items()}
    assert name.replace("model.json", "model.jso_") in other
    assert message in refused(packed(tmp_path / "p.pt2", other))
    assert not (tmp_path / "trap").exists()
    assert "trap_module" not in sys.modules


@pytest.mark.parametrize("place", ["opaque_obj_0", "opaque_obj_0/x", "custom_obj_1/../y", "sub/opaque_obj_0"])
def test_pickled_objects_are_refused(members: dict[str, bytes], tmp_path: Path, place: str) -> None:
    trap = tmp_path / "trap"
    changed = dict(members)
    root = next(iter(members)).partition("/")[0]

    def edit(config: Any) -> None:
        next(iter(config["config"].values()))["path_name"] = place

    # Named in the list of constants, there as a member, and both.
    changed[f"{root}/data/constants/{place}"] = pickle.dumps(Evil(trap))
    assert "holds the pickled object" in refused(packed(tmp_path / "p.pt2", changed))
    edit_json(changed, "model_constants_config.json", edit)
    refused(packed(tmp_path / "p.pt2", changed))
    del changed[f"{root}/data/constants/{place}"]
    assert "which is no place of weights" in refused(packed(tmp_path / "p.pt2", changed))
    assert not trap.exists()


@pytest.mark.parametrize("kind", ["sample_inputs", "weights", "constants"])
def test_pickles_are_refused(members: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    """Of example inputs, and where older versions kept weights."""
    buffer = io.BytesIO()
    torch.save((Evil(tmp_path / "trap"),), buffer)
    root = next(iter(members)).partition("/")[0]
    for data in (buffer.getvalue(), pickle.dumps(Evil(tmp_path / "trap"))):
        changed = {**members, f"{root}/data/{kind}/model.pt": data}
        assert "is a pickle of more than tensors" in refused(packed(tmp_path / "p.pt2", changed))
    assert not (tmp_path / "trap").exists()


def test_the_archive_is_read_as_torch_reads_it(members: dict[str, bytes], tmp_path: Path) -> None:
    """Python's reader and torch's take different parts of such files for the list of contents."""
    evil = dict(members)
    edit_json(evil, "models/model.json", shape("__import__('os').mkdir('trap')"))
    good = packed(tmp_path / "good.pt2", members).read_bytes()
    bad = packed(tmp_path / "bad.pt2", evil).read_bytes()
    for first, second in ((bad, good), (good, bad)):
        (tmp_path / "both.pt2").write_bytes(first + second)
        try:
            program.import_program(tmp_path / "both.pt2", 18)
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert second is good
        # One archive in the comment of the other.
        (tmp_path / "in.pt2").write_bytes(first[:-2] + len(second).to_bytes(2, "little") + second)
        if len(second) < 1 << 16:
            refused(tmp_path / "in.pt2")


def test_weights_that_are_larger_than_the_file(members: dict[str, bytes], tmp_path: Path) -> None:
    changed = dict(members)

    def edit(config: Any) -> None:
        meta = next(iter(config["config"].values()))["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 40}], [{"as_int": 0}]

    edit_json(changed, "model_weights_config.json", edit)
    refused(packed(tmp_path / "p.pt2", changed))


NUMBERS = (0, -1, 1, 2, 7, 1 << 31, 1 << 40, 1 << 62, 1 << 63, -(1 << 63), 1.5, float("nan"))
TEXTS = (
    "",
    "x",
    "torch.ops.aten.add.Tensor",
    "../x",
    "é" * 300,
    "\0",
    "[",
    "{}",
    "s0",
    "9" * 30,
    "cuda",
    "meta",
)


def damage_document(document: Any, chance: random.Random) -> Any:
    """Some values of a document changed, removed, doubled, or taken from elsewhere in it."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        item = waiting.pop()
        keys: Any = item if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in list(keys):
            places.append((item, key))
            waiting.append(item[key])
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places)
        if not (key in holder if isinstance(holder, dict) else key < len(holder)):
            continue
        match chance.randrange(6):
            case 0:
                del holder[key]
            case 1:
                holder[key] = chance.choice(NUMBERS)
            case 2:
                holder[key] = chance.choice(TEXTS)
            case 3:
                holder[key] = chance.choice(([], {}, None, True))
            case 4:
                other, from_key = chance.choice(places)
                if from_key in other if isinstance(other, dict) else from_key < len(other):
                    holder[key] = json.loads(json.dumps(other[from_key]))
            case _:
                if isinstance(holder, list):
                    holder.insert(key, json.loads(json.dumps(holder[key])))
    return document


def damaged(members: dict[str, bytes], path: Path, chance: random.Random) -> None:
    changed = dict(members)
    way = chance.randrange(4)
    if way == 0:  # bytes of the archive
        data = bytearray(packed(path, changed).read_bytes())
        for _ in range(chance.randint(1, 6)):
            # Most of it is weights: the ends of the file are where its structure is.
            at = chance.randrange(len(data)) if chance.random() < 0.3 else -chance.randrange(1, 1500)
            data[at] = chance.choice((0, 1, 255, chance.randrange(256)))
        path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        return
    name = chance.choice([item for item in changed if way != 2 or item.endswith(".json")])
    if way == 1:
        if chance.random() < 0.5:
            del changed[name]
        else:
            changed[name.rpartition("/")[0] + "/" + chance.choice(TEXTS).replace("\0", "")] = changed.pop(
                name
            )
    elif way == 2:
        document = damage_document(json.loads(changed[name]), chance)
        changed[name] = json.dumps(document).encode(errors="replace")
    else:
        data = bytearray(changed[name]) or bytearray(1)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        changed[name] = bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
    packed(path, changed)


SEEDS = (*range(24), 41, 43, 46, 54, 55, 56)
"""Of sixty, those that take each way through the code that one of them takes, and the first ones."""


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_programs(members: dict[str, bytes], tmp_path: Path, seed: int) -> None:
    damaged(members, tmp_path / "p.pt2", random.Random(seed))
    try:
        program.import_program(tmp_path / "p.pt2", 18)
    except ShardrunError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "FloorDiv(Add(Mul(Integer(6), Symbol('s6')), Integer(1)), Integer(4))",
        "2*s0 + 1",
        "-s0 + 3",
        "Max(1, s0)",
        "Mod(s0, 8)",
        "s0**2 >= 4",
        "Pow(Symbol('s0'), Integer(2))",
        "Pow(Symbol('s0'), Integer(-1))",
    ],
)
def test_arithmetic_on_shapes(text: str) -> None:
    assert program_check.is_arithmetic(text)


def test_conditions_on_inputs() -> None:
    for text in (
        "((L['x'].size()[1]*L['x'].size()[0]) % (L['x'].size()[0] // 2)) == 0",
        "L['args'][0]['k'].size()[1] >= 2",
        "L['flag'] == True",
        "math.isnan(L['x'])",
    ):
        assert program_check.is_condition(text), text
    for text in (
        "L['x'].__class__",
        "L['x'].size",
        "L[print()]",
        "open('x')",
        "(lambda: 0)()",
        "f'{1}'",
        "",
    ):
        assert not program_check.is_condition(text), text
    assert not program_check.is_condition(3)


def _called(kind: str, target: Any) -> Any:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(getattr(graph, kind)(target, (x,)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("kind", "target", "refused"),
    [
        ("call_function", torch.ops.aten.relu.default, False),
        ("call_function", operator.neg, False),
        ("call_function", math.floor, False),
        ("call_function", torch.sym_float, False),
        ("call_function", torch.relu, True),
        ("call_function", os.system, True),
        ("call_function", print, True),
        ("call_method", "relu", True),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_only_operators_are_called(
    kind: str, target: Any, refused: bool, inside: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of what torch has read, also where a further graph is in it: it finds functions by their names."""
    found = _called(kind, target)
    if inside:
        outer = _called("call_function", torch.ops.aten.relu.default)
        outer.add_module("branch", found)
        found = outer
    path = tmp_path / "net.pt2"
    path.write_bytes(b"")
    read = SimpleNamespace(graph_module=found, state_dict={}, constants={})
    monkeypatch.setattr(program, "check_program", lambda _: None)
    monkeypatch.setattr(torch.export, "load", lambda _: read)
    monkeypatch.setattr(program, "export_program", lambda *given: given)
    if refused:
        with pytest.raises(ModelError, match=r"net.pt2 is refused: it calls '.*', which is no operator"):
            program.import_program(path, 18)
    else:
        assert program.import_program(path, 18) == (read, 18, str(path))  # type: ignore[comparison-overlap]
