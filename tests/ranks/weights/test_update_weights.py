"""Replacing weights of a plain model, against plain ONNX Runtime on the file with the weights replaced."""

from __future__ import annotations

import itertools
import mmap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ranks
from ranks.errors import ModelError, ShardrunError, WeightsError
from ranks.run import executor
from ranks.weights.updated.values import Pair
from tests.ranks.variable_models import CASES, Array, Case, error, numbers, oracle, others, replaced
from tests.sharding import graphs

W = numbers(4, 5, seed=2)
pytestmark = pytest.mark.usefixtures("single")


def feeds_of(case: Case, rows: int = 3) -> dict[str, Array]:
    dtype = helper.tensor_dtype_to_np_dtype(case.element)
    return {
        name: numbers(*(rows if isinstance(dim, str) else dim for dim in shape), seed=5, dtype=dtype)
        for name, shape in case.inputs.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_equals_the_file_with_other_weights(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=case.variable)
    assert [spec.name for spec in model.inputs] == list(case.inputs)
    right = partial(oracle, optimized=case.optimized)
    tolerance = 2e-3 if case.element == TensorProto.FLOAT16 else 1e-4
    inputs = [feeds_of(case, rows) for rows in (3, 1, 3)] + [{"x": -feeds_of(case)["x"]}]
    for feeds in inputs:
        assert error(model.run(feeds), right(path, feeds)) <= tolerance, "with the file's own weights"
    assert model.weights is not None and model.weights.version == 0
    for version in (1, 2):
        values = others(case, seed=version)
        assert model.update_weights(values) == version
        after = replaced(path, values, tmp_path / f"{version}.onnx")
        for feeds in inputs:
            assert error(model.run(feeds), right(after, feeds)) <= tolerance
    if len(case.variable) > 1:  # one alone: the others keep the values of the last update
        one = dict([next(iter(others(case, seed=9).items()))])
        model.update_weights(one)
        after = replaced(path, {**values, **one}, tmp_path / "one.onnx")
        assert error(model.run(feeds), right(after, feeds)) <= tolerance
    assert model.stats.weight_bytes >= sum(case.weights[item].nbytes for item in case.variable)
    model.close()


@pytest.mark.parametrize("shape", [(4, 0), (0, 5)])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_weight_without_values(shape: tuple[int, int], rank: int, tmp_path: Path) -> None:
    x = (*("n", 2)[: rank - 1], shape[0])
    case = Case("y = MatMul(x, w)", {"w": numbers(*shape)}, ("w",), inputs={"x": x})
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=case.variable)
    model.update_weights({"w": numbers(*shape)})
    for found, wanted in zip(model.run(feeds_of(case)), oracle(path, feeds_of(case)), strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize(
    "text",
    [
        "d, m = Dropout(w, half, yes)",
        "d = RandomNormalLike(w)",
        "d = RandomUniformLike(w)",
        "p = Sigmoid(w) d = Bernoulli(p)",
        "i = Multinomial<sample_size = 5>(w) d = Cast<to = 1>(i)",
    ],
)
def test_what_is_drawn_is_drawn_in_each_run(text: str, tmp_path: Path) -> None:
    weights: dict[str, Array] = {"w": W}
    if "half" in text:
        weights |= {"half": np.array(0.5, np.float32), "yes": np.array(True)}
    case = Case(f"{text} y = MatMul(x, d)", weights)
    model = executor.load(case.save(tmp_path / "model.onnx"), variable_weights=("w",))
    first, second = (model.run(feeds_of(case))[0] for _ in range(2))
    assert first.shape == second.shape and not np.array_equal(first, second)


def test_what_weights_alone_decide_is_computed_once_per_update(tmp_path: Path) -> None:
    case = CASES["several steps"]
    model = executor.load(case.save(tmp_path / "model.onnx"), variable_weights=case.variable)
    assert model.weights is not None and model._session is not None
    assert [feed.source for feed in model.weights.feeds.values()] == ["r"], "only the end of the chain"
    assert [argument.name for argument in model._session.get_inputs()] == ["x", *model.weights.feeds]
    first = model.weights.snapshot()
    model.run(feeds_of(case))
    assert model.weights.snapshot() is first
    model.update_weights(others(case))
    assert model.weights.snapshot() is not first


@pytest.mark.parametrize(("name", "weight"), [("direct", "w"), ("convolution", "k")])
def test_nothing_is_copied_per_prediction_and_callers_keep_their_arrays(
    name: str, weight: str, tmp_path: Path
) -> None:
    case = CASES[name]
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=[weight])
    assert model.weights is not None
    given = numbers(*case.weights[weight].shape, seed=3)
    wanted = oracle(replaced(path, {weight: given.copy()}, tmp_path / "b.onnx"), feeds_of(case))
    model.update_weights({weight: given})
    given[:] = 0
    snapshot = model.weights.snapshot()
    for feed, value in snapshot.feeds.items():
        assert value.data_ptr() == snapshot.arrays[feed].ctypes.data
    assert error(model.run(feeds_of(case)), wanted) <= 1e-5


def test_external_data_are_mapped_and_not_read(tmp_path: Path) -> None:
    case = CASES["external data"]
    model = executor.load(case.save(tmp_path / "model.onnx"), variable_weights=["b"])
    assert model.weights is not None
    base: Any = model.weights.snapshot().arrays["b"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)


PRODUCTS = {
    "matrix": ("float[n, 6] x", "y = MatMul(x, w)"),
    "vector": ("float[6] x", "y = MatMul(x, w)"),
    "batch": ("float[b, n, 6] x", "y = MatMul(x, w)"),
    "batches": ("float[a, b, n, 6] x", "y = MatMul(x, w) z = MatMul(x, w) s = Add(y, z)"),
    "Gemm": ("float[n, 6] x", "y = Gemm<alpha = 0.5>(x, w)"),
    "Gemm transposed": ("float[n, 6] x", "y = Gemm<alpha = 2.0, transB = 1>(x, v, c)"),
    "Gemm transposed twice": ("float[6, n] x", "y = Gemm<transA = 1, transB = 1>(x, v, c)"),
    "Gemm scaled": ("float[n, 6] x", "y = Gemm<beta = 0.5>(x, w, c)"),
    "Gemm with a scalar": ("float[n, 6] x", "y = Gemm(x, w, one)"),
    "two transpositions": ("float[n, 6] x", "t = Transpose<perm = [1, 0]>(v) y = MatMul(x, t)"),
    "transposed alike": ("float[n, 6] x", "t = Transpose<perm = [0, 1]>(w) y = MatMul(x, t)"),
    "both sides": ("float[n, 4] x", "p = MatMul(v, w) y = MatMul(x, p)"),
    "left": ("float[4, n] x", "y = MatMul(w, x)"),
    "also read": ("float[n, 6] x", "p = MatMul(x, w) t = Transpose(w) q = MatMul(p, t) y = Add(q, q)"),
}


@pytest.mark.parametrize("version", [11, 13, 15, 21])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_written_anew(name: str, version: int, tmp_path: Path) -> None:
    """Inputs of any rank, also empty ones, in the releases of the standard."""
    declared, body = PRODUCTS[name]
    weights = {"w": numbers(6, 4), "v": numbers(4, 6), "c": numbers(4), "one": np.array(2, np.float32)}
    path = tmp_path / "model.onnx"
    graph = onnx.parser.parse_graph(f"g ({declared}) => (float y) {{ {body} }}")
    read = {item for node in graph.node for item in node.input}
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items() if k in read)
    graph.output[0].type.tensor_type.ClearField("shape")
    opsets = [helper.make_opsetid("", version)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    variable = [key for key in ("w", "v", "c") if key in read]
    model = executor.load(path, variable_weights=variable)
    shape = [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    lengths = [[3] * shape.count(0), [1] * shape.count(0), [0] * shape.count(0), [2, 0, 1][: shape.count(0)]]
    for seed in range(3):
        if seed:
            values = {key: numbers(*weights[key].shape, seed=seed) for key in variable}
            model.update_weights(values)
            path = replaced(tmp_path / "model.onnx", values, tmp_path / "now.onnx")
        session = graphs.session(path)
        for free in lengths:
            left = iter(free)
            x = {"x": numbers(*(dim or next(left) for dim in shape), seed=seed)}
            wanted = session.run(None, x)
            found = model.run(x)
            assert found[0].shape == wanted[0].shape
            assert not wanted[0].size or error(found, wanted) <= 1e-4


def test_more_than_two_gigabytes_of_external_data(tmp_path: Path) -> None:
    """A sparse file: the weights beside the variable one are zeros that take no space."""
    rows = 600_000_000
    big = TensorProto(name="big", dims=[rows], data_type=TensorProto.FLOAT)
    w = TensorProto(name="w", dims=[4, 5], data_type=TensorProto.FLOAT)
    for tensor, offset, length in ((big, 0, 4 * rows), (w, 4 * rows, 80)):
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "data"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
    first = numbers(4, 5)
    with (tmp_path / "data").open("wb") as file:
        file.seek(4 * rows)
        file.write(first.tobytes())
    text = """g (float[n, 4] x) => (float[] y) {
      s = Shape(x)
      zeros = Gather(big, s)
      zero = ReduceSum(zeros)
      h = MatMul(x, w)
      y = Add(h, zero)
    }"""
    made = graphs.model(text, {}, opset=17)
    made.graph.initializer.extend([big, w])
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    model = executor.load(path, variable_weights=["w"])
    x, new = numbers(2, 4), numbers(4, 5, seed=1)
    assert error(model.run({"x": x}), [x @ first]) <= 1e-5
    model.update_weights({"w": new})
    assert error(model.run({"x": x}), [x @ new]) <= 1e-5


def test_a_prediction_sees_all_old_or_all_new_values(tmp_path: Path) -> None:
    """Predictions of several threads run while updates alternate between two sets of weights."""
    width, layers = 64, 12
    names = [f"w{layer}" for layer in range(layers)]
    weights = {name: numbers(width, width, seed=i) / 8 for i, name in enumerate(names)}
    chain = ["x", *(f"h{layer}" for layer in range(layers - 1)), "y"]
    text = ""
    for i, name in enumerate(names):
        if i % 2 == 0:
            text += f" {name}t = Transpose<perm = [1, 0]>({name})"
        read = f"{name}t" if i % 2 == 0 else name
        text += f" {chain[i + 1]} = MatMul({chain[i]}, {read})"
    case = Case(text, weights, tuple(names), {"x": ["n", width]})
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=names, threads=1)
    sets = [{name: array / 8 for name, array in others(case, seed=s).items()} for s in (1, 2)]
    feeds = feeds_of(case, 2)
    model.update_weights(sets[0])
    right = [model.run(feeds)[0]]
    model.update_weights(sets[1])
    right.append(model.run(feeds)[0])
    for values, answer in zip(sets, right, strict=True):
        after = replaced(path, values, tmp_path / "after.onnx")
        assert error([answer], oracle(after, feeds)) <= 1e-4
    stop = threading.Event()
    seen: list[set[int]] = [set() for _ in range(3)]
    wrong: list[Array] = []

    def predict(which: int) -> None:
        while not stop.is_set():
            answer = model.run(feeds)[0]
            hit = [index for index, array in enumerate(right) if np.array_equal(array, answer)]
            seen[which].update(hit)
            if len(hit) != 1:
                wrong.append(answer)

    threads = [threading.Thread(target=predict, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    version = 2
    for values in itertools.islice(itertools.cycle(sets), 400):
        version += 1
        assert model.update_weights(values) == version
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong, "an answer of neither set of weights"
    assert set().union(*seen) == {0, 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_pair_is_added_to_the_base(dtype: Any, tmp_path: Path) -> None:
    """Base and A @ B are added in float32 at least, and rounded once."""
    first = numbers(6, 8, dtype=dtype)
    case = Case(
        "c = Cast<to = 11>(w) y = MatMul(x, c)",
        {"w": first},
        inputs={"x": ["n", 6]},
        element=TensorProto.DOUBLE,
        out_element=TensorProto.DOUBLE,
    )
    model = executor.load(case.save(tmp_path / "model.onnx"), variable_weights=["w"])
    a, b = numbers(6, 2, seed=1), numbers(2, 8, seed=2)
    wide = np.float64 if dtype == np.float64 else np.float32

    def check(value: Array) -> None:
        eye = np.eye(6)
        assert np.array_equal(model.run({"x": eye})[0], eye @ value.astype(np.float64))

    def sum_of(base: Array, a: Array, b: Array) -> Array:
        return (base.astype(wide) + a.astype(wide) @ b.astype(wide)).astype(dtype)

    model.update_weights({"w": Pair(a, b)})
    check(sum_of(first, a, b))
    model.update_weights({"w": Pair(2 * a, b)})
    check(sum_of(first, 2 * a, b))  # not on top of the first pair
    new = numbers(6, 8, seed=7, dtype=dtype)
    model.update_weights({"w": new})
    check(new)
    if dtype != np.float64:
        model.update_weights({"w": Pair(a.astype(dtype), b.astype(dtype))})
        check(sum_of(new, a.astype(dtype), b.astype(dtype)))
    model.update_weights({"w": Pair(a[:, :0], b[:0])})
    check(new)  # a pair of rank 0 takes the last one away


def test_pairs_of_stacked_matrices(tmp_path: Path) -> None:
    case = Case("y = MatMul(x, w)", {"w": numbers(3, 4, 5)}, inputs={"x": [3, 2, 4]})
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=["w"])
    a, b = numbers(3, 4, 2), numbers(3, 2, 5)
    model.update_weights({"w": Pair(a, b)})
    after = replaced(path, {"w": case.weights["w"] + a @ b}, tmp_path / "b.onnx")
    assert error(model.run(feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"q": W}, "'q' is not variable"),
        ({"b": numbers(5)}, "'b' is not variable"),
        ({"w": W.T}, "has the shape [4, 5], but the new value has [5, 4]"),
        ({"w": W.astype(np.float64)}, "has the type float32, but the new value has float64"),
        ({"w": W.astype(np.float16)}, "has the type float32, but the new value has float16"),
        ({"w": W.tolist()}, "must be given as an array, but is list"),
        ({}, "No weights were given"),
        ({"w": Pair(numbers(4, 2), numbers(3, 5))}, "shapes [4, 2] and [3, 5]"),
        ({"w": Pair(numbers(5, 2), numbers(2, 4))}, "must have the weight's shape [4, 5]"),
        ({"w": Pair(numbers(2), numbers(2, 5))}, "shapes [2] and [2, 5]"),
        (
            {"w": Pair(numbers(4, 2, dtype=np.float64), numbers(2, 5))},
            "has the type float64, but must have the weight's, float32.",
        ),
        ({"k": Pair(numbers(4, 2), numbers(2, 5))}, "only matrices of floating-point numbers"),
        ({"w": W, "q": W}, "'q' is not variable"),
        ({"w": W, "k": np.zeros(2, np.int64)}, "has the shape [3]"),
    ],
)
def test_refused_updates_change_nothing(given: Any, words: str, tmp_path: Path) -> None:
    case = Case(
        "h = MatMul(x, w) a = Add(h, b) y = Gather<axis = 1>(a, k)",
        {"w": numbers(4, 5), "b": numbers(5), "k": np.array([0, 2, 4], np.int64)},
        ("w", "k"),
    )
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=case.variable)
    with pytest.raises(WeightsError) as caught:
        model.update_weights(given)
    assert words in str(caught.value)
    assert model.weights is not None and model.weights.version == 0
    assert error(model.run(feeds_of(case)), oracle(path, feeds_of(case))) <= 1e-5


def test_an_update_that_cannot_be_computed_changes_nothing(tmp_path: Path) -> None:
    """The rows that a Gather takes of a weight are no longer there."""
    case = Case(
        "r = Gather(w, i) y = MatMul(x, r)",
        {"w": numbers(4, 5), "i": np.arange(4)},
        ("w", "i"),
    )
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=case.variable)
    with pytest.raises(WeightsError, match="cannot be computed"):
        model.update_weights({"i": np.array([0, 1, 2, 99])})
    assert error(model.run(feeds_of(case)), oracle(path, feeds_of(case))) <= 1e-5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weight", "has no weight 'weight' among its 3; similar are 'weights'"),
        ("weights,weight", "has no weight 'weight' among its 3; similar are 'weights'"),
        ("weights,nope", "has no weight 'nope' among its 3."),
        ("x", "is an input of"),
        ("h", "is computed by"),
        ("", "has no weight ''"),
        ("n" * 5000, "has no weight"),
        ("text", "has the type string, which cannot be variable"),
        ("few", "holds 'few' as numbers of an attribute, not as a tensor: it cannot be variable"),
    ],
)
def test_names_that_are_no_weights(name: str, words: str, tmp_path: Path) -> None:
    case = Case(
        "few = Constant<value_floats = [1.0, 2.0]>() h = MatMul(x, weights) y = Relu(h) z = Identity(text)",
        {"weights": numbers(4, 5), "text": np.array(["a"], object)},
        (),
    )
    path = case.save(tmp_path / "model.onnx")
    with pytest.raises(ModelError) as caught:
        executor.load(path, variable_weights=name.split(","))
    assert words in str(caught.value) and len(str(caught.value)) < 600


def test_weights_of_a_quantized_convolution(tmp_path: Path) -> None:
    case = Case(
        """q = QuantizeLinear(x, s, z)
        c = QLinearConv(q, s, z, w, s, wz, s, z)
        y = DequantizeLinear(c, s, z)""",
        {
            "s": np.array(0.1, np.float32),
            "z": np.array(128, np.uint8),
            "w": np.ones((2, 3, 1, 1), np.int8),
            "wz": np.array(0, np.int8),
        },
        inputs={"x": [1, 3, 4, 4]},
    )
    path = case.save(tmp_path / "model.onnx")
    model = executor.load(path, variable_weights=["w"])  # the weights themselves may vary
    feeds = feeds_of(case)
    assert error(model.run(feeds), oracle(path, feeds)) <= 1e-4
    new = {"w": np.full((2, 3, 1, 1), 3, np.int8)}
    model.update_weights(new)
    assert error(model.run(feeds), oracle(replaced(path, new, tmp_path / "b.onnx"), feeds)) <= 1e-4


NOTHING = (
    "No weights were given: give one list of tensors that are named as the weights, like [[tensor]]. "
    "Variable are 'w'."
)


class TestModel:
    """`Model.update_weights`, `build_from_file` and `get_model_info`."""

    @staticmethod
    def built(tmp_path: Path, case: Case, config: dict[str, dict[str, str]], file: str = "") -> ranks.Model:
        case.save(tmp_path / "model.onnx")
        model = ranks.Model()
        path = str(tmp_path / "model.onnx")
        model.build_from_file(path, ranks.ModelType.ONNX, None, file, config)
        return model

    @staticmethod
    def tensor(name: str, array: Array) -> ranks.Tensor:
        tensor = ranks.Tensor(array)
        tensor.name = name
        return tensor

    @staticmethod
    def answer(model: ranks.Model, feeds: dict[str, Array]) -> list[Array]:
        return [item.get_data_to_numpy() for item in model.predict(list(feeds.values()))]

    @pytest.mark.parametrize("section", ["ascend_context", "cpu_context", "gpu_context"])
    def test_list(self, section: str, tmp_path: Path) -> None:
        case = CASES["two together"]
        model = self.built(tmp_path, case, {section: {"variable_weights_list": " w,v ,, w"}})
        assert model.get_model_info("weights_version") == "0"
        assert len(model.get_inputs()) == 1
        values = {name: array for name, array in others(case).items() if name != "b"}
        model.update_weights([[self.tensor(*item) for item in values.items()]])
        assert model.get_model_info("weights_version") == "1"
        after = replaced(tmp_path / "model.onnx", values, tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5
        with pytest.raises(RuntimeError, match="'b' is not variable"):
            model.update_weights([[self.tensor("b", numbers(5))]])

    def test_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beside the configuration file that names it; with it the list."""
        monkeypatch.chdir(tmp_path.parent)
        (tmp_path / "names.txt").write_text("﻿w\r\n\n v \n")
        (tmp_path / "config.ini").write_text(
            "[ascend_context]\nvariable_weights_file=names.txt\nvariable_weights_list=b\n"
        )
        case = CASES["two together"]
        model = self.built(tmp_path, case, {}, str(tmp_path / "config.ini"))
        model.update_weights([[self.tensor(*item) for item in others(case).items()]])
        after = replaced(tmp_path / "model.onnx", others(case), tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5

    @pytest.mark.parametrize(
        ("entries", "words"),
        [
            ({"variable_weights_list": " , "}, "variable_weights_list names no weight"),
            ({"variable_weights_file": "nowhere.txt"}, "is no file"),
            ({"variable_weights_file": "/dev/zero"}, "is no file"),
            ({"variable_weights_file": "a\0b"}, "is no file"),
            ({"variable_weights_file": "empty"}, "names no weight"),
            ({"variable_weights_file": "binary"}, "byte 0 is not UTF-8"),
            ({"variable_weights_file": "long"}, "has 67108865 bytes; a list of names has at most 67108864."),
            ({"variable_weights_list": "w,nope"}, "has no weight 'nope'"),
        ],
    )
    def test_wrong_options(
        self, entries: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").write_text("\n \n")
        (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
        with (tmp_path / "long").open("wb") as file:
            file.truncate((64 << 20) + 1)
        with pytest.raises(RuntimeError) as caught:
            self.built(tmp_path, CASES["direct"], {"cpu_context": entries})
        assert isinstance(caught.value, ShardrunError) and words in str(caught.value)

    def test_pairs(self, tmp_path: Path) -> None:
        case = CASES["direct"]
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w"}})
        a, b = numbers(4, 1, seed=1), numbers(1, 5, seed=2)
        model.update_weights([[self.tensor("w@B", b), self.tensor("w@A", a)]])
        after = replaced(tmp_path / "model.onnx", {"w": case.weights["w"] + a @ b}, tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5

    def test_a_weight_whose_name_ends_as_a_pair_does(self, tmp_path: Path) -> None:
        case = Case('y = MatMul(x, "w@A")', {"w@A": numbers(4, 5)}, ("w@A",))
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w@A"}})
        model.update_weights([[self.tensor(*item) for item in others(case).items()]])
        after = replaced(tmp_path / "model.onnx", others(case), tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5

    def test_bfloat16_takes_float32(self, tmp_path: Path) -> None:
        case = CASES["bfloat16"]
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w"}})
        new = numbers(4, 5, seed=4)
        model.update_weights([[self.tensor("w", new)]])
        after = replaced(tmp_path / "model.onnx", {"w": new.astype(ml_dtypes.bfloat16)}, tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5

    def test_new_shapes_of_inputs_keep_the_weights(self, tmp_path: Path) -> None:
        """The model is loaded again; base and version of the weights stay as well."""
        case = Case("y = MatMul(x, w)", {"w": numbers(4, 5)}, inputs={"x": [2, 4]})
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w"}})
        new, a, b = numbers(4, 5, seed=2), numbers(4, 1), numbers(1, 5)
        model.update_weights([[self.tensor("w", new)]])
        model.resize(model.get_inputs(), [[7, 4]])
        assert model.get_model_info("weights_version") == "1"
        x = numbers(7, 4)
        assert error(self.answer(model, {"x": x}), [x @ new]) <= 1e-5
        model.update_weights([[self.tensor("w@A", a), self.tensor("w@B", b)]])
        assert error(self.answer(model, {"x": x}), [x @ (new + a @ b)]) <= 1e-5

    @pytest.mark.parametrize(
        ("given", "kind", "words"),
        [
            (3, TypeError, "weights must be list, but got <class 'int'>"),
            ([3], TypeError, "weight must be list, but got <class 'int'> at index 0"),
            ([[numbers(4, 5)]], TypeError, "weights element must be Tensor, but got <class 'numpy.ndarray'>"),
            ([["w", "w"], []], TypeError, "but got <class 'str'> as index 00."),
            ([], RuntimeError, NOTHING),
            (None, RuntimeError, NOTHING),
            ([[]], RuntimeError, NOTHING),
            ("TT", RuntimeError, "is given twice"),
            ("T,T2", RuntimeError, "2 lists of tensors were given"),
            ("half", RuntimeError, "without the other half of the pair"),
            ("whole and pair", RuntimeError, "is given whole and as a pair"),
            ("open", RuntimeError, "has no data and the open shape"),
            ("unset", RuntimeError, "has the shape [4, 5], but the new value has []"),
        ],
    )
    def test_wrong_arguments(self, given: Any, kind: type, words: str, tmp_path: Path) -> None:
        case = CASES["direct"]
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w"}})
        w, a, b = (
            self.tensor("w", numbers(4, 5)),
            self.tensor("w@A", numbers(4, 1)),
            self.tensor("w@B", numbers(1, 5)),
        )
        unset, opened = ranks.Tensor(), ranks.Tensor()
        unset.name = opened.name = "w"
        opened.shape = [-1, 5]
        named: dict[str, Any] = {
            "TT": [[w, w]],
            "T,T2": [[w], [a, b]],
            "half": [[a]],
            "whole and pair": [[a, b, w]],
            "open": [[opened]],
            "unset": [[unset]],
        }
        with pytest.raises(kind) as caught:
            model.update_weights(named.get(given, given) if isinstance(given, str) else given)
        assert words in str(caught.value)
        assert isinstance(caught.value, (TypeError, ShardrunError))
        assert model.get_model_info("weights_version") == "0"

    def test_a_tensor_without_a_name(self, tmp_path: Path) -> None:
        """Where one weight is variable it is that one, as in mindspore_lite's tutorial."""
        case = CASES["direct"]
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w"}})
        new = numbers(4, 5, seed=7)
        model.update_weights([[ranks.Tensor(new)]])
        after = replaced(tmp_path / "model.onnx", {"w": new}, tmp_path / "b.onnx")
        assert error(self.answer(model, feeds_of(case)), oracle(after, feeds_of(case))) <= 1e-5
        for twice in ([ranks.Tensor(new), ranks.Tensor(new)], [ranks.Tensor(new), self.tensor("w", new)]):
            with pytest.raises(WeightsError, match="The weight 'w' is given twice"):
                model.update_weights([twice])
        with pytest.raises(WeightsError, match="has the shape"):
            model.update_weights([[ranks.Tensor(numbers(5, 4))]])
        assert model.get_model_info("weights_version") == "1"

    def test_a_tensor_without_a_name_and_several_weights(self, tmp_path: Path) -> None:
        case = Case("h = MatMul(x, w1) y = MatMul(h, w0)", {"w1": numbers(4, 5), "w0": numbers(5, 3)}, ())
        model = self.built(tmp_path, case, {"cpu_context": {"variable_weights_list": "w1, w0"}})
        with pytest.raises(WeightsError) as caught:
            model.update_weights([[ranks.Tensor(numbers(4, 5))]])
        assert str(caught.value) == (
            "update weight failed! Error is The 0th weights element's 0th element has no name: say which "
            "weight it is, tensor.name = 'w0'. The variable weights are 'w0', 'w1'."
        )

    def test_without_variable_weights(self, tmp_path: Path) -> None:
        model = ranks.Model()
        for unbuilt in ([[]], [], [[ranks.Tensor(numbers(4, 5))]]):
            with pytest.raises(RuntimeError, match="Session is null, please build model first!"):
                model.update_weights(unbuilt)
        model = self.built(tmp_path, CASES["direct"], {})
        weight, half = self.tensor("w", numbers(4, 5)), self.tensor("w@A", numbers(4, 1))
        for given in ([[weight]], [[ranks.Tensor(numbers(4, 5))]], [], [[]], [[half]], [[weight], [weight]]):
            with pytest.raises(WeightsError) as caught:
                model.update_weights(given)
            assert "built without variable weights, so that none can be replaced: name" in str(caught.value)
            assert "in variable_weights_list or variable_weights_file of [cpu_context]" in str(caught.value)
            assert "build the model again" in str(caught.value)
        assert model.get_model_info("weights_version") == ""
