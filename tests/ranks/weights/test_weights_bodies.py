"""Weights that are read on a GPU and in host memory, in the bodies of If, Loop and Scan as outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from ranks.devices.providers import CPU
from ranks.errors import ModelError
from ranks.sessions.session import SessionConfig
from ranks.weights.device import bodies, copies, places
from ranks.weights.device.cuda_ipc import ALIGNMENT
from ranks.weights.device.device_model import export_device_weights
from ranks.weights.device.places import Place
from sharding.onnx_files.external import place_of, put_place
from sharding.onnx_files.walk import graphs_in, nodes_in
from tests.ranks import stand_in
from tests.ranks.body_models import beam, models
from tests.ranks.fake_cuda import FakeDriver
from tests.ranks.rank_models import model, node, value
from tests.sharding import graphs

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
    """Wherever it is read, and whichever reader ONNX Runtime comes to first."""
    owner, attached, refused = shared
    found, case = owner[name], models()[name]
    assert found["right"] and attached[name]
    assert found["bytes"] == max(case.there, ALIGNMENT), "the block has what the GPU reads, and nothing else"
    assert not refused, "ONNX Runtime has made another copy"
    assert found["files"] == ["complete.json", "graph.onnx", "model.txt", "weights.data"]
    (said,) = found["said"]
    total = case.there + case.copied * (not case.both)  # in these models all or none of what is copied
    assert re.fullmatch(
        rf"{case.apart} of the {case.weights} weights of .*/{name}\.onnx on the GPU, {case.copied} of "
        rf"{total} bytes, are not shared, but loaded by each process: ONNX Runtime reads them in host memory "
        rf"\({case.readers}\)\. "
        + (rf"The copies on the GPU of {case.both} of them are shared\. " if case.both else "")
        + r"To share all, share the model on the CPU\.",
        said,
    )


def far_away(graph: onnx.GraphProto) -> None:
    """Large weights lie in a file, as in what ONNX Runtime writes."""
    for inner in (graph, *_bodies(graph)):
        for tensor in inner.initializer:
            tensor.data_location = TensorProto.EXTERNAL


def near_again(graph: onnx.GraphProto) -> None:
    for inner in (graph, *_bodies(graph)):
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
    plain = graphs.session(made, optimized=False)
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
    assert not [tensor.name for body in _bodies(made.graph) for tensor in body.initializer]
    near_again(made.graph)
    assert answers(made) == wanted
    assert parted(made, outside, "Add")
    assert answers(made) == wanted
    names = [tensor.name for tensor in made.graph.initializer]
    del made.metadata_props[:]
    assert not parted(made, names, "Add"), "again"


def test_bodies_say_of_which_types_weights_of_the_graph_are() -> None:
    """ONNX Runtime 1.23 takes what a BeamSearch reads from outside in no other way."""
    made = odd()
    far_away(made.graph)
    bodies.put_outside(made.graph)
    bodies.declare(made.graph)
    bodies.declare(made.graph)
    outside = {tensor.name for tensor in made.graph.initializer}
    for body in _bodies(made.graph):
        read = {name for one in body.node for name in one.input} & outside
        assert sorted(value.name for value in body.value_info) == sorted(read)
        for one in body.value_info:
            kind = one.type.tensor_type
            assert (kind.elem_type, [dim.dim_value for dim in kind.shape.dim]) == (TensorProto.FLOAT, [3])
    near_again(made.graph)
    assert answers(made) == answers(odd())


def _bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return list(graphs_in(graph))[1:]


def parted(made: onnx.ModelProto, names: list[str], *kinds: str) -> bool:
    """Whether weights get second names where nodes of these kinds read in host memory."""
    before = len(made.graph.initializer)
    found = [Place.HOST if read.kind in kinds else Place.DEVICE for read in bodies.reads(made.graph, names)]
    places.put_apart(made, names, found, np.empty(0, np.uint8))
    told = places.elsewhere(made)
    for name, one in told.items():
        read_by = {read.kind for read in bodies.reads(made.graph, [name])}
        assert read_by == set(one.readers) <= set(kinds) and one.bytes == 12
    rest = {
        read.kind for read in bodies.reads(made.graph, {t.name for t in made.graph.initializer} - set(told))
    }
    assert not rest & set(kinds)
    return len(made.graph.initializer) > before


def test_a_name_that_means_something_else_in_a_body_stays_there() -> None:
    made = odd()
    assert parted(made, ["w"], "Mul") is False, "the other reader is in a body that has its own"
    assert answers(made) == answers(odd())


def test_what_one_place_reads_keeps_its_name() -> None:
    made, everything = odd(), {one.op_type for one in nodes_in(odd().graph)}
    before = made.graph.SerializeToString()
    assert not parted(made, ["w", "w_1"])
    del made.metadata_props[:]
    assert not parted(made, ["w", "w_1"], *everything)
    assert made.graph.SerializeToString() == before


def test_names_that_are_known_outside_stay() -> None:
    """Those of inputs, whose readers then count as one, and of outputs."""
    nodes = [node("Add", ["x", "w"], ["a"]), node("Mul", ["a", "w"], ["b"]), node("Sub", ["b", "v"], ["y"])]
    for kinds in (("an output of the model",), ("Add",), ("Mul", "an output of the model")):
        made = model(nodes, [value("x", [3]), value("v", [3])], ["y", "w"])
        made.graph.initializer.extend(held(w=2, v=3))
        wanted = ["an input of the model", "an output of the model", "Add", "Mul"]
        assert [read.kind for read in bodies.reads(made.graph, ["v", "w"])] == wanted
        x = {"x": np.arange(3, dtype=np.float32)}
        plain = [ort.InferenceSession(made.SerializeToString(), providers=[CPU]).run(None, x)]
        assert parted(made, ["v", "w"], *kinds)
        assert [one.name for one in made.graph.output] == ["y", "w"]
        plain.append(ort.InferenceSession(made.SerializeToString(), providers=[CPU]).run(None, x))
        assert all(np.array_equal(before, after) for before, after in zip(*plain, strict=True))


def chain(*kinds: str) -> tuple[onnx.ModelProto, np.ndarray[Any, Any]]:
    """A node of each kind, each of which reads a weight of the file; and the file."""
    names = ["x", *(f"v{index}" for index in range(len(kinds)))]
    nodes = [node(kind, [names[i], f"w{i}"], [names[i + 1]]) for i, kind in enumerate(kinds)]
    made = model(nodes, [value("x", [3])], [names[-1]])
    made.graph.initializer.extend(held(**{f"w{index}": index for index in range(len(kinds))}))
    for index, tensor in enumerate(made.graph.initializer):
        put_place(tensor, "weights.data", 12 * index, 12)
    return made, np.repeat(np.arange(len(kinds), dtype=np.float32), 3).view(np.uint8)


class Runtime:
    """Says, as ONNX Runtime does, of the first weight alone that it is not where it is wanted. ``places``: by
    node, as `Place` has them."""

    def __init__(self, *places: str) -> None:
        self.places, self.tries = places, 0

    def __call__(self, text: bytes, values: Any) -> None:
        self.tries += 1
        made = onnx.load_from_string(text)
        held = {tensor.name: place_of(tensor) for tensor in made.graph.initializer}
        for one, wanted in zip(made.graph.node, self.places, strict=True):
            name = one.input[1]
            if name in values:
                found = {2: "device", 1: "host"}[values[name]._get_c_value().__dlpack_device__()[0]]
            else:
                found = "file" if held[name].location else "graph"
            if found == wanted:
                continue
            raise ModelError(f"ONNX Runtime refuses the model: Deserialize tensor {name} failed.")


@pytest.mark.parametrize(
    ("kinds", "wanted", "tries"),
    [
        ("Add Mul", "device device", 1),
        ("Add Mul Add Add", "host device host host", 2),  # what holds of one is believed of others like it
        ("Add Add Add", "host device host", 3),
        ("Add Add Mul", "device host host", 4),
        ("Add Mul Add", "file device device", 4),
        ("Add Mul Add", "graph device host", 4),
    ],
)
def test_places_are_found_by_what_is_missed(kinds: str, wanted: str, tries: int) -> None:
    made, data = chain(*kinds.split())
    runtime = Runtime(*wanted.split())
    before = made.SerializeToString()
    names = [tensor.name for tensor in made.graph.initializer]
    found = places.find(made, names, runtime, (data.ctypes.data, (2, 0)), data)
    assert [place.value for place in found] == wanted.split()
    assert runtime.tries == tries
    assert made.SerializeToString() == before


def test_an_error_that_has_nothing_to_do_with_places_is_raised() -> None:
    made, data = chain("Add")
    tries = []

    def refuse(words: str) -> Any:
        def open_(text: bytes, values: Any) -> None:
            tries.append(len(values))
            raise ModelError(words)

        return open_

    with pytest.raises(ModelError, match="it is too new"):
        places.find(made, ["w0"], refuse("it is too new"), (data.ctypes.data, (2, 0)), data)
    assert tries == [1]
    with pytest.raises(ModelError, match="no kernel for shardrun_read_0"):
        places.find(made, ["w0"], refuse("no kernel for shardrun_read_0"), (data.ctypes.data, (2, 0)), data)
    assert tries == [1, 1, 1, 0, 0]
    made.graph.initializer[0].dims[:] = [1 << 20]  # no list of lengths: it is not put into the graph
    with pytest.raises(ModelError, match="no kernel for shardrun_read_0"):
        places.find(made, ["w0"], refuse("no kernel for shardrun_read_0"), (data.ctypes.data, (2, 0)), data)
    assert tries == [1, 1, 1, 0, 0, 1, 1, 0]


def test_copies_of_weights_are_one_weight() -> None:
    made, data = chain("Add", "Mul", "Sub", "Add")
    data = data.copy()
    data[12:24] = data[24:36] = data[:12]  # w1 and w2 are copies of w0
    made.graph.output.append(onnx.ValueInfoProto(name="w2"))  # a name that is known outside
    copies.without_copied_weights(made.graph, ["w0", "w1", "w2", "w3"], data)
    assert [one.input[1] for one in made.graph.node] == ["w0", "w0", "w2", "w3"]
    assert [tensor.name for tensor in made.graph.initializer] == ["w0", "w2", "w3"]


def test_a_search_over_shared_weights(tmp_path: Path) -> None:
    """Those of its decoder lie outside of it, then."""
    made, there, mask = beam()
    path, ids = tmp_path / "search.onnx", np.arange(2 * 128, dtype=np.int32).reshape(2, 128) % 60 + 2
    onnx.save(made, path)
    config = SessionConfig(threads=1)
    weights = export_device_weights(path, config, tmp_path / "device", FakeDriver())
    found = weights.session(config, "the search").run(None, {"ids": ids})
    assert weights.bytes == there + mask
    (right,) = ort.InferenceSession(path, providers=[CPU]).run(None, {"ids": ids})
    np.testing.assert_array_equal(found[0], right)
    weights.close()
