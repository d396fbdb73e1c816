"""Rank models run by ranks in threads, against ONNX Runtime on the plain model that they amount to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from ranks.errors import ModelError, PeerLostError, ShardrunError
from ranks.run import executor, plans, program
from ranks.run.executor import RankModel
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.rank_models import joined, model, node, random_models, save, value

X = value("x", ["n", 4])
Feeds = dict[str, np.ndarray]


def reference(models: Sequence[onnx.ModelProto], feeds: Sequence[Feeds]) -> list[list[list[np.ndarray]]]:
    """What each rank must return for each of the feeds."""
    plain = joined(models)
    session = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [[f"{rank}/{item.name}" for item in models[0].graph.output] for rank in range(len(models))]
    inputs = {item.name for item in plain.graph.input}
    for rank, outputs in enumerate(names):
        names[rank] = [item[2:] if item[2:] in inputs else item for item in outputs]
    results = []
    for feed in feeds:
        per_rank = []
        for outputs in names:
            wanted = [item for item in outputs if item not in inputs]
            found = dict(zip(wanted, session.run(wanted, feed), strict=True)) if wanted else {}
            per_rank.append([feed[item] if item in inputs else found[item] for item in outputs])
        results.append(per_rank)
    return results


def run_all(
    paths: Sequence[Path],
    feeds: Sequence[Feeds],
    check: Callable[[RankModel, FakeCommunicator], None] | None = None,
) -> list[list[list[np.ndarray]]]:
    """What each rank returns for each of the feeds."""

    def work(communicator: FakeCommunicator) -> list[list[np.ndarray]]:
        loaded = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        results = [loaded.run(feed) for feed in feeds]
        if check:
            check(loaded, communicator)
        loaded.close()
        return results

    by_rank = on_ranks(len(paths), work)
    return [[by_rank[rank][index] for rank in range(len(paths))] for index in range(len(feeds))]


def assert_close(ours: Any, theirs: Any) -> None:
    """Every array equal in shape and type, and within 1e-4 of the largest magnitude."""
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b)
        return
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if ours.dtype == bool:
        np.testing.assert_array_equal(ours, theirs)
    elif ours.size:
        assert np.abs(ours - theirs).max() <= 1e-4 * max(np.abs(theirs).max(), 1e-6)


def rows(*counts: int, seed: int = 0) -> list[Feeds]:
    """Feeds of so many rows each, every one with other numbers."""
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((count, 4)).astype(np.float32)} for count in counts]


@pytest.mark.parametrize(
    ("seed", "size"), [(seed, 1 + (seed + other) % 4) for seed in range(12) for other in (0, 1)]
)
def test_random_graphs_with_shapes_that_change_between_runs(size: int, seed: int, tmp_path: Path) -> None:
    models = random_models(seed, size)
    # New shapes, shapes seen once (buffers are made), seen often (buffers are used again), and none at all.
    feeds = rows(size, 2 * size, size, size, 2 * size, 0, 2 * size, 0, size, 0, 3 * size, seed=seed)
    paths = save(models, tmp_path, external=seed % 2 == 0)
    assert_close(run_all(paths, feeds), reference(models, feeds))


def test_more_shapes_than_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    monkeypatch.setattr(program, "MAX_KNOWN_SHAPES", 4)
    models = random_models(99, 2)
    feeds = rows(*[2, 4, 6, 8, 10, 12] * 3, 2, 2, 2)

    def check(loaded: RankModel, _: FakeCommunicator) -> None:
        assert loaded._program is not None
        assert len(loaded._program._plans) <= 2
        assert len(loaded._program._shapes) <= 4

    assert_close(run_all(save(models, tmp_path), feeds, check), reference(models, feeds))


def test_the_shapes_that_were_not_seen_for_longest_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    monkeypatch.setattr(program, "MAX_KNOWN_SHAPES", 3)
    models = mlps(1)
    counts = [2, 2, 3, 3, 2, 4, 4]  # the second time a shape gets its plan; 2 is used once more before 4's

    def check(loaded: RankModel, _: FakeCommunicator) -> None:
        assert loaded._program is not None
        assert list(loaded._program._plans) == [((2, 4),), ((4, 4),)]
        loaded.run(rows(5)[0])
        assert list(loaded._program._shapes) == [((3, 4),), ((4, 4),), ((5, 4),)]

    assert_close(run_all(save(models, tmp_path), rows(*counts), check), reference(models, rows(*counts)))


def test_every_run_counts_the_time_of_its_collectives(tmp_path: Path) -> None:
    """Runs with new shapes and those with known ones, whose buffers are kept."""
    seen = []

    def check(loaded: RankModel, _: FakeCommunicator) -> None:
        for feed in rows(3, 3, 3, 3):
            loaded.run(feed)
            seen.append(loaded.stats.communication_seconds)

    run_all(save(mlps(1), tmp_path), rows(2), check)
    assert 0 < seen[0] < seen[1] < seen[2] < seen[3]


def mlp(rank: int, size: int) -> onnx.ModelProto:
    """Two MatMuls split over the ranks, with an AllReduce, a bias and a residual."""
    generator = np.random.default_rng(1)
    weights = {
        "w1": np.split(generator.standard_normal((4, 12)).astype(np.float32), size, 1)[rank],
        "w2": np.split(generator.standard_normal((12, 4)).astype(np.float32), size, 0)[rank],
        "b": generator.standard_normal(4).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "w2"], ["p"]),
        node("AllReduce", ["p"], ["s"]),
        node("Add", ["s", "b"], ["t"]),
        node("Add", ["t", "x"], ["y"]),
    ]
    return model(nodes, [X], [value("y", ["n", 4])], weights)


def mlps(size: int) -> list[onnx.ModelProto]:
    """The MLP of every rank."""
    return [mlp(rank, size) for rank in range(size)]


def test_collectives_work_in_place_on_buffers_that_stay(tmp_path: Path) -> None:
    models = mlps(2)
    feeds = rows(3, 3, 3, 3)
    seen: list[int] = []

    def work(communicator: FakeCommunicator) -> list[list[np.ndarray]]:
        addresses: list[int] = []
        reduce = communicator.all_reduce

        def noted(buffer: np.ndarray) -> None:
            addresses.append(buffer.ctypes.data)
            reduce(buffer)

        communicator.all_reduce = noted  # type: ignore[method-assign]
        loaded = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        results = [loaded.run(feed) for feed in feeds]
        assert len(addresses) == 4
        assert addresses[1] == addresses[2] == addresses[3]
        seen.append(len(communicator.calls))
        return results

    paths = save(models, tmp_path)
    by_rank = on_ranks(2, work)
    assert_close([list(item) for item in zip(*by_rank, strict=True)], reference(models, feeds))
    assert seen == [6, 6]  # the two checks that the ranks' models fit together, then one per run


def test_the_caller_owns_the_outputs(tmp_path: Path) -> None:
    models = mlps(2)
    feeds = rows(3, 3, 3, 3)
    expected = reference(models, feeds)
    paths = save(models, tmp_path)

    def work(communicator: FakeCommunicator) -> None:
        loaded = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        kept = []
        for index, feed in enumerate(feeds):
            (output,) = loaded.run(feed)
            assert output.flags.owndata or output.base is not None
            assert output.flags.writeable
            kept.append(output)
            assert_close([kept[index]], expected[index][communicator.rank])
        for index, output in enumerate(kept):  # later runs left earlier outputs alone
            assert_close([output], expected[index][communicator.rank])
            output.fill(np.nan)
        assert_close(loaded.run(feeds[0]), expected[0][communicator.rank])

    on_ranks(2, work)


def test_stats(tmp_path: Path) -> None:
    def check(loaded: RankModel, _: FakeCommunicator) -> None:
        stats = loaded.stats
        assert (stats.segments, stats.collectives) == (2, 1)
        assert stats.weight_bytes == 4 * (4 * 6 + 6 * 4 + 4)
        assert stats.communication_seconds > 0
        assert [(item.name, item.shape) for item in loaded.inputs] == [("x", ("n", 4))]
        assert [(item.name, str(item)) for item in loaded.outputs] == [("y", "float32[n, 4]")]

    run_all(save(mlps(2), tmp_path), rows(2), check)
    path = save([joined(mlps(2))], tmp_path)[0]
    plain = executor.load(path)
    assert plain.stats == executor.Stats(1, 0, 4 * (4 * 6 + 6 * 4 + 4) * 2, 0.0)


def test_all_kinds_of_collectives_and_types(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["d"], to=11),
        node("Mul", ["d", "w"], ["e"]),
        node("AllReduce", ["e", "d"], ["e1", "d1"]),
        node("AllGather", ["x"], ["g"], axis=-1, group_size=3),
        node("AllGather", ["e"], ["g1"]),
        node("Cast", ["x"], ["i"], to=7),
        node("AllToAll", ["i"], ["j"], group_size=3),
        node("Greater", ["x", "zero"], ["k"]),
        node("AllGather", ["k"], ["l"], axis=0),
        node("Broadcast", ["e"], ["m"], root=2),
        node("Sum", ["e1", "d1", "m"], ["y"]),
    ]
    models = [
        model(
            nodes,
            [X],
            ["y", "g", "g1", "j", "l"],
            {"w": np.array([rank + 1], np.float64), "zero": np.array([0], np.float32)},
        )
        for rank in range(3)
    ]
    feeds = rows(3, 3, 6, 3, 0)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


@pytest.mark.parametrize("axis", [1, -1])
def test_what_follows_an_allgather_knows_its_length(axis: int, tmp_path: Path) -> None:
    """The next segment's input is declared as long as all parts together: ONNX Runtime insists on it."""
    size = 3
    nodes = [
        node("MatMul", ["x", "up"], ["a"]),  # 2 columns, known from the weight
        node("AllGather", ["a"], ["all"], axis=axis, group_size=size),
        node("Shape", ["all"], ["shape"]),  # folded where the length is known
        node("MatMul", ["all", "down"], ["y"]),
    ]
    generator = np.random.default_rng(3)
    down = generator.standard_normal((2 * size, 5)).astype(np.float32)
    models = [
        model(
            nodes,
            [X],
            ["y", "shape"],
            {"up": generator.standard_normal((4, 2)).astype(np.float32), "down": down},
        )
        for _ in range(size)
    ]
    lengths: set[Any] = set()

    def check(loaded: RankModel, _: FakeCommunicator) -> None:
        assert loaded._program is not None
        last = loaded._program._sessions[-1]
        assert last is not None
        lengths.add(tuple(last.get_inputs()[0].shape))

    feeds = rows(2, 1, 2)
    results = run_all(save(models, tmp_path), feeds, check)
    assert_close(results, reference(models, feeds))
    assert [length[1] for length in lengths] == [2 * size]


def pipeline() -> list[onnx.ModelProto]:
    """Three ranks that differ: the first two send on, a broadcast gives everyone the last one's result."""
    first = [
        node("AllReduce", ["x"], ["everyone"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("Send", ["a"], [], peer=1),
        node("AllReduce", ["x"], ["again"]),
        node("Broadcast", ["x"], ["y"], root=2),
    ]
    middle = [
        node("AllReduce", ["x"], ["everyone"]),
        node("Recv", [], ["a"], peer=0, dtype=1, shape=[2, 4]),
        node("Tanh", ["a"], ["b"]),
        node("Send", ["b"], [], peer=2),
        node("AllReduce", ["b"], ["again"]),
        node("Broadcast", ["x"], ["y"], root=2),
    ]
    last = [
        node("AllReduce", ["x"], ["everyone"]),
        node("Recv", [], ["b"], peer=1, dtype=1, shape=[2, 4]),
        node("MatMul", ["b", "w"], ["c"]),
        node("AllReduce", ["x"], ["again"]),
        node("Broadcast", ["c"], ["y"], root=2),
    ]
    weights = {"w": np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32)}
    return [model(nodes, [X], ["y", "everyone", "again"], weights) for nodes in (first, middle, last)]


def test_ranks_that_send_and_receive(tmp_path: Path) -> None:
    models = pipeline()
    feeds = rows(2, 2, 2, 2)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


def test_ranks_of_different_structure_meet_in_the_files_order(tmp_path: Path) -> None:
    """By level, rank 0 would run a, c, b and rank 1 a, b, c."""

    def rank_model(source_of_b: str) -> onnx.ModelProto:
        nodes = [
            node("AllReduce", ["x"], ["a"]),
            node("AllGather", [source_of_b], ["b"], axis=0),
            node("Broadcast", ["x"], ["c"]),
        ]
        return model(nodes, [X], ["b", "c"])

    models = [rank_model("a"), rank_model("x")]
    feeds = rows(3, 3, 3)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


def test_ranks_whose_collectives_differ_are_told_so_before_they_wait_for_each_other(tmp_path: Path) -> None:
    models = [
        model([node("AllReduce", ["x"], ["y"])], [X], ["y"]),
        model([node("Broadcast", ["x"], ["y"])], [X], ["y"]),
    ]
    paths = save(models, tmp_path)

    def work(communicator: FakeCommunicator) -> str:
        with pytest.raises(ModelError) as caught:
            executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        return str(caught.value)

    for rank, message in enumerate(on_ranks(2, work)):
        assert message.startswith(str(paths[rank]))
        assert "the ranks' models do not have the same collectives in the same order" in message


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            node("AllGather", ["x"], ["y"], group_size=4),
            "AllGather of 'x' in {} is for a group of 4, but this group has 2",
        ),
        (node("Broadcast", ["x"], ["y"], root=2), "has root 2, but this group's ranks are 0..1"),
        (node("Recv", [], ["y"], peer=-1, dtype=1, shape=[1]), "Recv of 'y' in {} has peer -1"),
        (node("AllGather", ["x"], ["y"], axis=2), "AllGather of 'x' has axis 2, but"),
    ],
)
def test_collectives_that_do_not_fit_the_group(bad: onnx.NodeProto, message: str, tmp_path: Path) -> None:
    paths = save([model([bad], [X], ["y"])] * 2, tmp_path)

    def work(communicator: FakeCommunicator) -> None:
        path = paths[communicator.rank]
        with pytest.raises(ModelError) as caught:
            executor.load(path, communicator=communicator, threads=1)
        assert message.format(path) in str(caught.value)

    on_ranks(2, work)


def test_a_rank_cannot_send_to_itself(tmp_path: Path) -> None:
    nodes = [node("Send", ["x"], [], peer=0), node("Neg", ["x"], ["y"])]
    (path,) = save([model(nodes, [X], ["y"])], tmp_path)
    with pytest.raises(ModelError, match="has this rank itself as its peer"):
        on_ranks(1, lambda communicator: executor.load(path, communicator=communicator))


def test_alltoall_that_does_not_divide(tmp_path: Path) -> None:
    paths = save([model([node("AllToAll", ["x"], ["y"])], [X], ["y"])] * 2, tmp_path)
    with pytest.raises(
        ModelError, match=r"AllToAll of 'x': axis 0 of its shape \[3, 4\] must be a multiple of 2"
    ):
        run_all(paths, rows(3))


# Shapes that depend on values


def by_value(rank: int) -> onnx.ModelProto:
    """Between two collectives, rows are chosen by value: their number is known only when the model runs."""
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("ReduceSum", ["b", "axis"], ["sums"], keepdims=0),
        node("Greater", ["sums", "zero"], ["chosen"]),
        node("Compress", ["b", "chosen"], ["c"], axis=0),
        node("Mul", ["c", "w"], ["d"]),
        node("AllReduce", ["d"], ["e"]),
        node("Add", ["e", "c"], ["f"]),
        node("AllGather", ["f"], ["g"], axis=0),
        node("Relu", ["g"], ["y"]),
    ]
    weights: dict[str, np.ndarray] = {
        "w": np.array([rank + 1], np.float32),
        "axis": np.array([1], np.int64),
        "zero": np.array([0], np.float32),
    }
    return model(nodes, [X], ["y", "b"], weights)


def test_shapes_that_depend_on_values(tmp_path: Path) -> None:
    models = [by_value(rank) for rank in range(2)]
    feeds = rows(6, 6, 6, 6, 6, 2, 2, 6, 6)
    feeds[3]["x"] = -np.abs(feeds[3]["x"])  # none chosen
    feeds[5]["x"] = np.abs(feeds[5]["x"])  # all chosen
    expected = reference(models, feeds)
    assert len({item[0][0].shape for item in expected}) > 3

    def check(loaded: RankModel, communicator: FakeCommunicator) -> None:
        # One segment was run twice, once: when its plan turned out wrong. No collective ever is.
        assert sum(call != "all_gather" for call, _ in communicator.calls) == 2 * len(feeds)
        assert loaded._program is not None
        assert loaded._program._planned_levels == 1

    assert_close(run_all(save(models, tmp_path), feeds, check), expected)


def test_lengths_that_the_file_declares_wrongly(tmp_path: Path) -> None:
    """ONNX Runtime only warns of them where they are no inputs, so they must not become inputs' lengths."""
    nodes = [
        node("Reshape", ["x", "as"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Neg", ["b"], ["c"]),
        node("AllReduce", ["c"], ["y"]),
        node("Abs", ["y"], ["z"]),
    ]
    models = [model(nodes, [X], [value("y", [8, 4]), value("z", ["n", 4])], {"as": np.array([-1, 4])})] * 2
    for item in models:
        item.graph.value_info.extend(value(name, [8, 4]) for name in "abc")
    feeds = [{"x": np.full((n, 4), n, np.float32)} for n in (3, 3, 8, 1)]
    for feed, results in zip(feeds, run_all(save(models, tmp_path), feeds), strict=True):
        for y, z in results:
            np.testing.assert_array_equal(y, -4 * feed["x"])
            np.testing.assert_array_equal(z, 4 * feed["x"])


def test_strings_between_segments(tmp_path: Path) -> None:
    nodes = [
        node("AllReduce", ["x"], ["a"]),
        node("Cast", ["a"], ["text"], to=8),
        node("Abs", ["a"], ["b"]),
        node("AllReduce", ["b"], ["c"]),
        node("Cast", ["text"], ["number"], to=1),
        node("Add", ["number", "c"], ["y"]),
    ]
    models = [model(nodes, [X], ["y", "text"])] * 2
    feeds = [{"x": np.array([[1, 2, 3, -4]], np.float32)}] * 3
    for results in run_all(save(models, tmp_path), feeds):
        for number, text in results:
            np.testing.assert_array_equal(number, [[6, 12, 18, 8]])
            assert text.tolist() == [["2", "4", "6", "-8"]]


def test_strings_into_a_rank_model(tmp_path: Path) -> None:
    nodes = [node("Cast", ["text"], ["a"], to=1), node("AllReduce", ["a"], ["y"])]
    paths = save([model(nodes, [value("text", ["n"], 8)], ["y", "text"])] * 2, tmp_path)
    feeds = [{"text": np.array(text)} for text in (["1", "2.5"], ["1", "2.5"], ["3"], ["1", "2.5"])]
    for feed, results in zip(feeds, run_all(paths, feeds), strict=True):
        for number, text in results:
            np.testing.assert_array_equal(number, 2 * feed["text"].astype(np.float32))
            assert text.tolist() == feed["text"].tolist()


def test_sequences_into_a_rank_model_are_refused(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", 1, None)
    nodes = [node("ConcatFromSequence", ["s"], ["a"], axis=0), node("AllReduce", ["a"], ["y"])]
    paths = save([model(nodes, [sequence], ["y"])] * 2, tmp_path)
    with pytest.raises(ModelError, match=r"'s' of .* is no tensor"):
        run_all(paths, [])


def test_sequences_between_segments(tmp_path: Path) -> None:
    nodes = [
        node("AllReduce", ["x"], ["a"]),
        node("SplitToSequence", ["a"], ["rows"], axis=0),
        node("AllReduce", ["a"], ["b"]),
        node("ConcatFromSequence", ["rows"], ["c"], axis=0),
        node("Add", ["b", "c"], ["y"]),
    ]
    models = [model(nodes, [X], ["y"])] * 2
    for feed, results in zip(rows(2, 2, 3), run_all(save(models, tmp_path), rows(2, 2, 3)), strict=True):
        for (output,) in results:
            np.testing.assert_allclose(output, 6 * feed["x"], rtol=1e-6)


def test_constants_of_the_model_are_never_reduced_in_place(tmp_path: Path) -> None:
    nodes = [
        node("Add", ["w", "w"], ["folded"]),
        node("AllReduce", ["w"], ["a"]),
        node("AllReduce", ["folded"], ["b"]),
        node("Shape", ["w"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["ones"], value=helper.make_tensor("v", 1, [1], [1.0])),
        node("AllReduce", ["ones"], ["c"]),
        node("Sum", ["a", "b", "c", "x", "w"], ["y"]),
    ]
    models = [
        model(nodes, [X], ["y", "w"], {"w": np.array([rank, 1, 2, 3], np.float32)}) for rank in range(2)
    ]
    feeds = rows(1, 2, 1, 2, 1, 2)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


# Plain models


def test_a_plain_model_needs_no_group_and_may_be_run_by_many_threads(tmp_path: Path) -> None:
    (path,) = save([joined(mlps(2))], tmp_path, external=True)
    loaded = executor.load(path)
    feeds = rows(*range(1, 33))
    session = ort.InferenceSession(path)
    with ThreadPoolExecutor(8) as pool:
        for feed, output in zip(feeds, pool.map(loaded.run, feeds), strict=True):
            assert_close(output, session.run(None, feed))
    loaded.close()
    loaded.close()
    with pytest.raises(ShardrunError, match="is closed"):
        loaded.run(feeds[0])


def test_one_group_model_may_be_called_by_many_threads(tmp_path: Path) -> None:
    (path,) = save([mlp(0, 1)], tmp_path)
    feeds = rows(*[2, 3] * 20)
    expected = reference([mlp(0, 1)], feeds)

    def work(communicator: FakeCommunicator) -> None:
        loaded = executor.load(path, communicator=communicator, threads=1)
        with ThreadPoolExecutor(4) as pool:
            for (theirs,), ours in zip(expected, pool.map(loaded.run, feeds), strict=True):
                assert_close(ours, theirs)

    on_ranks(1, work)


def test_strings_and_sequences_in_a_plain_model(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["text"], ["y"], to=1),
        node("SplitToSequence", ["y"], ["parts"], axis=0),
    ]
    parts = onnx.ValueInfoProto(name="parts")
    plain = model(nodes, [value("text", ["n"], 8)], ["y", parts])
    loaded = executor.load(save([plain], tmp_path)[0])
    assert str(loaded.inputs[0]) == "string[n]"
    assert [item.is_tensor for item in loaded.outputs] == [True, False]
    for text in (np.array(["1.5", "2"]), np.array(["1.5", "2"], dtype=object)):
        number, sequence = loaded.run({"text": text})
        np.testing.assert_array_equal(number, [1.5, 2])
        assert [item.tolist() for item in sequence] == [[1.5], [2]]


def test_bfloat16_in_a_plain_model(tmp_path: Path) -> None:
    import ml_dtypes

    nodes = [node("Cast", ["x"], ["a"], to=1), node("Neg", ["a"], ["b"]), node("Cast", ["b"], ["y"], to=16)]
    loaded = executor.load(save([model(nodes, [value("x", ["n"], 16)], ["y"])], tmp_path)[0])
    assert loaded.inputs[0].dtype == ml_dtypes.bfloat16
    for count in (2, 2, 0, 2):
        x = np.arange(count).astype(ml_dtypes.bfloat16)
        (output,) = loaded.run({"x": x})
        assert output.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(output, -x)


def test_strings_beside_bfloat16(tmp_path: Path) -> None:
    import ml_dtypes

    nodes = [
        node("Cast", ["text"], ["a"], to=1),
        node("Cast", ["x"], ["b"], to=1),
        node("Add", ["a", "b"], ["c"]),
        node("Cast", ["c"], ["y"], to=16),
        node("Cast", ["y"], ["z"], to=1),
        node("AllReduce", ["z"], ["w"]),
        node("Cast", ["w"], ["v"], to=16),
    ]
    inputs, dtype = [value("text", ["n"], 8), value("x", ["n"], 16)], ml_dtypes.bfloat16
    feeds = [{"text": np.array(["1", "2"]), "x": np.array([0.5, 4], dtype)}] * 3
    expected = np.array([1.5, 6], dtype)
    loaded = executor.load(save([model(nodes[:5], inputs, ["y", "z"])], tmp_path)[0])
    for feed in feeds:
        y, z = loaded.run(feed)
        assert loaded.outputs[0].dtype == y.dtype == dtype and z.dtype == np.float32
        assert y.tolist() == z.tolist() == expected.tolist()
    paths = save([model(nodes, inputs, ["y", "v", "text"])] * 2, tmp_path)
    for results in run_all(paths, feeds):
        for y, v, text in results:
            assert y.dtype == v.dtype == dtype and text.tolist() == ["1", "2"]
            assert y.tolist() == expected.tolist() and v.tolist() == [3, 12]


def _branch(name: str, made: str, by: onnx.NodeProto) -> onnx.GraphProto:
    return onnx.helper.make_graph([by], name, [], [value(made, ["n"], 8)])


@pytest.mark.parametrize("way", ["a segment", "a branch", "a branch with an exchange"])
def test_strings_made_by_ranks_beside_bfloat16(way: str, tmp_path: Path) -> None:
    """Strings that a segment or a branch gives, read by a later segment that gives bfloat16."""
    import ml_dtypes

    first = node("Concat", ["text", "text"], ["s"], axis=0)
    if way != "a segment":
        then = _branch("then", "t", node("Identity", ["text"], ["t"]))
        if way == "a branch with an exchange":
            sums = [
                node("Cast", ["text"], ["f"], to=1),
                node("AllReduce", ["f"], ["g"]),
                node("Cast", ["g"], ["t"], to=8),
            ]
            then = onnx.helper.make_graph(sums, "then", [], [value("t", ["n"], 8)])
        first = node(
            "If", ["yes"], ["s"],
            then_branch=then,
            else_branch=_branch("else", "e", node("Concat", ["text"], ["e"], axis=0)),
        )  # fmt: skip
    nodes = [
        first,
        node("Cast", ["s"], ["numbers"], to=1),
        node("ReduceMin", ["numbers"], ["least"], keepdims=0),
        node("Sign", ["least"], ["one"]),
        node("Mul", ["halves", "one"], ["parts"]),
        node("AllReduce", ["parts"], ["whole"]),
        node("Cast", ["whole"], ["places"], to=7),
        node("Gather", ["s", "places"], ["picked"]),
        node("Cast", ["picked"], ["y"], to=16),
    ]
    inputs = [value("text", ["n"], 8), value("halves", ["m"])]
    feeds = [{"text": np.array(["1", "2"]), "halves": np.array([0.5, 0, 0.5], np.float32)}] * 3
    if way != "a segment":
        inputs.append(value("yes", [], 9))
        feeds = [{**feed, "yes": np.array(True)} for feed in feeds]
    paths = save([model(nodes, inputs, ["y"])] * 2, tmp_path)
    times = 2 if way == "a branch with an exchange" else 1
    for results in run_all(paths, feeds):
        for (y,) in results:
            assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [2 * times, times, 2 * times]


@pytest.mark.parametrize("group", [False, True])
def test_fixed_dimensions_can_be_changed(group: bool, tmp_path: Path) -> None:
    def fixed(item: onnx.ModelProto) -> onnx.ModelProto:
        item.graph.input[0].CopyFrom(value("x", [2, 4]))
        item.graph.output[0].CopyFrom(value(item.graph.output[0].name, [2, 4]))
        return item

    models = [fixed(mlp(0, 1))]
    (path,) = save(models if group else [fixed(joined(models))], tmp_path, external=True)

    def work(communicator: FakeCommunicator | None) -> None:
        with pytest.raises(ShardrunError, match="Axis 0 of input 'x' must have length 2"):
            executor.load(path, communicator=communicator).run(rows(3)[0])
        cases: list[tuple[list[int | str | None], list[int]]] = [
            ([3, 4], [3, 3]),
            (["n", 4], [5, 1, 2]),
            ([-1, 4], [5, 1]),
            ([None, None], [2, 3]),
        ]
        for dims, counts in cases:
            loaded = executor.load(path, communicator=communicator, dims={"x": dims})
            feeds = rows(*counts)
            for feed, (expected,) in zip(feeds, reference(mlps(1), feeds), strict=True):
                assert_close(loaded.run(feed), expected)
        with pytest.raises(ModelError, match="has no input 'z' to resize; it has 'x'"):
            executor.load(path, communicator=communicator, dims={"z": [1]})
        with pytest.raises(ModelError, match=r"'x' of .* has 2 axes and cannot be resized to \[1\]"):
            executor.load(path, communicator=communicator, dims={"x": [1]})

    on_ranks(1, work) if group else work(None)


# Feeds that do not fit

BAD_FEEDS: Mapping[str, tuple[Any, str]] = {
    "none": ({}, "Input 'x' is missing: the model expects 'x' float32[n, 4], but was given nothing."),
    "other": (
        {"y": np.zeros(1)},
        "Input 'x' is missing: the model expects 'x' float32[n, 4], but was given 'y'.",
    ),
    "more": (
        {"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)},
        "The model has no input 'z'; it expects 'x' float32[n, 4].",
    ),
    "type": (
        {"x": np.zeros((1, 4))},
        "Input 'x' must have dtype float32, but has float64: convert it with array.astype('float32').",
    ),
    "axes": ({"x": np.zeros(4, np.float32)}, "Input 'x' must have 2 axes (float32[n, 4]), but has 1: [4]."),
    "length": (
        {"x": np.zeros((1, 5), np.float32)},
        "Axis 1 of input 'x' must have length 4 (float32[n, 4]), but has 5: [1, 5].",
    ),
    "list": ({"x": [[1, 2, 3, 4]]}, "Input 'x' must be a numpy array of float32[n, 4], but is list."),
}


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("case", BAD_FEEDS)
def test_feeds_that_do_not_fit(case: str, group: bool, tmp_path: Path) -> None:
    feeds, message = BAD_FEEDS[case]
    (path,) = save([mlp(0, 1) if group else joined([mlp(0, 1)])], tmp_path)

    def work(communicator: FakeCommunicator | None) -> None:
        loaded = executor.load(path, communicator=communicator)
        with pytest.raises(ShardrunError) as caught:
            loaded.run(feeds)
        assert str(caught.value) == message
        good = rows(1)  # the model still works
        assert_close(loaded.run(good[0]), reference([mlp(0, 1)], good)[0][0])

    on_ranks(1, work) if group else work(None)


@pytest.mark.parametrize("group", [False, True])
def test_arrays_of_any_layout_are_taken(group: bool, tmp_path: Path) -> None:
    (path,) = save([mlp(0, 1) if group else joined([mlp(0, 1)])], tmp_path)
    base = rows(8)[0]["x"]
    layouts = [
        np.asfortranarray(base),
        base[::2],
        base[::-1],
        base[:, ::-1],
        np.broadcast_to(base[:1], (3, 4)),
    ]

    def work(communicator: FakeCommunicator | None) -> None:
        loaded = executor.load(path, communicator=communicator)
        for array in layouts * 2:
            feeds = [{"x": np.ascontiguousarray(array)}]
            assert_close(loaded.run({"x": array}), reference([mlp(0, 1)], feeds)[0][0])

    on_ranks(1, work) if group else work(None)


def test_what_onnxruntime_cannot_compute(tmp_path: Path) -> None:
    nodes = [node("AllReduce", ["x"], ["a"]), node("Gather", ["a", "i"], ["y"])]
    models = [model(nodes, [X, value("i", ["k"], 7)], ["y"])]
    (path,) = save(models, tmp_path)

    def work(communicator: FakeCommunicator) -> None:
        loaded = executor.load(path, communicator=communicator)
        x = rows(2)[0]["x"]
        for index in (1, 1, 1, 7, 1, 7):
            feeds = {"x": x, "i": np.array([index], np.int64)}
            if index == 7:
                with pytest.raises(ModelError, match=r"ONNX Runtime could not run .* idx=7 must be within"):
                    loaded.run(feeds)
            else:
                np.testing.assert_array_equal(loaded.run(feeds)[0], x[1:])

    on_ranks(1, work)


def test_an_error_of_a_peer_comes_through(tmp_path: Path) -> None:
    paths = save(mlps(2), tmp_path)
    ran = threading.Event()

    def work(communicator: FakeCommunicator) -> None:
        loaded = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        loaded.run(rows(1)[0])
        if communicator.rank == 1:
            assert ran.wait(60)
            communicator.board.barrier.abort()
            return
        ran.set()
        with pytest.raises(PeerLostError):
            loaded.run(rows(1)[0])

    on_ranks(2, work)
