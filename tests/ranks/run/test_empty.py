"""Requests that are empty where one of ONNX Runtime's operators would end the process over that."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import launcher
import sharding
from launcher import PredictError
from ranks.errors import ShardrunError
from ranks.run import executor
from ranks.sessions import empty
from sharding.demands.options import SliceOptions
from sharding.slices.manifest import read_manifest
from sharding.slices.never_empty import NeverEmpty
from tests.ranks import state_models
from tests.ranks.rank_models import model, node, save, value

WEIGHTS = {"w": np.full((1, 12, 8), 0.1, np.float32), "r": np.full((1, 12, 4), 0.1, np.float32)}
X = np.ones((3, 2, 8), np.float32)
REFUSED = "ONNX Runtime's GRU would end the process"


def _gru(domain: str = "", source: str = "x") -> onnx.NodeProto:
    return helper.make_node("GRU", [source, "w", "r"], ["y", "h"], domain=domain, hidden_size=4)


def _recurrent(nodes: Sequence[onnx.NodeProto], axes: Sequence[str | int | None]) -> onnx.ModelProto:
    return model(nodes, [value("x", axes)], [value("h", None)], WEIGHTS)


@pytest.mark.parametrize("axes", [["time", "batch", 8], [None, None, 8]])
@pytest.mark.parametrize("shape", [(3, 0, 8), (0, 2, 8)])
def test_an_empty_axis_that_an_operator_would_die_of(
    tmp_path: Path, axes: Sequence[str | None], shape: tuple[int, ...]
) -> None:
    [path] = save([_recurrent([_gru()], axes)], tmp_path)
    loaded = executor.load(path)
    with pytest.raises(ShardrunError, match=REFUSED):
        loaded.run({"x": np.ones(shape, np.float32)})
    assert loaded.run({"x": X})[0].shape == (1, 2, 4)


def test_an_operator_that_bears_an_empty_sequence_alone(tmp_path: Path) -> None:
    weights = {"w": np.ones((1, 16, 8), np.float32), "r": np.ones((1, 16, 4), np.float32)}
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=4)]
    [path] = save([model(nodes, [value("x", ["time", "batch", 8])], [value("h", None)], weights)], tmp_path)
    loaded = executor.load(path)
    with pytest.raises(ShardrunError, match="LSTM would end the process"):
        loaded.run({"x": X[:, :0]})
    assert loaded.run({"x": X[:0]})[0].shape == (1, 2, 4)


def test_a_step_of_no_text(tmp_path: Path) -> None:
    state_models.FORMS["buffered"](tmp_path / "model.onnx")
    session = executor.load(tmp_path / "model.onnx").session()
    nothing, one = np.ones((0, 1), np.int64), np.ones((1, 1), np.int64)
    for _ in range(2):
        with pytest.raises(ShardrunError, match="GroupQueryAttention would end the process"):
            session.predict({"input_ids": nothing})
        assert len(next(iter(session.predict({"input_ids": one}).values()))) == 1
    assert session.length == 2


def test_the_other_name_of_the_domain(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], domain="ai.onnx"), _gru("ai.onnx", "a")]
    [path] = save([_recurrent(nodes, ["time", "batch", 8])], tmp_path)
    with pytest.raises(ShardrunError, match=REFUSED):
        executor.load(path).run({"x": X[:, :0]})


def test_an_operator_in_a_function(tmp_path: Path) -> None:
    made = _recurrent([helper.make_node("Cell", ["x", "w", "r"], ["h"], domain="own")], ["time", "batch", 8])
    body = helper.make_function(
        "own", "Cell", ["x", "w", "r"], ["h"], [_gru()], [helper.make_opsetid("", 17)]
    )
    made.functions.append(body)
    made.opset_import.append(helper.make_opsetid("own", 1))
    [path] = save([made], tmp_path)
    loaded = executor.load(path)
    with pytest.raises(ShardrunError, match=REFUSED):
        loaded.run({"x": X[:, :0]})
    assert loaded.run({"x": X})[0].shape == (1, 2, 4)


@pytest.mark.parametrize(("equation", "shape"), [("bij,jk->bik", (3, 4)), ("bij,bjk->bik", (0, 3, 4))])
def test_products_that_compute_nothing(tmp_path: Path, equation: str, shape: tuple[int, ...]) -> None:
    given = [value("x", ["b", "i", "j"]), value("m", ["b", "j", "k"][-len(shape) :])]
    product = node("Einsum", ["x", "m"], ["z"], equation=equation)
    [path] = save([model([product], given, [value("z", None)])], tmp_path)
    fed = {"x": np.ones((0, 2, 3), np.float32), "m": np.ones(shape, np.float32)}
    assert executor.load(path).run(fed)[0].shape == (0, 2, 4)


@pytest.mark.parametrize(
    ("equation", "empty", "refused"),
    [
        ("bij,bkj->bik", "b", True),
        ("bij,bkj->bik", "i", False),
        ("bij,bkj->bik", "k", False),
        ("bij, bkj -> bik", "j", True),
        ("bqhd,bkhd->bhqk", "k", True),
        ("bqhd,bkhd->bhqk", "h", False),
        ("...hd,h...d->...h", "h", True),
        ("h...d,...hd->...h", "z", False),
        ("abcde,deabc->a", "b", True),
        ("abcde,deabc->a", "d", False),
        ("abcde,cdabe->a", "b", False),
        ("bij,bij->b", "b", False),
    ],
)
def test_products_that_end_a_process(tmp_path: Path, equation: str, empty: str, refused: bool) -> None:
    """Which do was seen by running them, each in a process of its own."""
    terms = [term.replace("...", "zy") for term in equation.replace(" ", "").split("->")[0].split(",")]
    given = [value(name, list(term)) for name, term in zip("xm", terms, strict=True)]
    product = node("Einsum", ["x", "m"], ["z"], equation=equation)
    [path] = save([model([product], given, [value("z", None)])], tmp_path)
    shapes = [[0 if letter == empty else 2 for letter in term] for term in terms]
    loaded = executor.load(path)
    fed = {name: np.ones(shape, np.float32) for name, shape in zip("xm", shapes, strict=True)}
    if not refused:
        loaded.run(fed)
        return
    with pytest.raises(ShardrunError, match="ONNX Runtime's Einsum would end the process"):
        loaded.run(fed)


@pytest.mark.parametrize("lengths", [("n", 3, 1), ("n", 1, 3)])
def test_an_axis_of_length_one_moves_nothing(tmp_path: Path, lengths: tuple[str, int, int]) -> None:
    product = node("Einsum", ["w", "x"], ["z"], equation="nkj,njk->njk")
    [path] = save(
        [model([product], [value("x", lengths)], [value("z", None)], {"w": np.ones((1, 1, 1), np.float32)})],
        tmp_path,
    )
    fed = {"x": np.ones((0, *lengths[1:]), np.float32)}
    assert executor.load(path).run(fed)[0].size == 0


@pytest.mark.parametrize("strategy", ["tensor", "data"])
def test_all_ranks_refuse_an_empty_product(tmp_path: Path, strategy: str) -> None:
    weights = {"w": np.ones((3, 4, 8), np.float32)}
    product = node("Einsum", ["w", "x"], ["y"], equation="hkd,bhd->bhk")
    made = model([product], [value("x", ["batch", 3, 8])], [value("y", None)], weights)
    [path] = save([made], tmp_path)
    with pytest.raises(ShardrunError, match="Einsum would end the process"):
        executor.load(path).run({"x": np.ones((0, 3, 8), np.float32)})
    folder = tmp_path / "slices"
    sharding.slice_model(path, 2, folder, options=SliceOptions(strategy=strategy), allow_replicated=True)
    with launcher.start(folder, ranks=2, launcher="local", threads=1) as group:
        with pytest.raises(PredictError, match="Einsum would end the process"):
            group.predict({"x": np.ones((0, 3, 8), np.float32)})
        assert group.predict({"x": np.ones((2, 3, 8), np.float32)})["y"].shape == (2, 3, 4)


def test_an_empty_input_beside_rows(tmp_path: Path) -> None:
    """The bank has no rows yet; the operator gets those of the table that the numbers name."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], axis=0),
        node("Concat", ["bank", "rows"], ["all"], axis=0),
        node("Unsqueeze", ["all", "one"], ["x"]),
        _gru(),
    ]
    given = [value("ids", ["n"], 7), value("bank", ["m", 8])]
    weights = {**WEIGHTS, "table": np.ones((5, 8), np.float32), "one": np.array([1])}
    [path] = save([model(nodes, given, [value("h", None)], weights)], tmp_path)
    fed = {"ids": np.array([1, 2]), "bank": np.ones((0, 8), np.float32)}
    assert executor.load(path).run(fed)[0].shape == (1, 1, 4)


def test_the_file_is_read_once_and_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sharding.onnx_files import protobuf

    plain = model([node("Relu", ["x"], ["y"])], [value("x", ["b", 8])], [value("y", None)])
    gone, kept = save([plain, plain], tmp_path)
    loaded = executor.load(gone)
    gone.unlink()
    assert loaded.run({"x": np.ones((0, 8), np.float32)})[0].shape == (0, 8)

    read, reads = protobuf.read_message, []
    monkeypatch.setattr(protobuf, "read_message", lambda path: reads.append(path) or read(path))
    loaded = executor.load(kept)
    for _ in range(3):
        assert loaded.run({"x": np.ones((0, 8), np.float32)})[0].shape == (0, 8)
    assert reads == [kept]


@pytest.mark.parametrize("strategy", ["pipeline", "tensor", "data"])
def test_all_ranks_refuse_alike(tmp_path: Path, strategy: str) -> None:
    """The second stage alone holds the operator; the group goes on."""
    weights = {**WEIGHTS, "w1": np.ones((8, 64), np.float32), "w2": np.ones((64, 8), np.float32)}
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w2"], ["c"]),
        node("Tanh", ["c"], ["d"]),
        _gru(source="d"),
    ]
    made = model(nodes, [value("x", ["time", "batch", 8])], [value("h", [1, "batch", 4])], weights)
    [path] = save([made], tmp_path)
    folder = tmp_path / "slices"
    sharding.slice_model(path, 2, folder, options=SliceOptions(strategy=strategy), allow_replicated=True)
    [time, batch] = read_manifest(folder).never_empty
    assert (dict(time.axes), dict(batch.axes)) == ({"x": 0}, {"x": 1})
    with launcher.start(folder, ranks=2, launcher="local", threads=1) as group:
        for _ in range(2):
            with pytest.raises(PredictError, match=REFUSED):
                group.predict({"x": X[:, :0]})
            assert group.predict({"x": X})["h"].shape == (1, 2, 4)


@pytest.mark.parametrize(("a", "b", "refused"), [(0, 0, True), (0, 2, False), (2, 0, False), (0, None, True)])
def test_only_what_is_empty_as_a_whole_is_refused(a: int, b: int | None, refused: bool) -> None:
    """The operator takes both inputs' lengths together; an input that is not fed says nothing."""
    feeds = {"a": np.ones((3, a)), **({} if b is None else {"b": np.ones((b, 3))})}
    with pytest.raises(ShardrunError, match="GRU") if refused else contextlib.nullcontext():
        empty.check(feeds, lambda: [NeverEmpty("GRU", {"a": 1, "b": 0})])
