"""Graphs of exported models that are kept: all of them, as the builders stand; and what is drawn anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import kept, models
from tests.architectures import zoo
from tests.architectures.build import EXPORTED
from tests.architectures.exporting import save_feeds
from tests.models import ROOT
from tests.sharding import graphs

AGAIN = "run: python scripts/keep_graphs.py"


def test_every_export_is_kept_as_its_builder_stands() -> None:
    assert kept.names(zoo.ARCHIVE) == {name: zoo.recipe(name) for name in EXPORTED}, AGAIN
    assert kept.names(models.ARCHIVE) == {name: models.recipe(name) for name in models.KEPT}, AGAIN


@pytest.mark.parametrize("archive", [zoo.ARCHIVE, models.ARCHIVE], ids=lambda path: path.stem)
def test_they_are_of_the_versions_that_are_installed_by_run_sh(archive: Path) -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    found = kept.versions(archive)
    assert list(found) == sorted(kept.PACKAGES)
    for package, version in found.items():
        assert any(line.startswith(f"{package}=={version}") for line in locked), AGAIN


@pytest.mark.parametrize("archive", [zoo.ARCHIVE, models.ARCHIVE], ids=lambda path: path.stem)
def test_they_hold_no_path_of_who_exported(archive: Path) -> None:
    for name in kept.names(archive):
        graph, _ = kept.read(archive, name)
        assert b"site-packages" not in graph and b".py" not in graph


@pytest.mark.timeout(models.BUILD_SECONDS)
def test_an_export_gives_what_is_kept() -> None:
    """One of torch alone; of transformers, the main job's is compared (`tests/end_to_end/test_main_job.py`).
    The script without names checks all of them."""
    if kept.versions(zoo.ARCHIVE) != kept.installed():
        pytest.skip(f"the exporters here are not those of requirements.lock: {kept.installed()}")
    command = [sys.executable, "scripts/keep_graphs.py", "--check", "architectures/lstm"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def example(path: Path, weights: dict[str, graphs.Array]) -> Path:
    """A model that adds all of them to its input."""
    names = ", ".join(["x", *weights])
    made = graphs.model(f"g (float[n] x) => (float[] y) {{ y = Sum({names}) }}", weights)
    made.graph.node[0].doc_string = "exporter.py"
    made.graph.node[0].metadata_props.add(key="stack", value="exporter.py")
    onnx.save(made, path)
    return path


def test_what_is_random_is_drawn_anew_and_the_rest_stays(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {
        "wide": random.normal(3, 0.5, (40, 50)).astype(np.float32),
        "variance": random.uniform(0.1, 0.2, 500).astype(np.float32),
        "few": random.normal(size=7).astype(np.float32),
        "padded": np.concatenate([np.zeros(4096), random.normal(size=5000)]).astype(np.float32),
        "zeros": np.zeros(500, np.float32),
        "whole": random.integers(0, 2**60, 500),
    }
    folder = tmp_path / "first"
    folder.mkdir()
    path = example(folder / "m.onnx", weights)
    feeds = {"x": random.normal(size=300).astype(np.float32), "ids": random.integers(0, 99, (2, 3))}
    save_feeds(path, feeds)
    archive = tmp_path / "kept.zip"
    kept.keep(archive, [("m", "recipe", kept.strip(path))])
    assert kept.names(archive) == {"m": "recipe"}
    assert kept.holds(archive, "m", "recipe") and not kept.holds(archive, "m", "another")
    assert archive.stat().st_size < weights["wide"].nbytes
    (tmp_path / "second").mkdir()
    kept.restore(archive, "m", tmp_path / "second" / "m.onnx")

    found = onnx.load(tmp_path / "second" / "m.onnx")
    assert "exporter.py" not in str(found)
    held = {item.name: numpy_helper.to_array(item) for item in found.graph.initializer}
    assert {name: value.shape for name, value in held.items()} == {k: v.shape for k, v in weights.items()}
    for name in ("few", "zeros", "whole"):
        np.testing.assert_array_equal(held[name], weights[name])
    for name in ("wide", "variance", "padded"):
        assert not np.array_equal(held[name], weights[name])
        assert abs(held[name].mean() - weights[name].mean()) < 0.1 * weights[name].std()
        assert 0.8 < held[name].std() / weights[name].std() < 1.2
        assert held[name].min() >= weights[name].min() and held[name].max() <= weights[name].max()
    again = dict(np.load(tmp_path / "second" / "feeds_0.npz"))
    np.testing.assert_array_equal(again["ids"], feeds["ids"])
    assert again["x"].shape == feeds["x"].shape and not np.array_equal(again["x"], feeds["x"])


def test_weights_of_a_package_are_read_from_there(tmp_path: Path) -> None:
    """Also where the exporter has turned them."""
    random = np.random.default_rng(2)
    given = {"w": random.normal(size=(30, 40)).astype(np.float32), "b": random.normal(size=99)}
    own = random.normal(size=500).astype(np.float32)
    path = example(tmp_path / "m.onnx", {"net_b": given["b"], "val_1": given["w"].T, "own": own})
    archive = tmp_path / "kept.zip"
    kept.keep(archive, [("m", "recipe", kept.strip(path, given))])
    (tmp_path / "restored").mkdir()
    kept.restore(archive, "m", tmp_path / "restored" / "m.onnx", {name: 2 * w for name, w in given.items()})
    found = onnx.load(tmp_path / "restored" / "m.onnx")
    held = {item.name: numpy_helper.to_array(item) for item in found.graph.initializer}
    np.testing.assert_array_equal(held["net_b"], 2 * given["b"])
    np.testing.assert_array_equal(held["val_1"], 2 * given["w"].T)
    assert held["net_b"].dtype == np.float64 and not np.array_equal(held["own"], own)


def test_no_two_weights_are_drawn_alike() -> None:
    """Slices of one weight in the place of another's would not show."""
    path = zoo.get("mpt").path
    values = [numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer]
    seen = [value.tobytes() for value in values if kept.is_random(value)]
    assert len(seen) > 10 and len(set(seen)) == len(seen)


def test_an_export_that_differs_is_noticed(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weight = random.normal(size=500).astype(np.float32)
    first = kept.strip(example(tmp_path / "a.onnx", {"w": weight}))
    assert kept.same(first, kept.strip(example(tmp_path / "b.onnx", {"w": weight})))
    for other in ({"v": weight}, {"w": weight * 2}, {"w": weight[:400]}, {"w": weight, "v": weight[:3]}):
        assert not kept.same(first, kept.strip(example(tmp_path / "c.onnx", other)))
