"""New weights of sliced models: whole weights in, the whole model's answers out, on all ranks or none."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from ranks.errors import ModelError, WeightsError
from ranks.run import executor
from ranks.weights.updated.values import Pair
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import run
from tests.ranks import api_models
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.variable_models import Array, error, numbers, oracle, replaced
from tests.sharding import graphs

TEXTS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "columns and rows": (
        "h = MatMul(x, w1) a = Add(h, b1) r = Relu(a) y = MatMul(r, w2)",
        {"w1": (16, 32), "b1": (32,), "w2": (32, 8)},
    ),
    "transposed": (
        "t = Transpose<perm = [1, 0]>(w1) h = MatMul(x, t) r = Relu(h) y = Gemm<transB = 1>(r, w2)",
        {"w1": (64, 16), "w2": (8, 64)},
    ),
    "packed": (
        "p = MatMul(x, w) q, k, v_ = Split<axis = 1>(p, sizes) kv = Add(k, v_) "
        "two = Concat<axis = 1>(kv, kv) s = Add(q, two) y = MatMul(s, v)",
        {"w": (16, 64), "v": (32, 8), "sizes": (32, 16, 16)},
    ),
    "packed and transposed": (
        "t = Transpose<perm = [1, 0]>(w) m = MatMul(x, t) p = Add(m, b) q, k, v_ = Split<axis = 1>(p, sizes) "
        "kv = Add(k, v_) two = Concat<axis = 1>(kv, kv) s = Add(q, two) y = MatMul(s, v)",
        {"w": (64, 16), "b": (64,), "v": (32, 8), "sizes": (32, 16, 16)},
    ),
    "in equal blocks": (
        "p = MatMul(x, w) q, k, v_ = Split<axis = 1, num_outputs = 3>(p) kv = Mul(k, v_) s = Add(q, kv) "
        "y = MatMul(s, v)",
        {"w": (16, 96), "v": (32, 8)},
    ),
}
"""Graphs, and the shapes of their weights (of ``sizes`` the values)."""


def weights_of(name: str, seed: int = 0) -> dict[str, Array]:
    return {
        key: np.array(shape, np.int64) if key == "sizes" else numbers(*shape, seed=seed + len(key)) / 4
        for key, shape in TEXTS[name][1].items()
    }


def save(name: str, path: Path) -> Path:
    text = TEXTS[name][0]
    graphs.save(path, f"g (float[n, 16] x) => (float[n, 8] y) {{ {text} }}", weights_of(name))
    return path


MESHES = [
    {"tensor": 2},
    {"tensor": 4},
    {"pipeline": 2},
    {"pipeline": 2, "tensor": 2},
    {"data": 2, "tensor": 2},
]
FEEDS = {"x": numbers(4, 16, seed=9)}
Given = Callable[[int], Any]


def on_slices(
    folder: Path, size: int, variable: list[str], work: Callable[[executor.RankModel, int], Any]
) -> list[Any]:
    def rank(world: FakeCommunicator) -> Any:
        model = executor.load(folder, communicator=world, threads=1, variable_weights=variable)
        try:
            return work(model, world.rank)
        finally:
            model.close()

    return on_ranks(size, rank)


@pytest.mark.parametrize(
    ("name", "sizes"),
    # A weight that is transposed first leaves no place for a stage to end in graphs as short as these.
    [(n, m) for n in TEXTS for m in MESHES if "pipeline" not in m or "transposed" not in n],
    ids=str,
)
def test_equals_the_whole_model_with_other_weights(name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """Whether rank 0 alone gives them, or all do."""
    path, mesh = save(name, tmp_path / "model.onnx"), Mesh.of(**sizes)
    sharding.slice_model(path, mesh.size, tmp_path / "slices", options=SliceOptions(mesh=mesh))
    variable = [key for key in TEXTS[name][1] if key != "sizes"]
    updates: list[dict[str, Any]] = [
        {key: value for key, value in weights_of(name, seed).items() if key in variable} for seed in (5, 6)
    ]
    a, b = numbers(*updates[0][variable[0]].shape[:1], 3), numbers(3, *updates[0][variable[0]].shape[1:])
    updates.append({variable[0]: Pair(a, b)})

    def work(everywhere: bool, model: executor.RankModel, rank: int) -> list[list[Array]]:
        answers = [model.run(FEEDS), model.run(FEEDS)]
        for number, update in enumerate(updates):
            assert model.update_weights(update if everywhere or rank == 0 else {}) == number + 1
            answers += [model.run(FEEDS), model.run(FEEDS)]
        return answers

    states: list[dict[str, Array]] = [{}, *updates[:2]]
    states.append({**updates[1], variable[0]: updates[1][variable[0]] + a @ b})
    wanted = [oracle(replaced(path, state, tmp_path / "now.onnx"), FEEDS) for state in states]
    for everywhere in (False, True):
        for answers in on_slices(tmp_path / "slices", mesh.size, variable, partial(work, everywhere)):
            for number, answer in enumerate(answers):
                assert error(answer, wanted[number // 2]) <= 1e-4, f"answer {number}, {everywhere}"


def test_another_load_takes_over_the_values_and_those_to_come(tmp_path: Path) -> None:
    path = save("columns and rows", tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    first, second = ({"w1": weights_of("columns and rows", seed)["w1"]} for seed in (5, 6))

    def work(world: FakeCommunicator) -> list[list[Array]]:
        old, new = (
            executor.load(tmp_path / "slices", communicator=world, threads=1, variable_weights=["w1"])
            for _ in range(2)
        )
        new.run(FEEDS)
        old.update_weights(first)
        new.share_weights_of(old)
        assert old.variable_names == new.variable_names == {"w1"}
        answers = [new.run(FEEDS)]
        new.update_weights(second)
        return [*answers, new.run(FEEDS), old.run(FEEDS)]

    wanted = [
        oracle(replaced(path, state, tmp_path / "now.onnx"), FEEDS) for state in (first, second, second)
    ]
    for answers in on_ranks(2, work):
        assert all(error(found, right) <= 1e-4 for found, right in zip(answers, wanted, strict=True))


def test_all_ranks_refuse_what_one_refuses(tmp_path: Path) -> None:
    """Whatever one rank does not take, every rank says so, keeps its weights, and goes on in step."""
    path = save("columns and rows", tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    w1, w2 = weights_of("columns and rows", 5)["w1"], weights_of("columns and rows", 5)["w2"]
    refused: list[tuple[Given, str, str]] = [
        (lambda r: {"w1": w1} if r == 0 else TypeError("no tensor"), "Rank 1 refuses", "no tensor"),
        (lambda r: {"w1": w1} if r == 1 else {}, "given on rank 1 of 2", "given on rank 1 of 2"),
        (lambda r: {}, "No weights were given", "No weights were given"),
        (lambda r: {"w1": w1} if r == 0 else {"w2": w2}, "Rank 1 was given other", "Rank 1 was given other"),
        (lambda r: {"q": w1} if r == 0 else {}, "'q' is not variable", "Rank 0 refuses"),
        (lambda r: {"w1": w1.T} if r == 0 else {}, "has the shape [16, 32]", "Rank 0 refuses"),
        (lambda r: {"w1": w1[:, :16]} if r == 0 else {}, "has the shape [16, 32]", "Rank 0 refuses"),
        (lambda r: {"w1": w1.astype(np.float64)}, "has the type float32", "has the type float32"),
        (lambda r: {"b1": w1} if r == 0 else {}, "'b1' is not variable", "Rank 0 refuses"),
        (lambda r: {"w1": Pair(w1, w2.T)} if r == 0 else {}, "A @ B must have", "Rank 0 refuses"),
    ]

    def work(model: executor.RankModel, rank: int) -> list[tuple[str, list[Array]]]:
        said = []
        for given, *_ in refused:
            with pytest.raises((WeightsError, TypeError)) as caught:
                model.update_weights(given(rank))
            said.append((str(caught.value), model.run(FEEDS)))
        assert model.update_weights({"w1": w1} if rank == 0 else {}) == 1
        said.append(("", model.run(FEEDS)))
        return said

    wanted = oracle(path, FEEDS)
    for rank, said in enumerate(on_slices(tmp_path / "slices", 2, ["w1", "w2"], work)):
        for (words, answer), (_, *expected) in zip(said, refused, strict=False):
            assert expected[rank] in words
            assert error(answer, wanted) <= 1e-4
        after = oracle(replaced(path, {"w1": w1}, tmp_path / "now.onnx"), FEEDS)
        assert error(said[-1][1], after) <= 1e-4


@pytest.mark.parametrize("pair", [False, True], ids=["whole", "pair"])
def test_ranks_that_give_other_values(pair: bool, tmp_path: Path) -> None:
    path = save("columns and rows", tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    new = weights_of("columns and rows", 5)
    a, b = numbers(32, 3), numbers(3, 8)

    def work(model: executor.RankModel, rank: int) -> tuple[str, list[Array], list[Array]]:
        other: Any = Pair(a, b + rank) if pair else new["w2"] + rank
        with pytest.raises(WeightsError) as caught:
            model.update_weights({"w1": new["w1"], "w2": other})
        before = model.run(FEEDS)
        # Other strides are the same values.
        w1 = new["w1"] if rank == 0 else np.asfortranarray(new["w1"])
        assert model.update_weights({"w1": w1, "w2": new["w2"]}) == 1
        return str(caught.value), before, model.run(FEEDS)

    state = {"w1": new["w1"], "w2": new["w2"]}
    after = oracle(replaced(path, state, tmp_path / "now.onnx"), FEEDS)
    for said, kept, changed in on_slices(tmp_path / "slices", 2, ["w1", "w2"], work):
        assert said.startswith("Rank 1 was given other values of the weight 'w2' than rank 0")
        assert error(kept, oracle(path, FEEDS)) <= 1e-4
        assert error(changed, after) <= 1e-4


def test_the_bias_of_a_product_that_is_summed(tmp_path: Path) -> None:
    """A Gemm's bias lies on one rank, before the sum; as an Add behind the product it is variable."""
    head = "g (float[n, 16] x) => (float[n, 8] y) { h = MatMul(x, w1) r = Relu(h) "
    weights = {"w1": numbers(16, 64), "w2": numbers(64, 8), "b": numbers(8)}
    gemm, add = tmp_path / "gemm.onnx", tmp_path / "add.onnx"
    graphs.save(gemm, head + "y = Gemm(r, w2, b) }", weights)
    graphs.save(add, head + "m = MatMul(r, w2) y = Add(m, b) }", weights)
    for path in (gemm, add):
        sharding.slice_model(path, 2, tmp_path / path.stem)
    with pytest.raises(ModelError, match=r"'b' .* the bias of a Gemm .* as an Add behind"):
        on_slices(tmp_path / "gemm", 2, ["b"], lambda model, rank: None)
    new = {"b": numbers(8, seed=4)}

    def work(model: executor.RankModel, rank: int) -> list[Array]:
        model.update_weights(new)
        return model.run(FEEDS)

    wanted = oracle(replaced(add, new, tmp_path / "now.onnx"), FEEDS)
    for answer in on_slices(tmp_path / "add", 2, ["b"], work):
        assert error(answer, wanted) <= 1e-4


def test_a_rank_without_memory_lets_none_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save("columns and rows", tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    new = weights_of("columns and rows", 5)
    from ranks.weights.updated import group

    def scarce(array: Any, *part: Any) -> Array:
        if array is None:
            raise MemoryError
        return np.ascontiguousarray(array)

    monkeypatch.setattr(group, "_buffer", scarce)
    monkeypatch.setattr(group, "_CHUNK", 100)

    def work(model: executor.RankModel, rank: int) -> tuple[str, list[Array]]:
        with pytest.raises(WeightsError) as caught:
            model.update_weights({"w1": new["w1"], "w2": new["w2"]} if rank == 0 else {})
        return str(caught.value), model.run(FEEDS)

    found = on_slices(tmp_path / "slices", 2, ["w1", "w2"], work)
    assert "Rank 1 refuses" in found[0][0] and "not enough memory to receive" in found[1][0]
    for _, answer in found:
        assert error(answer, oracle(path, FEEDS)) <= 1e-4


def test_a_group_built_without_variable_weights(tmp_path: Path) -> None:
    sharding.slice_model(save("columns and rows", tmp_path / "m.onnx"), 2, tmp_path / "slices")

    def work(model: executor.RankModel, rank: int) -> str:
        with pytest.raises(WeightsError) as caught:
            model.update_weights({"w1": numbers(16, 32)} if rank == 0 else {})
        return str(caught.value)

    for said in on_slices(tmp_path / "slices", 2, [], work):
        assert "built without variable weights" in said


@pytest.mark.parametrize(
    ("variable", "words"), [("nope", "holds no weight 'nope'"), ("w/columns_0/x", "holds no weight")]
)
def test_weights_that_slices_do_not_hold(variable: str, words: str, tmp_path: Path) -> None:
    sharding.slice_model(save("packed", tmp_path / "m.onnx"), 2, tmp_path / "slices")
    with pytest.raises(ModelError, match=words):
        on_slices(tmp_path / "slices", 2, [variable], lambda model, rank: None)


def test_a_weight_that_slicing_folded_is_named(tmp_path: Path) -> None:
    text = "g (float[n, 16] x) => (float[n, 8] y) { s = Add(s1, s2) m = Mul(x, s) y = MatMul(m, w) }"
    scalars: Mapping[str, Array] = {"s1": numbers(1), "s2": numbers(1)}
    graphs.save(tmp_path / "m.onnx", text, {"w": numbers(16, 8), **scalars})
    sharding.slice_model(tmp_path / "m.onnx", 2, tmp_path / "slices")
    with pytest.raises(ModelError, match="'s1'"):
        on_slices(tmp_path / "slices", 2, ["s1"], lambda model, rank: None)


def test_a_weight_that_is_computed_from_others_is_named(tmp_path: Path) -> None:
    """And takes new values under its own name."""
    text = """g (float[n, 16] x) => (float[n, 8] y) {
      norm = ReduceL2<keepdims = 1>(v, rows) d = Div(g, norm) w = Mul(v, d) y = MatMul(x, w) }"""
    held = {"v": numbers(16, 8), "g": numbers(1, 8), "rows": np.array([0])}
    path = graphs.save(tmp_path / "m.onnx", text, held)
    sharding.slice_model(path, 2, tmp_path / "slices")
    for name in ("v", "g"):
        with pytest.raises(
            ModelError, match=f"no weight '{name}': slicing computed the weight 'w' from 'v', 'g'"
        ):
            on_slices(tmp_path / "slices", 2, [name], lambda model, rank: None)
    new, feeds = {"w": numbers(16, 8, seed=4)}, {"x": numbers(3, 16)}

    def work(model: executor.RankModel, rank: int) -> list[Array]:
        model.update_weights(new if rank == 0 else {})
        return model.run(feeds)

    for (answer,) in on_slices(tmp_path / "slices", 2, ["w"], work):
        assert np.allclose(answer, feeds["x"] @ new["w"], atol=1e-5)


def test_an_embedding_tied_to_the_output(tmp_path: Path) -> None:
    """One weight under two placements, or one of two uses that are cut differently."""
    text = (
        "g (int64[n] i) => (float[n, 32] y) "
        "{ e = Gather(table, i) r = Relu(e) t = Transpose<perm = [1, 0]>(table) y = MatMul(r, t) }"
    )
    path = tmp_path / "m.onnx"
    graphs.save(path, text, {"table": numbers(32, 16)})
    sharding.slice_model(path, 2, tmp_path / "slices")
    new, feeds = {"table": numbers(32, 16, seed=4)}, {"i": np.array([3, 1, 31])}

    def work(model: executor.RankModel, rank: int) -> list[Array]:
        model.update_weights(new if rank == 0 else {})
        return model.run(feeds)

    wanted = oracle(replaced(path, new, tmp_path / "now.onnx"), feeds)
    for answer in on_slices(tmp_path / "slices", 2, ["table"], work):
        assert error(answer, wanted) <= 1e-4


def test_rank_models_made_by_hand_take_each_its_own(tmp_path: Path) -> None:
    """Without a manifest a rank's names and shapes count: every rank gives its own part."""
    paths = api_models.linear_ranks(tmp_path / "hand")
    held = [onnx.load(path).graph.initializer for path in paths]
    names = [tensor.name for tensor in held[0] if len(tensor.dims) == 2]
    new = [
        {t.name: numbers(*t.dims, seed=rank + 3) for t in tensors if t.name in names}
        for rank, tensors in enumerate(held)
    ]
    whole = api_models.linear(tmp_path / "whole.onnx")
    x = {"x": numbers(3, 8)}

    def rank(world: FakeCommunicator) -> list[Array]:
        path = paths[world.rank]
        model = executor.load(path, communicator=world, threads=1, variable_weights=names)
        model.update_weights(new[world.rank])
        return model.run(x)

    first, second = sorted(names)
    joined = {
        first: np.concatenate([part[first] for part in new], 1),
        second: np.concatenate([part[second] for part in new], 0),
    }
    assert {t.name for t in onnx.load(whole).graph.initializer} >= set(joined)
    wanted = oracle(replaced(whole, joined, tmp_path / "now.onnx"), x)
    for answer in on_ranks(2, rank):
        assert error(answer, wanted) <= 1e-4


PROGRAM = """
    import json
    import os

    import numpy as np
    import ranks

    model = ranks.Model()
    config = {"cpu_context": {"variable_weights_list": "w1,w2"}}
    model.build_from_file("slices", ranks.ModelType.ONNX, None, "", config)
    rank = int(os.environ["RANK"])
    new = np.load("new.npz")

    def tensor(name):
        made = ranks.Tensor(new[name])
        made.name = name
        return made

    def answer():
        return model.predict([new["x"]])[0].get_data_to_numpy().tolist()

    found = [answer(), answer()]
    try:
        model.update_weights([[tensor("x")]] if rank == 0 else [])
    except RuntimeError as error:
        found.append(str(error))
    try:
        model.update_weights([[tensor("w1")]] if rank == 0 else 3)
    except (RuntimeError, TypeError) as error:
        found.append(str(error))
    found.append(answer())
    model.update_weights([[tensor("w1"), tensor("w2")]] if rank == 0 else [])
    found += [answer(), answer(), model.get_model_info("weights_version")]
    json.dump(found, open(f"found_{rank}.json", "w"))
"""


def test_processes(tmp_path: Path) -> None:
    path = save("columns and rows", tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    new = {key: value for key, value in weights_of("columns and rows", 5).items() if key != "b1"}
    np.savez(tmp_path / "new.npz", **{**new, **FEEDS})  # type: ignore[arg-type]  # numpy takes any names
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "launcher.cli", "exec", "--ranks", "2", "--launcher", "local"]
    done = run([*command, "program.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    before = oracle(path, FEEDS)[0]
    after = oracle(replaced(path, new, tmp_path / "now.onnx"), FEEDS)[0]
    words = [("'x' is not variable", "Rank 1 refuses"), ("Rank 0 refuses", "weights must be list, but got")]
    for rank in (0, 1):
        found = json.loads((tmp_path / f"found_{rank}.json").read_text())
        for answer in (found[0], found[1], found[4]):
            assert error([np.array(answer, np.float32)], [before]) <= 1e-4
        for answer in found[5:7]:
            assert error([np.array(answer, np.float32)], [after]) <= 1e-4
        assert found[7] == "1"
        assert words[rank][0] in found[2] and words[rank][1] in found[3]
