"""ONNX's own tests of operators (`onnx.backend.test`), sliced: what ONNX Runtime passes, ranks must.

Shared by the tests, which run a part, and by ``scripts/sweep.py``, which runs all.
"""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests, load_node_model_tests

import sharding.planning.plan
from sharding.demands.options import SliceOptions
from sharding.onnx_files.walk import nodes_in
from sharding.planning.plan import Plan, Planner
from sharding.reading.read import Source, read_model
from sharding.slices.mesh import Mesh
from sharding.slices.placement import PARTIAL
from sharding.writing.write import write_slices
from tests import kept
from tests.models import cache_folder
from tests.sharding import lockstep
from tests.sharding.proof import kind

SEED = 0
"""Of the tests' random inputs, which ONNX draws from numpy's global generator."""
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
FLOATS = {"float32", "float64"}
MAX_FORCED_STEPS = 3


@dataclass(frozen=True)
class OperatorTest:
    """A model with inputs and the outputs that it must give within its own tolerance."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


@dataclass
class Tally:
    """What was run and what came out."""

    known: int = 0
    usable: int = 0
    """Tests that plain ONNX Runtime passes."""
    variants: int = 0
    """Models made of them: as they are, and with inputs as weights."""
    slicings: int = 0
    forced: int = 0
    """Slicings, besides, that take one option of one node whatever it costs."""
    split: int = 0
    """Slicings, of those by the plan's own choice, in which some weight is split."""
    offered: set[tuple[str, str, str]] = field(default_factory=set)
    """(domain, operator, kind) of every option that a rule offered for a node."""
    failures: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Adds what another run counted."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            setattr(self, name, own | value if isinstance(value, set) else own + value)

    def __str__(self) -> str:
        return (
            f"{self.usable} of {self.known} tests usable, {self.variants} models, {self.slicings} slicings "
            f"({self.split} with split weights) and {self.forced} with a forced option, "
            f"{len(self.failures)} failures"
        )


@cache
def load(kind: str) -> list[OperatorTest]:
    """All tests of a kind, one per set of inputs and outputs."""
    return _kept_nodes() if kind == "node" else [_from_files(case) for case in load_model_tests(kind=kind)]


def _kept_nodes() -> list[OperatorTest]:
    """Made once per machine: ONNX computes what pools must give in loops of Python, for 15 seconds."""
    made_by = f"{SEED} {onnx.__version__} {np.__version__} {sys.version} {kept.recipe(Path(__file__))}"
    path = cache_folder() / f"operator_tests_{hashlib.sha256(made_by.encode()).hexdigest()[:12]}.pickle"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            whole = path.with_suffix(".whole")
            whole.write_bytes(pickle.dumps(make_nodes()))
            whole.rename(path)
    found: list[OperatorTest] = pickle.loads(path.read_bytes())
    return found


def make_nodes() -> list[OperatorTest]:
    """The tests of single operators, whose inputs ONNX draws and whose outputs it computes."""
    np.random.seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        cases = load_node_model_tests()
    return [
        OperatorTest(case.name, case.model, inputs, outputs, case.rtol, case.atol)
        for case in cases
        if case.model is not None and case.data_sets
        for inputs, outputs in case.data_sets[:1]
    ]


def _from_files(case: Any) -> OperatorTest:
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    weights = {item.name for item in model.graph.initializer}
    fed = [item for item in model.graph.input if item.name not in weights]
    data = folder / "test_data_set_0"
    inputs = [_read(data / f"input_{number}.pb", item) for number, item in enumerate(fed)]
    outputs = [_read(data / f"output_{number}.pb", item) for number, item in enumerate(model.graph.output)]
    return OperatorTest(case.name, model, inputs, outputs, case.rtol, case.atol)


def _read(path: Path, info: onnx.ValueInfoProto) -> Any:
    content = path.read_bytes()
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def run(
    test: OperatorTest,
    scratch: Path,
    worlds: Sequence[int] = (2, 3),
    *,
    forced: Sequence[int] = (),
    turn: int | None = None,
) -> Tally:
    """Slices a test's model and its variants for each world size and compares every rank's outputs; for the
    world sizes in ``forced`` also with each single option of small graphs. ``turn``: they take turns, and
    the one of this number begins."""
    tally = Tally(known=1)
    path = scratch / "model.onnx"
    for number, (model, feeds) in enumerate(_variants(test)):
        path.write_bytes(model.SerializeToString())
        try:
            passes = _same(_plain(path, feeds), test)
        except Exception:  # ONNX Runtime cannot run it: it has no base for that among its exceptions
            passes = False
        if passes:
            tally.variants += 1
            taken = worlds if turn is None else [worlds[(turn + number) % len(worlds)]]
            _slice_all(test, number, path, feeds, taken, forced, tally)
    tally.usable = int(tally.variants > 0)
    if not tally.variants:
        tally.unusable.append(test.name)
    return tally


def _slice_all(
    test: OperatorTest,
    number: int,
    path: Path,
    feeds: dict[str, Any],
    worlds: Sequence[int],
    forced: Sequence[int],
    tally: Tally,
) -> None:
    source: Source | None = None
    whole = False
    for world in sorted({*worlds, *forced}):
        where = f"{test.name}, variant {number}, {world} ranks"
        try:
            source = source or read_model(path)
            plan = _plan(source, world)
            tally.offered |= {
                (step.view.domain, step.view.op_type, kind(option))
                for step in plan.steps
                for option in step.options[1:]
            }
            choices: list[list[int] | None] = [None] if world in worlds else []
            if world in forced:
                choices += _forced(plan)
            for chosen in choices:
                tally.slicings += chosen is None
                tally.forced += chosen is not None
                tally.split += chosen is None and bool(plan.split_weights)
                now = plan if chosen is None else _plan(source, world, chosen)
                if chosen is None and not plan.split_weights and not plan.collectives:
                    # Each rank gets the whole model, as many as they are: it is written and run once.
                    whole, done = True, whole
                    if done:
                        continue
                folder = path.parent / "slices"
                shutil.rmtree(folder, ignore_errors=True)  # to replace it, it would be read and checked twice
                write_slices(now, folder)
                if not all(_same(found, test) for found in _ranks(folder, feeds, world)):
                    tally.failures.append(f"{where}: outputs differ" + (f" ({chosen})" if chosen else ""))
        except Exception as error:  # anything that slicing or running a slice raises is a failure
            tally.failures.append(f"{where}: {type(error).__name__}: {str(error).splitlines()[:1]}")


def _plan(source: Source, world: int, choices: list[int] | None = None) -> Plan:
    planner = Planner(source, SliceOptions(allow_replicated=True))
    if choices is None:
        return planner.plan(Mesh.of(tensor=world))
    with mock.patch.object(sharding.planning.plan, "solve_with_state", lambda *_: choices):
        return planner.plan(Mesh.of(tensor=world))


def _forced(plan: Plan) -> Iterator[list[int]]:
    """Choices that take one option of one node, of options that do not start from summands."""
    if len(plan.steps) <= MAX_FORCED_STEPS:
        for number, step in enumerate(plan.steps):
            for option in range(1, len(step.options)):
                if PARTIAL not in step.options[option].inputs:
                    yield [option if index == number else 0 for index in range(len(plan.steps))]


def _variants(test: OperatorTest) -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """The model as it is; all its float inputs but the first as weights; all of its inputs."""
    model = _of_known_versions(test.model)
    weights = {item.name for item in model.graph.initializer}
    names = [item.name for item in model.graph.input if item.name not in weights]
    feeds = {name: value for name, value in zip(names, test.inputs, strict=False) if value is not None}
    feeds = {name: np.asarray(v) if isinstance(v, np.generic) else v for name, v in feeds.items()}
    arrays = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray)}
    tensors = {name for name, value in feeds.items() if isinstance(value, onnx.TensorProto)}
    floats = {name for name in names[1:] if name in arrays and arrays[name].dtype.name in FLOATS}
    everything = {name for name, value in arrays.items() if value.dtype.kind in "fiubOUS"} | tensors
    choices: list[set[str]] = [set()]
    for chosen in (floats, everything):
        if chosen not in choices:
            choices.append(chosen)
    for chosen in choices:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        if chosen:
            changed.ir_version = max(model.ir_version, 4)
        kept = [item for item in changed.graph.input if item.name not in chosen]
        del changed.graph.input[:]
        changed.graph.input.extend(kept)
        changed.graph.initializer.extend(_weight(feeds[name], name) for name in names if name in chosen)
        yield changed, {name: value for name, value in feeds.items() if name not in chosen}


def _of_known_versions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the newest versions that the installed ONNX Runtime knows, where its operators did not
    change since: the tests of a newer onnx are all of its newest opset."""
    ir, opset = _newest_known()
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.ir_version = min(model.ir_version, ir)
    for item in changed.opset_import:
        names = {node.op_type for node in nodes_in(model.graph, *model.functions) if not node.domain}
        if not item.domain and item.version > opset and not model.functions:
            then = [
                onnx.defs.get_schema(name, opset).since_version for name in names if _existed(name, opset)
            ]
            now = [onnx.defs.get_schema(name, item.version).since_version for name in names]
            if sorted(then) == sorted(now):
                item.version = opset
    return changed


def _existed(name: str, opset: int) -> bool:
    return any(
        schema.name == name and not schema.domain and schema.since_version <= opset for schema in _schemas()
    )


@cache
def _schemas() -> list[Any]:
    return list(onnx.defs.get_all_schemas_with_history())


@cache
def _newest_known() -> tuple[int, int]:
    """The newest IR version and opset that the installed ONNX Runtime loads."""

    def loads(ir: int, opset: int) -> bool:
        header = f'<ir_version: {ir}, opset_import: ["" : {opset}]>'
        text = header + "g (float[1] x) => (float[1] y) { y = Abs(x) }"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        content = onnx.parser.parse_model(text).SerializeToString()
        try:
            onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime has no base for "unknown version"
            return False
        return True

    newest = onnx.defs.onnx_opset_version()
    ir = next(number for number in range(onnx.IR_VERSION, 8, -1) if loads(number, 17))
    return ir, next(number for number in range(newest, 16, -1) if loads(ir, number))


def _weight(value: Any, name: str) -> onnx.TensorProto:
    """Of types that numpy lacks the tests hold tensors."""
    if not isinstance(value, onnx.TensorProto):
        return numpy_helper.from_array(value, name)
    tensor = onnx.TensorProto()
    tensor.CopyFrom(value)
    tensor.name = name
    return tensor


def _same(found: Sequence[Any], test: OperatorTest) -> bool:
    return len(found) == len(test.outputs) and all(
        _equal(a, b, test) for a, b in zip(found, test.outputs, strict=True)
    )


def _equal(found: Any, expected: Any, test: OperatorTest) -> bool:
    if expected is None or found is None:
        return found is expected
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(_equal(a, b, test) for a, b in zip(found, expected, strict=True))
        )
    expected = np.asarray(expected)
    if not isinstance(found, np.ndarray | np.generic) or found.shape != expected.shape:
        return False
    if expected.dtype.kind in "OUS":
        return found.tolist() == expected.tolist()
    if found.dtype != expected.dtype:
        return False
    atol = test.atol
    if expected.dtype == np.float16 and expected.size:
        # Half floats are computed in 32 bits and rounded where they leave a session: in one more place.
        atol = max(atol, float(np.finfo(np.float16).eps) * float(np.abs(np.nan_to_num(expected)).max()))
    return np.allclose(found, expected, test.rtol, atol, equal_nan=True)


def _plain(path: Path, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _ranks(folder: Path, feeds: dict[str, Any], world: int) -> Iterator[list[Any]]:
    if lockstep.collectives(folder):
        for outputs in lockstep.run_slices(folder, feeds):
            yield list(outputs.values())
        return
    done: set[bytes] = set()
    for rank in range(world):
        path = folder / f"rank_{rank}.onnx"
        content = _without_rank(path)
        if content not in done:  # of a model that is whole on all ranks one run is enough
            done.add(content)
            yield _plain(path, feeds)


def _without_rank(path: Path) -> bytes:
    """A rank model and its weights, but for what says which rank it is."""
    model = onnx.load(path, load_external_data=False)
    del model.metadata_props[:]
    data = path.with_suffix(".data")
    text = model.SerializeToString(deterministic=True).replace(path.stem.encode(), b"rank")
    return text + (data.read_bytes() if data.exists() else b"")
