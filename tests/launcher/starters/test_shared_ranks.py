"""Ranks of one host hold packed weights that are alike once, without being told to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from launcher.group import group
from ranks.cache import weight_entries
from ranks.weights.shared import automatic
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh
from tests.sharding import graphs

WIDTH = 1024
LAYERS = 6
WEIGHTS = LAYERS * WIDTH * WIDTH * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MB of weights, all of which are packed."""
    random = np.random.default_rng(0)
    shape = (WIDTH, WIDTH)
    weights = {f"w{i}": (random.standard_normal(shape) / 32).astype(np.float32) for i in range(LAYERS)}
    names = ["x", *(f"y{index}" for index in range(LAYERS))]
    body = " ".join(f"{names[i + 1]} = MatMul({names[i]}, w{i})" for i in range(LAYERS))
    text = f"m (float[batch, {WIDTH}] x) => (float[batch, {WIDTH}] {names[-1]}) {{ {body} }}"
    return graphs.save(tmp_path_factory.mktemp("model") / "m.onnx", text, weights)


def private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Pss_Anon")


def run(model: Path, **environment: str) -> list[int]:
    """The private memory of two data-parallel ranks, whose result is checked."""
    options = SliceOptions(mesh=Mesh.of(data=2))
    x = np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)
    with group.start(model, ranks=2, options=options, environment=environment, timeout=60) as ranks:
        result = ranks.predict({"x": x})[ranks.outputs[0].name]
        memory = [private_bytes(stats.pid) for stats in ranks.stats]
    (plain,) = graphs.session(model).run(None, {"x": x})
    assert np.abs(result - plain).max() <= 1e-4 * np.abs(plain).max()
    return memory


def test_replicas_share_their_packed_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path))
    own = run(model, SHARDRUN_WEIGHTS="off")
    assert weight_entries.listing(tmp_path / "weights") == []
    run(model)  # prepares
    (entry,) = weight_entries.listing(tmp_path / "weights")
    assert entry.bytes > 2 * WEIGHTS - (1 << 20)
    shared = run(model)
    for mine, ours in zip(own, shared, strict=True):
        assert mine - ours > 0.9 * WEIGHTS, (own, shared)
    assert not list((tmp_path / "weights" / "work").iterdir())


def test_ranks_that_hold_different_weights_prepare_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path))
    with group.start(model, ranks=2, timeout=60) as ranks:
        assert ranks.stats[0].collectives > 0
    assert not (tmp_path / "weights").exists()
    with group.start(model, ranks=2, timeout=60, environment={"SHARDRUN_WEIGHTS": "on"}):
        pass
    assert weight_entries.listing(tmp_path / "weights")


def test_weights_that_are_read_as_they_are(model: Path) -> None:
    """Gather maps its table: that is one copy already."""
    from ranks.sessions.session import SessionConfig
    from ranks.weights.prepared.store import Store

    table = numpy_helper.from_array(np.zeros((1024, 1024), np.float32), "t")
    onnx.external_data_helper.set_external_data(table, "shared.data", 0, 1 << 22)
    config = SessionConfig(store=Store(Path("/nowhere")), shared_files=frozenset({"shared.data"}))
    for op, worth in (("Gather", False), ("MatMul", True)):
        graph = helper.make_graph([helper.make_node(op, ["t", "i"], ["y"])], "g", [], [], [table])
        assert (automatic.for_segment(config, helper.make_model(graph)).store is not None) is worth
