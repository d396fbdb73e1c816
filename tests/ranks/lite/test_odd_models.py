"""Groups and runners of models whose outputs are declared with other axes or lengths than they have, or that
take or give no tensors. The right answers are plain ONNX Runtime's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks import Context, Model, ModelGroup, ModelGroupFlag, ModelParallelRunner, ModelType, Tensor
from ranks.errors import ShardrunError
from tests.launcher.inspection.test_no_tensors import CASES, _same, _save
from tests.sharding import graphs
from tests.turns import in_turns

pytestmark = [
    pytest.mark.usefixtures("single"),
    pytest.mark.filterwarnings("ignore:This process has its arena"),
]

X = np.random.default_rng(7).standard_normal((6, 64), np.float32)
DECLARED: dict[str, Any] = {
    "fewer axes": [1, "length"], "more axes": [1, 128, 1, 1], "other lengths": [1, 128, 2], "one axis": [3],
    "a scalar": [],
}  # fmt: skip


WORKSPACES = ["SHARE_WORKSPACE", "SHARE_WEIGHT_WORKSPACE"]


def odd(path: Path, declared: Any) -> str:
    """y[n, 128, 1] of x[n, 64], declared otherwise."""
    lengths = f"[{', '.join(map(str, declared))}]" if declared else ""
    text = f"""odd (float[n, 64] x) => (float{lengths} y) {{
        m = MatMul(x, w)
        s = Shape(m)
        to = Concat <axis = 0> (s, one)
        y = Reshape(m, to)
    }}"""
    return str(graphs.save(path, text, {"w": graphs.array(64, 128), "one": np.array([1])}))


def session(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(found: Any, want: Any) -> None:
    if isinstance(found, Tensor):
        found = found.get_data_to_numpy()
    _same(found, want)


@pytest.mark.parametrize(
    ("name", "workspace", "flag"),
    [(name, False, "SHARE_WEIGHT") for name in DECLARED]
    + [(name, True, flag) for name, flag in in_turns(list(DECLARED), WORKSPACES)],
)
def test_models_of_a_group(name: str, workspace: bool, flag: str, tmp_path: Path) -> None:
    """Each length is given twice: buffers that are kept come into play."""
    paths = [odd(tmp_path / f"{number}.onnx", DECLARED[name]) for number in range(2)]
    plain = session(paths[0])
    group = ModelGroup(ModelGroupFlag[flag])
    group.add_model(paths)
    if workspace:
        group.cal_max_size_of_workspace(ModelType.ONNX, Context())
    models = [Model(), Model()]
    for model, path in zip(models, paths, strict=True):
        model.build_from_file(path, ModelType.ONNX, Context())
    for rows in (5, 5, 2, 6, 2):
        want = plain.run(None, {"x": X[:rows]})[0]
        for model in models:
            check(model.predict([Tensor(X[:rows])])[0], want)
    models[0].resize(models[0].get_inputs(), [[3, 64]])
    check(models[0].predict([Tensor(X[:3])])[0], plain.run(None, {"x": X[:3]})[0])


def runner_of(path: str) -> ModelParallelRunner:
    context = Context()
    context.parallel.workers_num = 2
    runner = ModelParallelRunner()
    runner.build_from_file(path, context)
    return runner


@pytest.mark.parametrize("name", DECLARED)
def test_a_runner_of_such_a_model(name: str, tmp_path: Path) -> None:
    path = odd(tmp_path / "m.onnx", DECLARED[name])
    plain, runner = session(path), runner_of(path)
    with ThreadPoolExecutor(4) as threads:
        rows = [5, 5, 2, 6, 2, 5, 1, 6]
        for count, found in zip(
            rows, threads.map(lambda n: runner.predict([Tensor(X[:n])]), rows), strict=True
        ):
            check(found[0], plain.run(None, {"x": X[:count]})[0])


@pytest.mark.parametrize("name", CASES)
def test_a_runner_of_what_are_no_tensors(name: str, tmp_path: Path) -> None:
    """Lists and dicts go in and come back, from several threads; what they are is said of each."""
    text, value, _ = CASES[name]
    path = str(_save(tmp_path / "m.onnx", text))
    want = session(path).run(None, {"x": value})[0]
    runner = runner_of(path)
    argument = Tensor(value) if name in {"sequence out", "zipmap"} else value
    with ThreadPoolExecutor(4) as threads:
        for (found,) in threads.map(lambda _: runner.predict([argument]), range(6)):
            check(found, want)
    assert [len(items) for items in (runner.get_inputs(), runner.get_outputs())] == [1, 1]
    if name in {"sequence out", "zipmap"}:
        with pytest.raises(ShardrunError, match="is a sequence or a map, which no tensor can hold"):
            runner.predict([argument], runner.get_outputs())
    else:
        with pytest.raises(ShardrunError, match=r"predict failed"):
            runner.predict([3.5])
        check(runner.predict([argument])[0], want)


@pytest.mark.parametrize("name", CASES)
def test_a_group_of_what_are_no_tensors(name: str, tmp_path: Path) -> None:
    """Sharing weights; a workspace is measured only where zeros can be fed."""
    text, value, _ = CASES[name]
    path = str(_save(tmp_path / "m.onnx", text))
    want = session(path).run(None, {"x": value})[0]
    group, model = ModelGroup(ModelGroupFlag.SHARE_WEIGHT), Model()
    group.add_model([path, path])
    model.build_from_file(path, ModelType.ONNX, Context())
    check(model.predict([Tensor(value) if isinstance(value, np.ndarray) else value])[0], want)
    if not name.endswith("out") and name != "zipmap":
        measured = ModelGroup(ModelGroupFlag.SHARE_WORKSPACE)
        measured.add_model([str(_save(tmp_path / "other.onnx", text))])
        with pytest.raises(ShardrunError, match=r"input .x. of .*other\.onnx takes no numbers, so no zeros"):
            measured.cal_max_size_of_workspace(ModelType.ONNX, Context())
