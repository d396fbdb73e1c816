"""Control flow with collectives in its bodies, driven by ranks in threads, against plain ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import sharding
from ranks.errors import ModelError
from ranks.run import executor
from ranks.run.control_flow import _truth
from ranks.weights.shared import automatic
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.sharding import merged_decoder

Feeds = dict[str, np.ndarray]
HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
RANDOM = np.random.default_rng(5)
WEIGHTS = {
    name: (RANDOM.standard_normal(shape) / 6).astype(np.float32)
    for name, shape in {"up": (24, 48), "down": (48, 24), "side": (24, 24)}.items()
}

LOOP = """
g (float[n, 24] x, int64 m, float least) => (float[n, 24] y, float[t, n, 48] s, float[n, 24] kept) {
  go = Constant<value = bool {1}>()
  y, s = Loop (m, go, x) <
    body = b (int64 i, bool c, float[n, 24] v) => (bool c2, float[n, 24] w, float[n, 48] e) {
    h = MatMul(v, up) e = Relu(h) d = MatMul(e, down) w = Add(d, x) z = ReduceMax<keepdims = 0>(w)
    c2 = Greater(z, least)
  }>
  kept = MatMul(y, side)
}"""
SCAN = """
g (float[t, n, 24] x, float[n, 24] first) => (float[n, 24] last, float[t, n, 48] s) {
  last, s = Scan <num_scan_inputs = 1,
    body = b (float[n, 24] h, float[n, 24] v) => (float[n, 24] w, float[n, 48] e) {
    a = Add(h, v) u = MatMul(a, up) e = Tanh(u) w = MatMul(e, down)
  }> (first, x)
}"""


def _save(path: Path, text: str) -> Path:
    model = onnx.parser.parse_model(HEADER + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in text
    )
    path.write_bytes(model.SerializeToString())
    return path


def _run(folder: Path, by_rank: list[list[Feeds]]) -> list[Any]:
    """What each rank returns for its feeds, or the error that it raises."""

    def work(communicator: FakeCommunicator) -> Any:
        loaded = executor.load(folder, communicator=communicator, threads=1)
        results = []
        for feed in by_rank[communicator.rank]:
            try:
                results.append(loaded.run(feed))
            except ModelError as error:
                results.append(error)
        loaded.close()
        return results

    return on_ranks(len(by_rank), work)


def _check(path: Path, folder: Path, feeds: list[Feeds], worlds: tuple[int, ...] = (2, 3)) -> None:
    for world in worlds:
        sharding.slice_model(path, world, folder)
        _compare(path, folder, feeds, world)


def _compare(path: Path, folder: Path, feeds: list[Feeds], world: int) -> None:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = [session.run(None, feed) for feed in feeds]
    for results in _run(folder, [feeds] * world):
        for found, wanted in zip(results, expected, strict=True):
            assert not isinstance(found, ModelError), found
            for ours, theirs in zip(found, wanted, strict=True):
                assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
                scale = max(np.abs(theirs).max(initial=0), 1e-6)
                assert np.abs(ours - theirs).max(initial=0) <= 1e-4 * scale


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A merged decoder, and its slices for two ranks, which are only read."""
    folder = tmp_path_factory.mktemp("decoder")
    path = merged_decoder.build(folder / "model.onnx")
    sharding.slice_model(path, 2, folder / "out")
    return path, folder / "out"


def _x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_merged_decoder_answers_for_both_conditions_in_turn(
    decoder: tuple[Path, Path], tmp_path: Path
) -> None:
    """The same shapes again and again, so that planned runs are met, too."""
    path, slices = decoder
    feeds = [
        merged_decoder.feeds(past=past, length=n) for n in (3, 1, 3) for past in (False, True, True, False)
    ]
    _compare(path, slices, feeds, 2)
    _check(path, tmp_path / "out", feeds, worlds=(3,))


def test_a_loop_ends_by_count_by_condition_and_before_its_first_turn(tmp_path: Path) -> None:
    feeds: list[Feeds] = [
        {"x": _x(rows, 24, seed=turns), "m": np.array(turns), "least": np.array(least, np.float32)}
        for rows, turns, least in ((2, 3, -9), (2, 3, -9), (2, 3, 9), (4, 1, -9), (2, 2, 1.5))
    ]
    _check(_save(tmp_path / "model.onnx", LOOP), tmp_path / "out", feeds)


def test_a_loop_without_turns_gives_what_it_was_given(tmp_path: Path) -> None:
    """And stacks of no element, which the caller owns."""
    path = _save(tmp_path / "model.onnx", LOOP)
    sharding.slice_model(path, 2, tmp_path / "out")
    feed = {"x": _x(2, 24), "m": np.array(0), "least": np.array(0, np.float32)}
    for (found,) in _run(tmp_path / "out", [[feed], [feed]]):
        y, stacked, _ = found
        np.testing.assert_array_equal(y, feed["x"])
        assert not np.shares_memory(y, feed["x"])
        assert stacked.shape[0] == 0 and stacked.shape[-1] == 48 and stacked.dtype == np.float32


def test_a_scan_over_any_number_of_rows(tmp_path: Path) -> None:
    feeds: list[Feeds] = [{"x": _x(length, 2, 24), "first": _x(2, 24, seed=9)} for length in (4, 1, 4, 6)]
    _check(_save(tmp_path / "model.onnx", SCAN), tmp_path / "out", feeds)


def test_a_scan_from_the_end_along_other_axes(tmp_path: Path) -> None:
    there = """scan_input_axes = [1], scan_input_directions = [1],
    scan_output_axes = [1], scan_output_directions = [1],"""
    text = SCAN.replace("num_scan_inputs = 1,", f"num_scan_inputs = 1, {there}")
    text = text.replace("[t, n, 24] x", "[n, t, 24] x").replace("[t, n, 48] s", "[n, t, 48] s")
    feeds: list[Feeds] = [{"x": _x(2, length, 24), "first": _x(2, 24, seed=9)} for length in (3, 1)]
    _check(_save(tmp_path / "model.onnx", text), tmp_path / "out", feeds, worlds=(2,))


@pytest.mark.parametrize("what", ["condition", "turns", "scanned"])
def test_ranks_that_would_go_different_ways_refuse_together(
    what: str, decoder: tuple[Path, Path], tmp_path: Path
) -> None:
    """Each names both ranks; after that they answer as before."""
    slices = tmp_path / "out"
    if what == "condition":
        slices = decoder[1]
        right = merged_decoder.feeds(past=True)
        other: Feeds = {**right, "use_cache_branch": np.array([False])}
        told = "the condition is True on rank 0 of the group and False on rank 1"
    elif what == "turns":
        path = _save(tmp_path / "model.onnx", LOOP)
        right = {"x": _x(2, 24), "m": np.array(2), "least": np.array(-9, np.float32)}
        other = {**right, "m": np.array(3)}
        told = "the number of turns is 2 on rank 0 of the group and 3 on rank 1"
    else:
        path = _save(tmp_path / "model.onnx", SCAN)
        right = {"x": _x(2, 2, 24), "first": _x(2, 24)}
        other = {**right, "x": _x(3, 2, 24)}
        told = "the number of turns is 2 on rank 0 of the group and 3 on rank 1"
    if what != "condition":
        sharding.slice_model(path, 2, slices)
    for error, answer in _run(slices, [[right, right], [other, right]]):
        assert isinstance(error, ModelError)
        assert "The ranks disagree at " in str(error) and told in str(error)
        assert not isinstance(answer, ModelError)


def test_ranks_whose_branches_exchange_differently_are_refused(
    decoder: tuple[Path, Path], tmp_path: Path
) -> None:
    slices = decoder[1]
    model = onnx.load(slices / "rank_1.onnx", load_external_data=False)
    (control,) = [node for node in model.graph.node if node.op_type == "If"]
    branch = control.attribute[0].g
    last = [node for node in branch.node if node.op_type == "AllReduce"][-1]
    last.op_type = "Neg"
    last.domain = ""
    del model.metadata_props[:]
    (tmp_path / "loose").mkdir()
    for name in ("rank_0.data", "rank_1.data"):
        (tmp_path / "loose" / name).write_bytes((slices / name).read_bytes())
    (tmp_path / "loose" / "rank_1.onnx").write_bytes(model.SerializeToString())
    other = onnx.load(slices / "rank_0.onnx", load_external_data=False)
    del other.metadata_props[:]
    (tmp_path / "loose" / "rank_0.onnx").write_bytes(other.SerializeToString())

    def work(communicator: FakeCommunicator) -> str:
        with pytest.raises(ModelError) as caught:
            executor.load(
                tmp_path / "loose" / f"rank_{communicator.rank}.onnx", communicator=communicator, threads=1
            )
        return str(caught.value)

    for told in on_ranks(2, work):
        assert "do not have the same collectives" in told


def test_what_two_branches_share_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each branch has sessions of its own, which map the same packed weights."""
    text = """
    g (float[n, 256] x, bool flag) => (float[n, 256] y) {
      y = If (flag) <
        then_branch = a () => (float[n, 256] p) {
          u = MatMul(x, wide) r = Relu(u) d = MatMul(r, narrow) p = Abs(d)
        },
        else_branch = b () => (float[n, 256] q) {
          v = MatMul(x, wide) s = Tanh(v) e = MatMul(s, narrow) q = Exp(e)
        }
      >
    }"""
    model = onnx.parser.parse_model(HEADER + text)
    for name, shape in {"wide": (256, 512), "narrow": (512, 256)}.items():
        model.graph.initializer.append(numpy_helper.from_array(_x(*shape, seed=len(name)) / 16, name))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SHARDRUN_WEIGHTS", raising=False)
    monkeypatch.setattr(automatic, "LEAST_BYTES", 1)
    feeds: list[Feeds] = [{"x": _x(2, 256), "flag": np.array(flag)} for flag in (True, False, True)]
    _check(path, tmp_path / "out", feeds, worlds=(2,))
    blobs = list((tmp_path / "cache" / "weights" / "blobs").iterdir())
    assert len(blobs) == 4, "two weights, of each a half on either rank"


def test_weights_in_bodies_can_be_replaced_while_serving(decoder: tuple[Path, Path], tmp_path: Path) -> None:
    path, folder = decoder
    feeds = [merged_decoder.feeds(past=past) for past in (True, False)]
    changed = onnx.load(path)
    (held,) = [tensor for tensor in changed.graph.initializer if tensor.name == "up0"]
    new = _x(*held.dims) / 7
    held.CopyFrom(numpy_helper.from_array(new, "up0"))
    (tmp_path / "changed.onnx").write_bytes(changed.SerializeToString())

    def work(communicator: FakeCommunicator) -> list[Any]:
        loaded = executor.load(folder, communicator=communicator, threads=1, variable_weights=["up0"])
        before = [loaded.run(feed) for feed in feeds]
        loaded.update_weights({"up0": new})
        return [before, [loaded.run(feed) for feed in feeds]]

    sessions = [ort.InferenceSession(item) for item in (path, tmp_path / "changed.onnx")]
    expected = [[session.run(None, feed) for feed in feeds] for session in sessions]
    for found in on_ranks(2, work):
        for ours, theirs in zip(found, expected, strict=True):
            for mine, wanted in zip(ours, theirs, strict=True):
                for a, b in zip(mine, wanted, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert not np.allclose(expected[0][0][0], expected[1][0][0], atol=1e-2)


def test_the_figures_count_one_branch_and_one_turn(tmp_path: Path) -> None:
    path = _save(tmp_path / "model.onnx", LOOP)
    manifest = sharding.slice_model(path, 2, tmp_path / "out")

    def work(communicator: FakeCommunicator) -> tuple[int, float]:
        loaded = executor.load(tmp_path / "out", communicator=communicator, threads=1)
        loaded.run({"x": _x(2, 24), "m": np.array(2), "least": np.array(-9, np.float32)})
        return loaded.stats.collectives, loaded.stats.communication_seconds

    for count, spent in on_ranks(2, work):
        assert count == len(manifest.collectives) and spent > 0


def test_a_condition_is_one_truth_value() -> None:
    node = onnx.helper.make_node("If", ["go"], ["y"], name="choose")
    driven = cast("Any", SimpleNamespace(control=SimpleNamespace(node=node)))
    for value in (np.array(True), np.array([True]), np.array([[True]])):
        assert _truth(driven, value, "the condition") and not _truth(driven, ~value, "the condition")
    for value in (np.array([], bool), np.array([True, True])):
        with pytest.raises(ModelError, match=r"the condition must be one truth value, but has the shape \["):
            _truth(driven, value, "the condition")
