"""ONNX's own operator tests (`onnx.backend.test`), sliced: what ONNX Runtime passes, every rank must pass.

Each test runs as it is and with its inputs turned into weights, by the plan that slicing picks; besides,
every option of every node is forced once, whatever it costs.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests, load_node_model_tests

import sharding
import sharding.plan
from sharding.placement import PARTIAL
from tests.sharding import lockstep

FAMILIES = {
    "elementwise": "add|and|cast|clip|div|dropout|equal|gelu|max|mod|mul|pow|prelu|relu|sub|sum|where|xor",
    "indexing": "gather|gather_elements|gathernd|scatter|scatter_elements|scatternd|onehot|nllloss",
    "layout": "concat|depthtospace|expand|flatten|pad|reshape|slice|split|squeeze|tile|transpose|unsqueeze",
    "matmul": "einsum|gemm|matmul|matmulinteger|qlinearmatmul|dequantizelinear|quantizelinear",
    "normalization": "batchnorm|group|instancenorm|layer|l2normalization|lrn|rms|softmax|logsoftmax",
    "pooling": "averagepool|basic|conv|convtranspose|globalaveragepool|maxpool|resize|upsample|lppool",
    "recurrent": "gru|lstm|rnn|simple|attention|rotary|tensorscatter|linear",
    "reduction": "argmax|argmin|cumsum|hardmax|reduce|topk|trilu|triu|tril",
    "others": "if|loop|scan|sequence|optional|identity|range|shape|size|nonzero|unique|constantofshape",
}
SEED = 0
"""Of the tests' random inputs, which ONNX draws from numpy's global generator."""
STRIDE = 4
"""Of a large family every fourth test (of a smaller one every second, or all): all take minutes."""
FLOATS = {"float32", "float64"}
PYTORCH = ("pytorch-operator", "pytorch-converted", "simple")
Arrays = Sequence[Any]


@cache
def _all_node_tests() -> list[Any]:
    np.random.seed(SEED)
    return list(load_node_model_tests())


def _node_tests(family: str) -> Iterator[tuple[str, onnx.ModelProto, Arrays, Arrays]]:
    pattern = re.compile(f"test_({FAMILIES[family]})(_|$)")
    found = [case for case in _all_node_tests() if pattern.match(case.name)]
    for case in found[:: STRIDE if len(found) > 60 else 2 if len(found) > 30 else 1]:
        inputs, outputs = case.data_sets[0]
        if case.model is not None and all(isinstance(item, np.ndarray) for item in (*inputs, *outputs)):
            yield case.name, case.model, inputs, outputs


def _file_tests(kind: str) -> Iterator[tuple[str, onnx.ModelProto, Arrays, Arrays]]:
    for case in load_model_tests(kind=kind):
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        weights = {item.name for item in model.graph.initializer}
        fed = [item for item in model.graph.input if item.name not in weights]
        if all(item.type.HasField("tensor_type") for item in (*fed, *model.graph.output)):
            data = folder / "test_data_set_0"
            inputs = [_tensor(data / f"input_{number}.pb") for number in range(len(fed))]
            outputs = [_tensor(data / f"output_{number}.pb") for number in range(len(model.graph.output))]
            yield case.name, model, inputs, outputs


def _tensor(path: Path) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _variants(model: onnx.ModelProto, inputs: Arrays) -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """The model as it is; all its float inputs but the first as weights; all of its inputs."""
    weights = {item.name for item in model.graph.initializer}
    names = [item.name for item in model.graph.input if item.name not in weights]
    feeds = dict(zip(names, inputs, strict=False))
    floats = {name for name in names[1:] if name in feeds and feeds[name].dtype.name in FLOATS}
    numbers = {name for name, value in feeds.items() if value.dtype.kind in "fiub"}
    for chosen in [set(), floats, numbers] if floats else [set(), numbers]:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.ir_version = max(model.ir_version, 4)
        kept = [item for item in changed.graph.input if item.name not in chosen]
        del changed.graph.input[:]
        changed.graph.input.extend(kept)
        changed.graph.initializer.extend(
            numpy_helper.from_array(feeds[name], name) for name in names if name in chosen
        )
        yield changed, {name: value for name, value in feeds.items() if name not in chosen}


def _same(found: Arrays, expected: Arrays) -> bool:
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and (
            a.tolist() == b.tolist()
            if a.dtype.kind in "OUS"
            else np.allclose(a, b, 1e-3, 1e-6, equal_nan=True)
        )
        for a, b in zip(found, expected, strict=True)
    )


def _plain(path: Path, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _ranks(folder: Path, feeds: dict[str, Any], world: int) -> list[list[Any]]:
    if lockstep.collectives(folder):
        return [list(outputs.values()) for outputs in lockstep.run_slices(folder, feeds)]
    return [_plain(folder / f"rank_{rank}.onnx", feeds) for rank in range(world)]


def _forced(path: Path, world: int) -> Iterator[list[int]]:
    """Choices that take one option of one node, of options that do not start from summands."""
    steps = sharding.plan_model(path, world, allow_replicated=True).steps
    if len(steps) > 3:
        return
    for number, step in enumerate(steps):
        for option in range(1, len(step.options)):
            if PARTIAL not in step.options[option].inputs:
                yield [option if index == number else 0 for index in range(len(steps))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("family", [*FAMILIES, *PYTORCH])
def test_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    solve = sharding.plan.solve
    path, folder = tmp_path / "model.onnx", tmp_path / "slices"
    failed, checked = [], 0
    for name, model, inputs, outputs in _file_tests(family) if family in PYTORCH else _node_tests(family):
        for changed, feeds in _variants(model, inputs):
            path.write_bytes(changed.SerializeToString())
            try:
                passes = _same(_plain(path, feeds), outputs)
            except Exception:  # ONNX Runtime cannot run it
                passes = False
            if not passes:
                continue
            world = 3 if checked % 2 else 2
            for choices in (None, *_forced(path, world)):
                monkeypatch.setattr(
                    sharding.plan, "solve", solve if choices is None else lambda *_, chosen=choices: chosen
                )
                sharding.slice_model(path, world, folder, allow_replicated=True)
                checked += 1
                if not all(_same(found, outputs) for found in _ranks(folder, feeds, world)):
                    failed.append((name, world, choices))
            monkeypatch.setattr(sharding.plan, "solve", solve)
    assert not failed
    assert checked >= 15
