"""Collectives inside a network of MindIR: what each rank gives, where numpy exchanges the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

Array = np.ndarray[Any, Any]


def imported(folder: Path, kind: str, shape: tuple[int, ...], **settings: Any) -> onnx.ModelProto:
    file = File()
    graph = file.graph("main", ("x", "float32", shape))
    graph.gives(graph.prim(kind, graph["x"], **settings))
    return import_model(file.save(folder / "rank.mindir"))


def refusal(folder: Path, kind: str, shape: tuple[int, ...] = (4, 6), **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        imported(folder, kind, shape, **settings)
    return str(caught.value)


def sides(model: onnx.ModelProto, collective: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model up to its collective, and from there on."""
    (place,) = [at for at, node in enumerate(model.graph.node) if node.op_type == collective]
    node = model.graph.node[place]
    before, after = onnx.ModelProto(), onnx.ModelProto()
    for side, nodes in ((before, model.graph.node[:place]), (after, model.graph.node[place + 1 :])):
        side.CopyFrom(model)
        del side.graph.node[:]
        side.graph.node.extend(nodes)
        del side.graph.value_info[:]
    del before.graph.output[:]
    before.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.input[0]))
    del after.graph.input[:]
    kind = onnx.TensorProto.FLOAT
    after.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], kind, None))
    return before, after


def run(model: onnx.ModelProto, array: Array) -> Array:
    """A side with one input and one output; one without nodes passes on what it is given."""
    if not model.graph.node:
        return array
    session = graphs.session(model)
    (name,) = (item.name for item in session.get_inputs())
    (found,) = session.run(None, {name: array})
    return np.asarray(found)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("split", "concat"), [(0, 0), (0, 1), (1, 0), (1, 1), (-1, 0)])
def test_parts_go_to_the_ranks_and_come_from_them(size: int, split: int, concat: int, tmp_path: Path) -> None:
    settings = {"split_count": size, "split_dim": split, "concat_dim": concat}
    model = imported(tmp_path, "AlltoAll", (6, 12), **settings)
    before, after = sides(model, "AllToAll")
    (node,) = [item for item in model.graph.node if item.op_type == "AllToAll"]
    assert node.attribute[0].i == size and node.domain == "com.microsoft"
    held = [graphs.array(6, 12, seed=rank) for rank in range(size)]
    sent = [np.split(run(before, item), size) for item in held]
    for rank in range(size):
        got = np.concatenate([parts[rank] for parts in sent])
        wanted = np.concatenate([np.split(item, size, split)[rank] for item in held], concat)
        np.testing.assert_array_equal(run(after, got), wanted)


@pytest.mark.parametrize(("op", "fold"), [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_what_all_ranks_have_becomes_one(op: str, fold: Any, tmp_path: Path) -> None:
    before, after = sides(imported(tmp_path, "AllReduce", (2, 3), op=op), "AllGather")
    held = [graphs.array(2, 3, seed=rank) for rank in range(3)]
    got = np.concatenate([run(before, item) for item in held])
    np.testing.assert_allclose(run(after, got), fold(np.stack(held), 0), rtol=1e-6)


def test_what_no_group_can_do(tmp_path: Path) -> None:
    for size in (0, -1, 10**6, True, "two"):
        assert "its group has " in refusal(tmp_path, "AllGather", rank_size=size)
    assert "op 'mean'; expected one of max, min, prod, sum" in refusal(tmp_path, "AllReduce", op="mean")
    assert "op 1; expected one of" in refusal(tmp_path, "AllReduce", op=1)
    assert "it joins on axis 0 a tensor that has no axes" in refusal(tmp_path, "AllGather", (), rank_size=2)
    for root in (-1, True, "first"):
        assert "expected a rank" in refusal(tmp_path, "Broadcast", root_rank=root)
    for shape in ((5, 6), ()):
        why = refusal(tmp_path, "ReduceScatter", shape, rank_size=2, op="sum")
        assert "axis 0 of its input cannot be cut into 2 parts" in why
    for settings in ({"split_dim": 0}, {"concat_dim": 0}, {"split_dim": "a", "concat_dim": 0}):
        why = refusal(tmp_path, "AlltoAll", split_count=2, **settings)
        assert "split_dim and concat_dim are " in why and "expected numbers" in why


def test_a_gathered_axis_is_as_long_as_all(tmp_path: Path) -> None:
    model = imported(tmp_path, "AllGather", (4, 6), rank_size=3)
    lengths = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    assert lengths == [12, 6]
