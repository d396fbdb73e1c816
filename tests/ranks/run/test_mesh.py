"""Rank models of a mesh: data rows, pipeline stages, micro-batches, against plain ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
import pytest

from ranks.common.tensors import TensorSpec
from ranks.errors import ModelError, ShardError, ShardrunError
from ranks.models.part import Part
from ranks.run import executor
from ranks.run.schedule import Schedule, shares
from sharding.slices.mesh import Mesh
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks, same_everywhere
from tests.ranks.mesh_models import describe, feeds_of, save_mesh, stage_model, whole
from tests.ranks.rank_models import model, node, save, value
from tests.sharding import graphs

if TYPE_CHECKING:
    from ranks.run.program import Program

MESHES = [
    {"pipeline": 2},
    {"data": 2},
    {"data": 3},
    {"pipeline": 3},
    {"data": 2, "pipeline": 2},
    {"pipeline": 2, "tensor": 2},
    {"data": 2, "tensor": 2},
    {"tensor": 2, "pipeline": 2},
    {"data": 2, "pipeline": 2, "tensor": 2},
    {"tensor": 2, "pipeline": 2, "data": 2},
]


def reference(stages: int, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    # Its optimizers take axes of one symbol to be of one length.
    session = graphs.session(whole(stages), optimized=False)
    return list(session.run(None, feeds))


def close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return not wanted.size or float(np.abs(found - wanted).max()) <= 1e-4 * float(np.abs(wanted).max())


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_equals_the_whole_model(sizes: dict[str, int], micro_batches: int, tmp_path: Path) -> None:
    mesh = Mesh.of(**sizes)
    paths = save_mesh(mesh, tmp_path, micro_batches=micro_batches)
    batches = [feeds_of(rows, seed) for seed, rows in enumerate([8, 8, 1, 7, 8, 0, 2, 7])]

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        assert [spec.name for spec in loaded.inputs] == ["x", "mask", "scale"]
        assert [spec.name for spec in loaded.outputs] == ["y", "mid", "s", "t"]
        assert loaded.collectives == "fake"
        results = [array for feeds in batches for array in loaded.run(feeds)]
        loaded.close()
        return results

    everyone = on_ranks(mesh.size, work)
    assert same_everywhere(everyone)
    wanted = [array for feeds in batches for array in reference(mesh.length("pipeline"), feeds)]
    assert all(close(found, right) for found, right in zip(everyone[0], wanted, strict=True))


def test_rows_are_shared_in_order() -> None:
    assert shares(7, 3) == [slice(0, 3), slice(3, 5), slice(5, 7)]
    assert shares(1, 3) == [slice(0, 1), slice(1, 1), slice(1, 1)]
    assert shares(0, 2) == [slice(0, 0), slice(0, 0)]


def test_each_micro_batch_after_a_failed_one_is_given_up_too() -> None:
    """Another stage waits for each of them."""
    told: list[str] = []

    def run(feeds: Any) -> Any:
        raise ModelError("no memory")

    program = SimpleNamespace(run=run, fail=told.append)
    part = Part(Mesh.of(pipeline=1), 0, micro_batches=3, outputs=(("y", 0),), batch_inputs={"x": 0})
    inputs = [TensorSpec("x", np.dtype(np.float32), (None, 2))]

    def work(world: FakeCommunicator) -> None:
        with pytest.raises(ModelError, match="no memory"):
            Schedule(cast("Program", program), part, world, inputs, ["y"]).run([np.zeros((6, 2), np.float32)])

    on_ranks(1, work)
    assert told == ["no memory"] * 3


def test_a_data_rank_without_rows_computes_nothing(tmp_path: Path) -> None:
    paths = save_mesh(Mesh.of(data=3, tensor=2), tmp_path)

    def work(world: FakeCommunicator) -> int:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        before = len(world.calls)
        loaded.run(feeds_of(2))
        return sum(name == "all_reduce" for name, _ in world.calls[before:])

    assert on_ranks(6, work) == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "sizes", [{"data": 2, "pipeline": 2}, {"data": 3}, {"pipeline": 2, "tensor": 2}], ids=str
)
@pytest.mark.parametrize("named", [True, False])
def test_batches_of_different_length_are_not_cut(sizes: dict[str, int], named: bool, tmp_path: Path) -> None:
    """As ONNX Runtime takes them: one row is for all; other numbers do not fit, for all ranks alike.

    Also where the inputs' axes have no names in the file.
    """
    mesh = Mesh.of(**sizes)
    paths = save_mesh(mesh, tmp_path, micro_batches=2)
    for path in () if named else paths:
        item = onnx.load(path)
        for given in item.graph.input:
            for axis in given.type.tensor_type.shape.dim:
                axis.ClearField("dim_param")
        onnx.save(item, path)
    one_mask, wrong = ({**feeds_of(4), "mask": feeds_of(rows)["mask"]} for rows in (1, 3))

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        found = loaded.run(one_mask)
        with pytest.raises(ModelError, match="broadcast"):
            loaded.run(wrong)
        return [*found, *loaded.run(one_mask), *loaded.run(feeds_of(4))]

    everyone = on_ranks(mesh.size, work)
    assert same_everywhere(everyone)
    wanted = [
        array
        for feeds in (one_mask, one_mask, feeds_of(4))
        for array in reference(mesh.length("pipeline"), feeds)
    ]
    assert all(close(found, right) for found, right in zip(everyone[0], wanted, strict=True))


def _gathering(mesh: Mesh, folder: Path) -> list[Path]:
    """Two stages; the first looks rows up by number, which fails for numbers that are too large."""
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    inputs, layout = [value("i", ["batch"], 7)], [("y", 1)]
    first = model(
        [
            node("Gather", ["table", "i"], ["h"]),
            node("Send", ["h"], [], peer=1, announce=1),
        ],
        inputs,
        [],
        {"table": table},
    )
    second = model(
        [node("Recv", [], ["h"], peer=0, dtype=1, announce=1, shape=[-1, 4]), node("Neg", ["h"], ["y"])],
        inputs,
        [value("y", None)],
    )
    paths = []
    for rank in range(mesh.size):
        stage = mesh.coordinates(rank)["pipeline"]
        paths.append(folder / f"r{rank}.onnx")
        item = onnx.ModelProto()
        item.CopyFrom((first, second)[stage])
        describe(item, mesh, rank, 2, layout, {"inputs": {"i": 0}, "outputs": {"y": 0}})
        onnx.save(item, paths[-1])
    return paths


@pytest.mark.parametrize(
    "sizes", [{"pipeline": 2}, {"data": 2, "pipeline": 2}, {"pipeline": 2, "tensor": 2}], ids=str
)
@pytest.mark.parametrize("bad", [0, 3, 7])
def test_an_input_that_one_stage_cannot_compute(sizes: dict[str, int], bad: int, tmp_path: Path) -> None:
    """Every rank raises that stage's error, whichever micro-batch it was in, and the group goes on."""
    mesh = Mesh.of(**sizes)
    paths = _gathering(mesh, tmp_path)
    good = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    wrong = good.copy()
    wrong[bad] = 99

    def work(world: FakeCommunicator) -> np.ndarray[Any, Any]:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        result = loaded.run({"i": good})[0]
        for _ in range(2):
            with pytest.raises(ModelError, match="idx=99 must be within"):
                loaded.run({"i": wrong})
            assert np.array_equal(loaded.run({"i": good})[0], result)
        return np.asarray(result)

    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    for found in on_ranks(mesh.size, work):
        assert np.array_equal(found, -table[good])


def test_an_announced_shape_that_is_not_the_planned_one(tmp_path: Path) -> None:
    """As many rows cross as are not zero: the receiver's buffers do not fit any more, and it says nothing."""
    x = value("x", ["n"])
    models = [
        model(
            [
                node("NonZero", ["x"], ["z"]),
                node("Cast", ["z"], ["f"], to=1),
                node("Send", ["f"], [], peer=1, announce=1),
            ],
            [x],
            [],
        ),
        model(
            [
                node("Recv", [], ["f"], peer=0, dtype=1, announce=1, shape=[1, -1]),
                node("ReduceSum", ["f"], ["y"], keepdims=0),
                node("Neg", ["f"], ["g"]),
            ],
            [x],
            ["y", "g"],
        ),
    ]
    paths = save(models, tmp_path)
    batches = [
        np.array(row, np.float32)
        for row in ([1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0])
    ]

    def work(world: FakeCommunicator) -> list[Any]:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        return [loaded.run({"x": row}) for row in batches]

    for row, (total, negative) in zip(batches, on_ranks(2, work)[1], strict=True):
        assert total == np.flatnonzero(row).sum()
        assert np.array_equal(negative, -np.array(np.nonzero(row), np.float32))


@pytest.mark.parametrize(
    ("before", "sent"),
    [(("Cast", ["x"], {"to": 11}), "float64[2]"), (("Expand", ["x", "two"], {}), "float32[3, 2]")],
)
def test_a_value_of_another_type_or_rank_than_the_receiver_expects(
    before: tuple[str, list[str], dict[str, int]], sent: str, tmp_path: Path
) -> None:
    kind, read, attributes = before
    models = [
        model(
            [node(kind, read, ["h"], **attributes), node("Send", ["h"], [], peer=1, announce=1)],
            [value("x", [2])],
            [],
            {"two": np.array([3, 2])},
        ),
        model(
            [node("Recv", [], ["h"], peer=0, dtype=1, announce=1, shape=[-1]), node("Neg", ["h"], ["y"])],
            [value("x", [2])],
            ["y"],
        ),
    ]
    paths = save(models, tmp_path)

    def work(world: FakeCommunicator) -> str:
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        try:
            loaded.run({"x": np.ones(2, np.float32)})
        except ShardrunError as error:
            return str(error)
        return ""

    assert f"Rank 0 sent {sent} for 'h' where this rank's model expects float32[-1]" in on_ranks(2, work)[1]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            [],
            "rank 0 sends to rank 1 what that does not receive",
        ),
        ([("Recv", 0, 0), ("Recv", 0, 0)], "rank 1 would wait for ever in a receive from rank 0"),
        ([("Recv", 0, 1)], "rank 1 would wait for ever in a receive from rank 0"),
        ([("Recv", 2, 0)], "rank 1 would wait for ever in a receive from rank 2"),
    ],
)
def test_sends_and_receives_that_do_not_match(
    second: list[tuple[str, int, int]], words: str, tmp_path: Path
) -> None:
    x = value("x", [2])
    receives = [
        node(op, [], [f"h{index}"], peer=peer, dtype=1, announce=announce, shape=[2])
        for index, (op, peer, announce) in enumerate(second)
    ]
    models = [
        model([node("Send", ["x"], [], peer=1)], [x], [value("x", [2])]),
        model([*receives, node("Neg", ["x"], ["y"])], [x], ["y"]),
        model([node("Neg", ["x"], ["y"])], [x], ["y"]),
    ]
    paths = save(models, tmp_path)

    def work(world: FakeCommunicator) -> None:
        with pytest.raises(ModelError, match=words):
            executor.load(paths[world.rank], communicator=world, threads=1)

    # A model that neither sends nor receives is not cut, and joins nobody: it must do something here.
    models[2].graph.node.append(node("AllReduce", ["y"], ["z"]))
    for item in models[:2]:
        item.graph.node.append(node("AllReduce", ["x"], ["z"]))
    save(models, tmp_path)
    on_ranks(3, work)


@pytest.mark.parametrize(
    ("kept", "count", "announced", "runs"),
    [(0, 1, 0, False), (7, 7, 0, True), (7, 8, 0, False), (7, 3, 1, True), (7, 4, 1, False)],
)
def test_sends_before_receives_run_where_the_backend_keeps_them(
    kept: int, count: int, announced: int, runs: bool, tmp_path: Path
) -> None:
    """Two ranks that both send first: NCCL's send waits for the receiver, and so do MPI's and Gloo's."""
    x = value("x", [2])
    names = [f"h{index}" for index in range(count)]
    models = [
        model(
            [
                *(node("Send", ["x"], [], peer=peer, announce=announced) for _ in names),
                *(
                    node("Recv", [], [name], peer=peer, dtype=1, announce=announced, shape=[2])
                    for name in names
                ),
                node("Sum", names, ["y"]),
            ],
            [x],
            ["y"],
        )
        for peer in (1, 0)
    ]
    paths = save(models, tmp_path)

    def work(world: FakeCommunicator) -> float:
        world.sends_kept = kept
        loaded = executor.load(paths[world.rank], communicator=world, threads=1)
        return float(loaded.run({"x": np.full(2, 1 + world.rank, np.float32)})[0][0])

    if runs:
        assert on_ranks(2, work) == [2.0 * count, 1.0 * count]
        return
    with pytest.raises(ModelError, match=r"rank \d would wait for ever in a send to rank"):
        on_ranks(2, work)


MESH = Mesh.of(data=2, pipeline=2)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("mesh", "data=2,pipeline=0", "shardrun.mesh is damaged: .*gives pipeline the size '0'"),
        ("mesh", "\u2603" * 500, "shardrun.mesh is damaged"),
        ("mesh", "pipeline=2", "is for a mesh of 2 ranks"),
        ("mesh", "tensor=4", "is in one of them only|must be an output's name and its stage below 1"),
        ("micro_batches", "0", "from 1 to 65536, but is '0'"),
        ("micro_batches", "-1", "but is '-1'"),
        ("micro_batches", "9" * 5000, "from 1 to 65536"),
        ("micro_batches", "\u0663", "from 1 to 65536"),
        ("rank", "1", "is the model of rank 1 of 4, but this process is rank 0 of 4"),
        ("rank", "9" * 5000, "is the model of rank 9999"),
        ("world_size", "8", "of rank 0 of 8"),
        ("layout", None, "lacks the metadata shardrun.layout"),
        ("layout", "{", "is not valid JSON"),
        ("layout", "[" * 100000, "is not valid JSON"),
        ("layout", "{}", 'lacks the key "outputs"'),
        ("layout", '{"outputs": [["y", 2]], "batch": {"inputs": {}, "outputs": {}}}', "stage below 2"),
        ("layout", '{"outputs": [["y", 0], ["y", 0]], "batch": {"inputs": {}, "outputs": {}}}', "each once"),
        (
            "layout",
            '{"outputs": [["mid", 0], ["q", 0]], "batch": {"inputs": {}, "outputs": {}}}',
            "'q' is in one of",
        ),
        ("layout", '{"outputs": [["mid", 0]], "batch": {"inputs": {"x": -1}, "outputs": {}}}', "at least 0"),
        (
            "layout",
            '{"outputs": [["mid", 0]], "batch": {"inputs": {"x": 99}, "outputs": {}}}',
            "an axis below 32",
        ),
        (
            "layout",
            '{"outputs": [["mid", 0]], "batch": {"inputs": {"w": 0}, "outputs": {}}}',
            "of the model's inputs",
        ),
        ("layout", '{"outputs": [["mid", 0]], "batch": {"inputs": {}}}', 'lacks the key "outputs"'),
        ("layout", '{"outputs": {"mid": 0}, "batch": {}}', "must be a list"),
    ],
)
def test_damaged_metadata(key: str, text: str | None, words: str, tmp_path: Path) -> None:
    item = stage_model(MESH, 0)
    found = {prop.key: prop.value for prop in item.metadata_props} | {f"shardrun.{key}": text}
    del item.metadata_props[:]
    for name, content in found.items():
        if content is not None:
            item.metadata_props.add(key=name, value=content)
    path = tmp_path / "rank_0.onnx"
    onnx.save(item, path)
    with pytest.raises(ShardError, match=words) as caught:
        executor.load(path, communicator=FakeCommunicator(None, 0, 4, 1.0), threads=1)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 600


def test_files_of_two_slicings(tmp_path: Path) -> None:
    mesh = Mesh.of(pipeline=2)
    paths = save_mesh(mesh, tmp_path)
    onnx.save(stage_model(mesh, 1, micro_batches=4), paths[1])

    def work(world: FakeCommunicator) -> None:
        with pytest.raises(ShardError, match="come from different slicings"):
            executor.load(paths[world.rank], communicator=world, threads=1)

    on_ranks(2, work)


def test_peers_that_are_no_stages(tmp_path: Path) -> None:
    mesh = Mesh.of(pipeline=2, tensor=2)
    item = stage_model(mesh, 0)
    send = next(node for node in item.graph.node if node.op_type == "Send")
    peer = next(attribute for attribute in send.attribute if attribute.name == "peer")
    for number, words in ((2, "has peer 2, but this group's stages are 0..1"), (0, "has this stage itself")):
        peer.i = number
        onnx.save(item, tmp_path / "rank_0.onnx")
        with pytest.raises(ModelError, match=words):
            executor.load(
                tmp_path / "rank_0.onnx",
                communicator=FakeCommunicator(None, 0, 4, 1.0),  # type: ignore[arg-type]
                threads=1,
            )
