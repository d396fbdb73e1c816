"""Every model of the zoo, on 2, 3 and 4 ranks, each under both launchers, against plain ONNX Runtime."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from launcher import start
from sharding import slice_model
from sharding.planning import plan as planning
from sharding.reading.read import Source, read_model
from sharding.slices.manifest import Manifest, read_manifest
from tests import models
from tests.sharding import graphs

SEVEN = ("minilm", "bert_base", "gpt2", "resnet18", "mobilenet_v2", "ppocr_rec", "mlp")
# The head of 50257 words is one weight more than the seven have, and a prime number short of any even split.
GRID = [(name, ranks) for name in SEVEN for ranks in (2, 3, 4)] + [("gpt2_lm", 2)]
UNDER_MPIRUN = {name: 2 + number % 3 for number, name in enumerate(SEVEN)}
"""How many ranks mpirun starts for each, and the other launcher does not: what they run is the same."""
TWO_A_LAYER = {("bert_base", 2), ("gpt2", 2)}
TOLERANCE = 1e-4


class Sliced(NamedTuple):
    model: models.Model
    ranks: int
    folder: Path
    manifest: Manifest


@functools.lru_cache(maxsize=1)
def _read(path: Path) -> Source:
    """A plan leaves what was read as it was (`tests/sharding/search/test_plans.py` tests it)."""
    return read_model(path)


@pytest.fixture(scope="module", params=GRID, ids=lambda case: f"{case[0]}-{case[1]}")
def sliced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sliced]:
    """A model sliced once for all tests of that model and number of ranks; removed after them."""
    name, ranks = request.param
    model = models.get(name)
    folder = tmp_path_factory.mktemp("slices") / f"{name}-{ranks}"
    with mock.patch.object(planning, "read_model", lambda path, _: _read(path)):
        slice_model(model.path, ranks, folder)
    yield Sliced(model, ranks, folder, read_manifest(folder))
    shutil.rmtree(folder)


@functools.lru_cache(maxsize=2)
def reference(name: str) -> list[dict[str, NDArray[Any]]]:
    """The outputs of plain ONNX Runtime for each of the example inputs."""
    model = models.get(name)
    session = graphs.session(model.path)
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in model.feeds]


def test_sharded_equals_unsharded(sliced: Sliced) -> None:
    check(sliced, "mpirun" if UNDER_MPIRUN.get(sliced.model.name) == sliced.ranks else "local")


def check(sliced: Sliced, launcher: str) -> None:
    """Run the ranks and compare each output for each of the example inputs."""
    with start(sliced.folder, ranks=sliced.ranks, launcher=launcher, threads=1) as group:
        for feeds, expected in zip(sliced.model.feeds, reference(sliced.model.name), strict=True):
            outputs = group.predict(feeds)
            assert list(outputs) == list(expected)
            for name, want in expected.items():
                got = outputs[name]
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                error = np.max(np.abs(got.astype(np.float64) - want)) / np.max(np.abs(want))
                assert error <= TOLERANCE, f"{name} of {sliced.model.name}: relative error {error:.2e}"


def test_every_rank_holds_its_share(sliced: Sliced) -> None:
    """What the manifest says a rank holds is what its file has room for, and something is split."""
    manifest = sliced.manifest
    split = {name for name, weight in manifest.weights.items() if weight.placement.startswith("split")}
    assert split and manifest.collectives
    whole = sum(weight.bytes for name, weight in manifest.weights.items() if name not in split)
    total = sum(manifest.weights[name].bytes for name in split)
    for rank in manifest.ranks:
        assert rank.weight_bytes - whole <= 0.52 * total * 2 / sliced.ranks
        assert sum(file.bytes for file in rank.files) >= rank.weight_bytes
    if (sliced.model.name, sliced.ranks) in TWO_A_LAYER:
        check_two_sums_a_layer(manifest)


def check_two_sums_a_layer(manifest: Manifest) -> None:
    """Megatron-LM's plan: in each of 12 layers one AllReduce after attention, one after the MLP."""
    operators = [collective.op for collective in manifest.collectives]
    assert operators.count("AllReduce") == 24
    source = sum(weight.bytes for weight in manifest.weights.values())
    for rank in manifest.ranks:
        assert rank.weight_bytes <= 0.52 * source, "embeddings must be split too"
