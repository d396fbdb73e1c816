"""`ModelGroup`: its arguments as mindspore_lite takes them, its errors, and what its models share."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ranks
from ranks import Context, Model, ModelGroup, ModelGroupFlag, ModelType
from ranks.errors import ModelError, ShardrunError
from ranks.lite import membership, workspace
from tests.launcher import cli_tools
from tests.ranks.api_models import linear, linear_ranks
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(linear(tmp_path / f"{name}.onnx", width=width)) for name, width in (("a", 16), ("b", 64))]


def context() -> Context:
    made = Context()
    made.cpu.thread_num = 1
    return made


def test_flags_are_those_of_mindspore_lite() -> None:
    assert [(flag.name, flag.value) for flag in ModelGroupFlag] == [
        ("SHARE_WEIGHT", 1),
        ("SHARE_WORKSPACE", 2),
        ("SHARE_WEIGHT_WORKSPACE", 3),
    ]
    assert str(ModelGroup()) == "flags: SHARE_WORKSPACE, paths: []."


@pytest.mark.parametrize("flags", [2, "SHARE_WEIGHT", None, ModelType.MINDIR])
def test_flags_of_another_type(flags: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        ModelGroup(flags)
    assert str(caught.value).startswith(
        "Parameter flags should be ModelGroupFlag.SHARE_WORKSPACE or ModelGroupFlag.SHARE_WEIGHT"
    )
    assert repr(flags) in str(caught.value)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("model.onnx", "models must be list/tuple, but got <class 'str'>"),
        (None, "models must be list/tuple, but got"),
        ([1], "models element must be all str or Model, but got <class 'int'> at index 0"),
        ([Path("model.onnx")], "models element must be all str or Model, but got .* at index 0"),
        ([__file__, Model()], "models element must be all str or Model, but got .*Model'> at index 1"),
        ([Model(), __file__], "models element must be all str or Model, but got <class 'str'> at index 1"),
    ],
)
def test_models_of_another_type(models: Any, message: str) -> None:
    group = ModelGroup()
    with pytest.raises(TypeError, match=message):
        group.add_model(models)
    assert str(group) == "flags: SHARE_WORKSPACE, paths: []."


@pytest.mark.parametrize("models", [[], ()])
def test_no_models(models: Any) -> None:
    with pytest.raises(RuntimeError, match=r"ModelGroup's add model failed. models cannot be empty"):
        ModelGroup().add_model(models)


def test_files_that_are_not_there(paths: list[str], tmp_path: Path) -> None:
    group = ModelGroup()
    for missing in (str(tmp_path / "none.onnx"), str(tmp_path / "nowhere" / "m.onnx"), "a\0b"):
        with pytest.raises(RuntimeError, match=r"ModelGroup's add model failed. No file or folder") as caught:
            group.add_model([paths[0], missing])
        assert isinstance(caught.value, ShardrunError)
    with pytest.raises(RuntimeError, match="No paths were added"):  # nothing of those lists was taken
        group.cal_max_size_of_workspace(ModelType.ONNX, context())


def test_a_model_that_is_built(paths: list[str]) -> None:
    model = Model()
    model.build_from_file(paths[0], ModelType.ONNX, context())
    other = Model()
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    with pytest.raises(
        RuntimeError, match=r"The model at index 1 is built from .*a\.onnx already: add it before"
    ):
        group.add_model([other, model])
    assert membership.of(other, paths[0]) is None


def test_a_model_of_another_group(paths: list[str]) -> None:
    first, second = ModelGroup(), ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    models = [Model(), Model()]
    first.add_model([models[0]])
    first.add_model(models)  # the same group again is no mistake
    with pytest.raises(RuntimeError, match="the model at index 0 belongs to another ModelGroup already"):
        second.add_model(models)
    first.add_model(paths)
    first.add_model([paths[0]] * 2)
    alias = Path(paths[0]).with_name("alias.onnx")
    alias.symlink_to(paths[0])
    with pytest.raises(RuntimeError, match=r"the model .*alias\.onnx belongs to another ModelGroup already"):
        second.add_model([str(alias)])
    assert first is not None


def test_a_path_stays_in_its_group_until_another_takes_it(paths: list[str]) -> None:
    def load() -> None:
        ModelGroup(ModelGroupFlag.SHARE_WEIGHT).add_model(paths)

    load()  # as scripts do: the group is gone when its models are built
    gc.collect()
    assert membership.of(Model(), paths[0]) == membership.Sharing(weights=True, workspace=False)
    ModelGroup().add_model([paths[0]])
    assert membership.of(Model(), paths[0]) == membership.Sharing(weights=False, workspace=True)
    assert membership.of(Model(), paths[1]) == membership.Sharing(weights=True, workspace=False)


def test_models_before_paths(paths: list[str]) -> None:
    by_path, by_object = ModelGroup(), ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    model = Model()
    by_path.add_model(paths)
    by_object.add_model([model])
    assert membership.of(model, paths[0]) == membership.Sharing(weights=True, workspace=False)
    assert membership.of(Model(), paths[0]) == membership.Sharing(weights=False, workspace=True)


def test_arguments_of_the_calculation(paths: list[str]) -> None:
    group = ModelGroup()
    group.add_model(paths)
    with pytest.raises(TypeError, match="model_type must be ModelType"):
        group.cal_max_size_of_workspace("MINDIR", context())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context must be Context"):
        group.cal_max_size_of_workspace(ModelType.MINDIR, None)  # type: ignore[arg-type]
    for shapes, kind, message in (
        ([], TypeError, "shapes must be dict"),
        ({1: {}}, TypeError, "shapes key must be str"),
        ({paths[0]: []}, TypeError, r"shapes\['.*a.onnx'\] must be dict"),
        ({paths[0]: {"x": 3}}, TypeError, r"\['x'\] must be list or tuple of int"),
        ({paths[0]: {"x": [1.5, 8]}}, TypeError, r"\['x'\] element must be int"),
        ({paths[0]: {"x": [True, 8]}}, TypeError, r"\['x'\] element must be int, but got bool: \[True, 8\]"),
        ({paths[0]: {"x": [2**70, 8]}}, RuntimeError, "does not fit into memory"),
        ({paths[0]: {"x": [-1, 8]}}, ValueError, r"\['x'\] is negative in a dimension: \[-1, 8\]"),
        ({"other.onnx": {}}, RuntimeError, "shapes names 'other.onnx', which was not added"),
    ):
        with pytest.raises(kind, match=message):
            group.cal_max_size_of_workspace(ModelType.ONNX, context(), shapes=shapes)  # type: ignore[arg-type]
    assert group.workspaces == {} and group.max_size_of_workspace == 0


def test_a_group_that_shares_weights_only(paths: list[str]) -> None:
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model(paths)
    with pytest.raises(RuntimeError, match="This group shares weights only: make it with"):
        group.cal_max_size_of_workspace(ModelType.ONNX, context())


def test_a_group_without_paths() -> None:
    group = ModelGroup()
    group.add_model([Model()])
    with pytest.raises(RuntimeError, match="No paths were added: a Model object has no file until"):
        group.cal_max_size_of_workspace(ModelType.ONNX, context())


def job(path: str, **shapes: list[int]) -> workspace.Job:
    return workspace.Job(Path(path), 1, shapes)


def test_the_workspace_is_what_the_values_take(tmp_path: Path) -> None:
    """Of y = relu(x @ w1) @ w2, the hidden value and the output, and nothing like the weights."""
    path = str(linear(tmp_path / "wide.onnx", width=4096))
    one, many = workspace.measure(job(path, x=[1, 8])), workspace.measure(job(path, x=[256, 8]))
    hidden = 4096 * 4
    assert hidden <= one <= 3 * hidden + 8192
    assert 256 * hidden <= many <= 2.5 * 256 * hidden
    # An open dimension counts as 1: of 2 it would be hidden more. What Python itself takes differs by run.
    assert abs(workspace.measure(job(path)) - one) < hidden / 2


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": [1, 9]}, "Axis 1 of input 'x' must have length 8"),
        ({"x": [8]}, "[Ii]nput 'x' .*"),
        ({"x": [1 << 40, 8]}, r"input 'x' of shape \[1099511627776, 8\] does not fit into memory"),
    ],
)
def test_shapes_that_a_model_does_not_take(
    shapes: dict[str, list[int]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ShardrunError, match=message):
        workspace.measure(job(str(linear(tmp_path / "m.onnx")), **shapes))


def test_shapes_of_no_input(paths: list[str]) -> None:
    with pytest.raises(ModelError, match=r"a\.onnx has no input 'z' to give a shape; it has 'x'"):
        workspace.measure(job(paths[0], z=[1]))


def test_a_model_that_takes_no_numbers(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "text.onnx", "m (string[1] x) => (string[1] y) { y = Identity(x) }", {})
    with pytest.raises(ModelError, match=r"input 'x' of .*text\.onnx takes no numbers, so no zeros"):
        workspace.measure(job(str(path)))


def test_a_measuring_process_that_dies(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        ShardrunError, match=r"a\.onnx could not be measured: .* ended with 1 \(it wrote nothing\)"
    ):
        workspace.measure(job(paths[0]))


def test_a_rank_is_measured_as_a_process_of_its_own(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("SHARDRUN_THREADS", "nonsense")
    assert workspace.measure(job(paths[0])) > 0


def run(program: str, *arguments: str, environment: dict[str, str] | None = None, copied: bool = True) -> Any:
    """Runs a program in a process whose arena is not made yet; the JSON on its last line. ``copied``: it is
    a copy of one that has imported what it needs, whose memory it shares until it is written to."""
    words = ["-c", HEAD + textwrap.dedent(program), *arguments]
    environ = {**cli_tools.environment(SHARDRUN_CACHE=os.environ["SHARDRUN_CACHE"]), **(environment or {})}
    if copied:
        done = cli_tools.copies().run(words, environ, ROOT, 120)
    else:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


HEAD = """
import json, sys, threading, warnings
import numpy as np
import ranks
from ranks import Model, ModelGroup, ModelGroupFlag, ModelType
paths = sys.argv[1:]
context = ranks.Context()
context.cpu.thread_num = 1
def built(path, model=None):
    model = model or Model()
    model.build_from_file(path, ModelType.MINDIR, context)
    return model
def memory(name):
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
"""


def encoders(folder: Path, width: int = 1024) -> list[str]:
    """Two models that share three weights of 4 MB under other names, each with one of its own."""
    random = np.random.default_rng(5)
    shared = [random.standard_normal((width, width)).astype(np.float32) / 32 for _ in range(3)]
    made = []
    for name in ("first", "second"):
        own = random.standard_normal((width, 4)).astype(np.float32)
        weights = {f"{name}_{index}": weight for index, weight in enumerate([*shared, own])}
        body = f"v0 = MatMul(x, {name}_0) v1 = MatMul(v0, {name}_1) v2 = MatMul(v1, {name}_2)"
        text = f"{name} (float[n, {width}] x) => (float[n, 4] y) {{ {body} y = MatMul(v2, {name}_3) }}"
        made.append(str(graphs.save(folder / f"{name}.onnx", text, weights)))
    return made


def answers(paths: list[str], x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [
        np.asarray(ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])
        for path in paths
    ]


def assert_right(found: Any, right: list[np.ndarray[Any, Any]]) -> None:
    for ours, theirs in zip(found, right, strict=True):
        assert np.abs(np.asarray(ours, np.float32) - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("by", ["path", "object"])
def test_equal_weights_are_in_memory_once(by: str, tmp_path: Path) -> None:
    paths = encoders(tmp_path)
    program = """
    x = np.linspace(-1, 1, 2048, dtype=np.float32).reshape(2, 1024)
    models = [Model(), Model()]
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model(models if BY == "object" else paths)
    found = []
    sizes = [memory("Pss_Anon") + memory("Pss_File")]
    for path, model in zip(paths, models):
        built(path, model)
        found.append(model.predict([x])[0].get_data_to_numpy().tolist())
        sizes.append(memory("Pss_Anon") + memory("Pss_File"))
    files = {line.split()[-1] for line in open("/proc/self/maps") if "/blobs/" in line}
    print(json.dumps({"found": found, "sizes": sizes, "files": len(files)}))
    """.replace("BY", repr(by))
    environment = {"SHARDRUN_CACHE": str(tmp_path / "cache")}
    for _ in range(2):  # the first one prepares the weights
        told = run(program, *paths, environment=environment, copied=False)
        x = np.linspace(-1, 1, 2048, dtype=np.float32).reshape(2, 1024)
        assert_right(told["found"], answers(paths, x))
        assert told["files"] == 5  # three of both, and one of each
    bare, one, two = told["sizes"]
    weights = 3 * 1024 * 1024 * 4
    assert one - bare > weights
    assert two - one < 0.25 * weights


def test_models_run_in_one_arena(tmp_path: Path) -> None:
    """The second model runs in what the first one took."""
    paths = encoders(tmp_path, 256)
    program = """
    import gc
    from ranks.lite.workspace import _allocated
    from ranks.sessions import idle
    idle.IDLE_SECONDS = 600.0
    x = np.ones((8192, 256), np.float32)
    if GROUP:
        group = ModelGroup()
        group.add_model(paths)
    models = [built(path) for path in paths]
    grown, found = [], []
    for model in models:
        before = _allocated()
        for _ in range(3):
            outputs = model.predict([x])
        found.append(outputs[0].get_data_to_numpy()[:2].tolist())
        del outputs
        gc.collect()
        grown.append(_allocated() - before)
    print(json.dumps({"grown": grown, "found": found}))
    """
    value = 8192 * 256 * 4
    apart = run(program.replace("GROUP", "False"), *paths)
    together = run(program.replace("GROUP", "True"), *paths)
    assert min(apart["grown"]) > value
    assert together["grown"][0] > value
    assert together["grown"][1] < value / 2
    for told in (apart, together):
        assert_right(told["found"], answers(paths, np.ones((2, 256), np.float32)))


def test_the_calculated_workspace_is_reserved_and_enough(tmp_path: Path) -> None:
    paths = encoders(tmp_path, 256)
    program = """
    from ranks.lite.workspace import _allocated
    rows = {paths[0]: 512, paths[1]: 8192}
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model(paths)
    group.add_model([Model()])
    shapes = {path: {"x": [count, 256]} for path, count in rows.items()}
    group.cal_max_size_of_workspace(ModelType.MINDIR, context, shapes=shapes)
    try:
        group.add_model(paths)
    except RuntimeError as error:
        late = str(error)
    models = [built(path) for path in paths]
    before = _allocated()
    for _ in range(3):
        for path, model in zip(paths, models):
            outputs = model.predict([np.ones((rows[path], 256), np.float32)])
            del outputs
    print(json.dumps([group.workspaces, group.max_size_of_workspace, _allocated() - before, late]))
    """
    sizes, largest, grown, late = run(program, *paths, environment={"SHARDRUN_CACHE": str(tmp_path / "c")})
    assert list(sizes) == paths
    assert largest == sizes[paths[1]] > 4 * sizes[paths[0]] > 0
    assert largest > 8192 * 256 * 4
    # All of it is one region, and nothing was added to it.
    assert 0.9 * largest < grown < largest + (1 << 20)
    assert "The size of this group's workspace is calculated already" in late


def test_the_calculation_after_an_arena_is_made_says_so(tmp_path: Path) -> None:
    program = """
    first = ModelGroup()
    first.add_model(paths)
    built(paths[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first.cal_max_size_of_workspace(ModelType.MINDIR, context)
    print(json.dumps([str(warning.message) for warning in caught] + [first.max_size_of_workspace]))
    """
    *warned, size = run(program, *encoders(tmp_path, 64))
    assert size > 0
    assert len(warned) == 1 and warned[0].startswith("This process has its arena already")


def test_models_of_a_group_run_at_the_same_time(tmp_path: Path) -> None:
    paths = encoders(tmp_path, 256)
    program = """
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model(paths)
    group.cal_max_size_of_workspace(ModelType.MINDIR, context)
    models = [built(path) for path in paths]
    inputs = [np.full((64, 256), number, np.float32) for number in (1, 2)]
    right = [[model.predict([x])[0].get_data_to_numpy() for x in inputs] for model in models]
    wrong = []
    def work(index):
        for _ in range(100):
            for x, known in zip(inputs, right[index % 2]):
                if not np.array_equal(models[index % 2].predict([x])[0].get_data_to_numpy(), known):
                    wrong.append(index)
    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps([wrong, [group[0][:2].tolist() for group in right]]))
    """
    wrong, found = run(program, *paths, environment={"SHARDRUN_CACHE": str(tmp_path / "c")})
    assert not wrong
    assert_right(found, answers(paths, np.ones((2, 256), np.float32)))


def test_a_resized_model_shares_its_weights_too(tmp_path: Path) -> None:
    """One model in two shapes: the file fixes one, `resize` opens it, which loads the model again."""
    source = onnx.load(encoders(tmp_path)[0])
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    path = tmp_path / "fixed.onnx"
    onnx.save(source, path)
    program = """
    models = [Model(), Model()]
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model(models)
    for model in models:
        built(paths[0], model)
    for _ in range(2):  # what loading takes in passing, the second time it has
        models[0].resize(models[0].get_inputs(), [[2, 1024]])
        models[0].predict([np.ones((2, 1024), np.float32)])
    before = memory("Pss_Anon") + memory("Pss_File")
    models[1].resize(models[1].get_inputs(), [[3, 1024]])
    found = models[1].predict([np.ones((3, 1024), np.float32)])[0].get_data_to_numpy().tolist()
    files = {line.split()[-1] for line in open("/proc/self/maps") if "/blobs/" in line}
    print(json.dumps([found, memory("Pss_Anon") + memory("Pss_File") - before, len(files)]))
    """
    environment = {"SHARDRUN_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        found, grown, files = run(program, str(path), environment=environment, copied=False)
    assert files == 4
    assert grown < 0.25 * 3 * 1024 * 1024 * 4
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(source, path)
    assert_right([found], answers([str(path)], np.ones((3, 1024), np.float32)))


def test_without_the_store_the_models_work_and_the_user_is_told(tmp_path: Path) -> None:
    program = """
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model(paths)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        models = [built(path) for path in paths]
    x = np.ones((2, 64), np.float32)
    found = [model.predict([x])[0].get_data_to_numpy().tolist() for model in models]
    print(json.dumps([found, [str(warning.message) for warning in caught]]))
    """
    paths = encoders(tmp_path, 64)
    found, warned = run(program, *paths, environment={"SHARDRUN_WEIGHTS": "off"})
    assert len(warned) == 1
    assert warned[0].startswith("The models of a ModelGroup do not share weights")
    assert "SHARDRUN_WEIGHTS is off" in warned[0]
    assert_right(found, answers(paths, np.ones((2, 64), np.float32)))


def test_parts_of_a_model_are_not_measured(tmp_path: Path) -> None:
    part, whole = linear_ranks(tmp_path / "parts")[0], linear(tmp_path / "whole.onnx")
    program = """
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model(paths)
    group.cal_max_size_of_workspace(ModelType.MINDIR, context)
    print(json.dumps(group.workspaces))
    """
    sizes = run(program, str(part), str(whole))
    assert sizes[str(part)] is None and sizes[str(whole)] > 0


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"\x08\x08nonsense")
    for model in (path, tmp_path):
        group = ModelGroup()
        group.add_model([str(model)])
        with pytest.raises(
            RuntimeError, match=r"ModelGroup's cal max size of workspace failed. Error is "
        ) as caught:
            group.cal_max_size_of_workspace(ModelType.ONNX, context())
        assert isinstance(caught.value, ShardrunError)
        assert str(tmp_path) in str(caught.value)


def test_names_are_exported() -> None:
    assert {"ModelGroup", "ModelGroupFlag"} <= set(ranks.__all__)
