"""Weights on a GPU that the bodies of If, Loop and Scan read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from ranks.sessions.assigned import name_all
from ranks.weights.device import bodies
from tests.ranks import stand_in
from tests.ranks.body_models import BYTES, models
from tests.ranks.rank_models import model, node, value

NAMES = tuple(models())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What owner and another process find, for all models."""
    folder = tmp_path_factory.mktemp("bodies")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks.body_models", "owner", str(folder)],
        env=stand_in.environment(SHARDRUN_CACHE=str(folder / "cache")),
        cwd=stand_in.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_what_the_gpu_reads_is_shared_and_the_rest_told_of(shared: Any, name: str) -> None:
    """Wherever it is read, and whichever branch ONNX Runtime comes to first."""
    owner, attached, refused = shared
    found, count = owner[name], models()[name][1]
    assert found["right"] and attached[name]
    assert found["bytes"] == count * BYTES, "the GPU's block has what the GPU reads, and nothing else"
    assert not refused, "ONNX Runtime has made another copy"
    (said,) = found["said"]
    assert re.match(
        rf"1 of the {count + 1} weights of .*/{name}\.onnx on the GPU, {BYTES} of {(count + 1) * BYTES} "
        r"bytes, are not shared: ONNX Runtime runs nodes that read them on the CPU \(CDist\), so each ",
        said,
    )


def far_away(graph: onnx.GraphProto) -> None:
    """Large weights lie in a file, as in what ONNX Runtime writes."""
    for inner in (graph, *bodies._bodies(graph)):
        for tensor in inner.initializer:
            tensor.data_location = TensorProto.EXTERNAL


def near_again(graph: onnx.GraphProto) -> None:
    for inner in (graph, *bodies._bodies(graph)):
        for tensor in inner.initializer:
            tensor.data_location = TensorProto.DEFAULT


def held(**weights: float) -> list[onnx.TensorProto]:
    """Weights of three equal numbers each."""
    return [
        onnx.numpy_helper.from_array(np.full(3, each, np.float32), name) for name, each in weights.items()
    ]


def odd() -> onnx.ModelProto:
    """Names that mean one thing outside and others in bodies, which bodies of these read, too; a weight
    that is given back as it is; names that are taken."""
    graph = onnx.helper.make_graph
    out = lambda name: [value(name, None)]  # noqa: E731
    deep = graph([node("Add", ["a", "w"], ["s"]), node("Add", ["s", "t"], ["r"])], "deep", [], out("r"))
    deep.initializer.extend(held(t=7))
    beside = graph([node("Add", ["a", "t"], ["q"])], "beside", [], out("q"))
    beside.initializer.extend(held(t=11))
    then = graph(
        [node("If", ["c"], ["k"], then_branch=deep, else_branch=beside), node("Mul", ["k", "w"], ["p"])],
        "then", [], out("p"),
    )  # fmt: skip
    then.initializer.extend(held(w=3))
    other = graph([], "other", [], out("t"))
    other.initializer.extend(held(t=5))
    nodes = [node("Mul", ["x", "w"], ["a"]), node("If", ["d"], ["y"], then_branch=then, else_branch=other)]
    flags = [value(name, [], TensorProto.BOOL) for name in "cd"]
    made = model(nodes, [value("x", [3]), *flags], ["y"], {"w_1": np.full(3, 13, np.float32)})
    made.graph.node.append(node("Add", ["y", "w_1"], ["z"]))
    made.graph.output.append(onnx.ValueInfoProto(name="z"))
    made.graph.initializer.extend(held(w=2))
    return made


def answers(made: onnx.ModelProto) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.arange(3, dtype=np.float32)
    feeds = [{"x": x, "c": np.array(c), "d": np.array(d)} for c in (True, False) for d in (True, False)]
    return [found.tolist() for feed in feeds for found in plain.run(None, feed)]


def test_names_mean_what_they_meant() -> None:
    made = odd()
    wanted = answers(made)
    far_away(made.graph)
    bodies.put_outside(made.graph)
    outside = [tensor.name for tensor in made.graph.initializer]
    assert len(set(outside)) == len(outside) == 6
    assert not [tensor.name for body in bodies._bodies(made.graph) for tensor in body.initializer]
    near_again(made.graph)
    assert answers(made) == wanted
    name_all(made.graph)
    readers = [one.name for one in bodies.nodes_in(made.graph) if one.op_type == "Add"]
    assert bodies.put_apart(made.graph, outside, readers)
    assert answers(made) == wanted
    assert not bodies.put_apart(made.graph, [t.name for t in made.graph.initializer], readers), "again"


def test_a_name_that_means_something_else_in_a_body_stays_there() -> None:
    made = odd()
    name_all(made.graph)
    readers = [one.name for one in bodies.nodes_in(made.graph) if one.op_type == "Add"]
    assert bodies.put_apart(made.graph, ["w"], readers)
    assert answers(made) == answers(odd())


def test_what_one_device_reads_stays_as_it_is() -> None:
    made = odd()
    name_all(made.graph)
    before = made.SerializeToString()
    everything = [one.name for one in bodies.nodes_in(made.graph)]
    assert not bodies.put_apart(made.graph, ["w", "w_1"], [])
    assert not bodies.put_apart(made.graph, ["w", "w_1"], everything)
    assert made.SerializeToString() == before
