"""Groups answer as ONNX Runtime does on the unsliced model: where a file declares what is not so, where one
symbol stands for two lengths, where an index is refused, and text in any form."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ranks
from launcher import start
from launcher.group.group import Group
from launcher.group.requests import PredictError
from sharding.demands.options import SliceOptions
from sharding.errors import ShardrunError
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import copied as shardrun
from tests.sharding import graphs

ROWS = 12
TEXT = """
g (int64[n, t] ids, float[n, 16] x, float[n, 16] z) => (float[a, b] y, float[c, d, f] e) {
  looked = Gather(table, ids)
  e = Tanh(looked)
  m = MatMul(x, up)
  r = Relu(m)
  k = MatMul(r, down)
  u = Add(k, z)
  s = Shape(u)
  to = Concat<axis = 0>(s, one)
  y = Reshape(u, to)
}
"""
WEIGHTS = {
    "table": graphs.array(ROWS, 7),
    "up": graphs.array(16, 32),
    "down": graphs.array(32, 16),
    "one": np.array([1]),
}
MESHES = [{"tensor": 2}, {"data": 2}, {"pipeline": 2}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``y`` has three axes, of which none is 1 but the last."""
    path = graphs.save(tmp_path_factory.mktemp("answers") / "model.onnx", TEXT, WEIGHTS)
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "length"]))
    for name in ("m", "u"):  # written for one row
        proto.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32]))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module", params=MESHES, ids=lambda mesh: next(iter(mesh)))
def group(request: pytest.FixtureRequest, model: Path) -> Iterator[Group]:
    options = SliceOptions(mesh=Mesh.of(**request.param))
    with start(model, ranks=2, launcher="local", options=options) as started:
        yield started


def _feeds(rows: tuple[int, int, int], tokens: int = 3, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(-ROWS, ROWS, (rows[0], tokens)),
        "x": graphs.array(rows[1], 16, seed=seed),
        "z": graphs.array(rows[2], 16, seed=seed + 1),
    }


def _check(found: Any, model: Path, feeds: dict[str, Any]) -> None:
    expected = graphs.session(model).run(None, feeds)
    for value, right in zip((found["y"], found["e"]), expected, strict=True):
        assert value.shape == right.shape
        np.testing.assert_allclose(value, right, rtol=0, atol=1e-5 * np.abs(right).max(initial=1))


@pytest.mark.timeout(120)
def test_shapes_change_and_buffers_stay(group: Group, model: Path) -> None:
    """Each shape more than once: the second time its values lie in buffers that were kept."""
    for rows in (3, 3, 3, 1, 1, 5, 5, 3):
        feeds = _feeds((rows, rows, rows), tokens=rows + 1, seed=rows)
        _check(group.predict(feeds), model, feeds)


@pytest.mark.timeout(120)
def test_one_symbol_for_two_lengths(group: Group, model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "launcher.group"):
        for rows in ((2, 4, 4), (2, 4, 4), (4, 1, 3), (4, 1, 3), (3, 3, 3), (1, 5, 1)):
            feeds = _feeds(rows, seed=sum(rows))
            _check(group.predict(feeds), model, feeds)
    notes = [record.getMessage() for record in caplog.records if "'n' has length" in record.getMessage()]
    assert len(notes) == 1 and "has length 4 in input 'x', but 2 in input 'ids'" in notes[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [ROWS, -ROWS - 1, 10**6, -(2**40)])
def test_an_index_is_refused_by_all(group: Group, model: Path, number: int) -> None:
    """The group answers the next request. In the data mesh only one rank has the row that is wrong."""
    feeds = _feeds((4, 4, 4), seed=1)
    wrong = {**feeds, "ids": feeds["ids"].copy()}
    wrong["ids"][3, 1] = number
    for _ in range(3):  # shapes unknown, then known
        with pytest.raises(PredictError, match=rf"idx={number} must be within.*\[-{ROWS},{ROWS - 1}\]"):
            group.predict(wrong)
        _check(group.predict(feeds), model, feeds)


@pytest.mark.timeout(120)
def test_one_process_and_attached(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(one: Any) -> None:
        for rows in (3, 3, 1, 5, 3):
            feeds = _feeds((rows, rows, rows), seed=rows)
            found = [output.get_data_to_numpy() for output in one.predict(list(feeds.values()))]
            _check(dict(zip(("y", "e"), found, strict=True)), model, feeds)

    plain = ranks.Model()
    plain.build_from_file(str(model), ranks.ModelType.ONNX, ranks.Context())
    check(plain)
    with ranks.share_weights(str(model)) as owner:
        check(ranks.attach(owner.handle, str(model)))


STRINGS = {
    "str": np.array(["ab", "", "naïve"]),
    "objects": np.array(["ab", "", "naïve"], object),
    "bytes": np.array([b"ab", b"", "naïve".encode()]),
    "objects of bytes": np.array([b"ab", "", "naïve".encode()], object),
}
if hasattr(np.dtypes, "StringDType"):  # numpy 2
    STRINGS["numpy's own"] = np.array(["ab", "", "naïve"], np.dtypes.StringDType())


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "g (string[n] s, float[n, 4] x) => (string[n] t, float[n, 4] y) { t = Identity(s) y = Relu(x) }"
    return graphs.save(tmp_path_factory.mktemp("text") / "model.onnx", text, {})


@pytest.mark.timeout(120)
def test_text_in_any_form(text_model: Path, tmp_path: Path) -> None:
    x = graphs.array(3, 4)
    one = ranks.Model()
    one.build_from_file(str(text_model), ranks.ModelType.ONNX, ranks.Context())
    runner = ranks.ModelParallelRunner()
    runner.build_from_file(str(text_model))
    bad = np.array([b"ab", b"\xff\xfe", b""])
    with start(text_model, ranks=2, launcher="local", allow_replicated=True) as started:
        ways = [
            lambda s: started.predict({"s": s, "x": x})["t"],
            lambda s: one.predict([s, x])[0].get_data_to_numpy(),
            lambda s: runner.predict([s, x])[0].get_data_to_numpy(),
        ]
        for way in ways:
            for given in STRINGS.values():
                assert way(given).tolist() == ["ab", "", "naïve"]
            with pytest.raises(ShardrunError, match="element 1 of the array is bytes that are no UTF-8"):
                way(bad)
            with pytest.raises(ShardrunError, match="takes text, but element 2 of the array is int"):
                way(np.array(["a", "b", 3], object))
    np.savez(tmp_path / "in.npz", s=STRINGS["bytes"], x=x)
    np.savez(tmp_path / "bad.npz", s=bad, x=x)
    options = ["--ranks", "2", "--allow-replicated", "--verify", "--output", str(tmp_path / "out.npz")]
    done = shardrun("run", str(text_model), *options, "--input", str(tmp_path / "in.npz"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npz")["t"].tolist() == ["ab", "", "naïve"]
    done = shardrun("run", str(text_model), *options, "--input", str(tmp_path / "bad.npz"), cwd=tmp_path)
    assert done.returncode == 2 and "input 's' takes text, but element 1" in done.stderr
    assert "Traceback" not in done.stderr
