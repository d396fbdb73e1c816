"""Every architecture sliced and run on two ranks, some on four: outputs, memory and number of collectives."""

import functools
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.planning import plan as planning
from sharding.reading.read import Source, read_model
from tests.architectures import table, zoo
from tests.architectures.measure import Measured, measure, processes_error
from tests.models import BUILD_SECONDS, Feeds
from tests.sharding import lockstep

MORE_RANKS = dict.fromkeys(
    (
        *("bert", "gpt2", "llama", "llama_opset23", "llama_cache", "mixtral", "unet", "bert_4bit"),
        *("llama_4bit", "albert", "falcon", "gpt_oss"),
    ),
    4,
)
"""Besides two; then the first of the two example inputs is run."""
STAGES = {"bert": 2, "gpt2": 3, "resnet50": 3, "unet": 2}
PARTS_OF_A_BATCH = {"gpt2": 2, "resnet50": 2, "unet": 2}
EXPECTED = {
    (name, result.ranks): result
    for name, slicings in table.read().items()
    for result in slicings
    if result.strategy == "tensor"
}
"""What docs/coverage.md says, which `scripts/coverage.py` writes: a plan that needs more is worse."""
EMPTY = {
    "bert": ("batch", "sequence"),
    "deberta": ("batch", "sequence"),
    "falcon": ("batch", "sequence"),
    "mpt": ("batch", "sequence"),
    "t5_encoder": ("batch", "sequence"),
    "albert": ("batch", "sequence"),
    "llama_cache": ("batch", "sequence", "past_length"),
    "llama": ("batch",),
    "qwen2": ("batch", "sequence"),
    "gpt_oss": ("batch", "sequence"),
    "t5_decoder": ("batch", "sequence", "source_length"),
    "mixtral": ("batch", "sequence"),
    "clip": ("images",),
    "vit": ("batch",),
}
"""Lengths that may be 0: ONNX Runtime gives what the model declares."""
PRINTED = 0.0006
"""A share in the page is rounded."""


# The first one builds all of them, or waits until another process has.
pytestmark = pytest.mark.timeout(3 * BUILD_SECONDS)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    zoo.build(zoo.NAMES)


def test_every_architecture_is_in_the_page() -> None:
    assert set(EXPECTED) == {(name, ranks) for name in zoo.NAMES for ranks in (2, 4, 8)}


def test_rows_of_the_page_are_read_as_they_were_written() -> None:
    lines = table.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [table.row(name, result) for name, slicings in table.read().items() for result in slicings]
    assert rows == lines[lines.index(table.HEAD[0]) + 2 :][: len(rows)]


def _cases() -> Iterator[tuple[str, int, str]]:
    """Those of one architecture follow each other: it is read once for them."""
    for name in zoo.NAMES:
        yield name, 2, "tensor"
        for strategy, others in (("tensor", MORE_RANKS), ("pipeline", STAGES), ("data", PARTS_OF_A_BATCH)):
            if name in others:
                yield name, others[name], strategy


@functools.lru_cache(maxsize=1)
def _read(path: Path) -> Source:
    """A plan leaves what was read as it was (`tests/sharding/search/test_plans.py` tests it)."""
    return read_model(path)


@pytest.mark.parametrize(("name", "ranks", "strategy"), list(_cases()))
def test_slices_give_the_unsliced_outputs(
    name: str, ranks: int, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "read_model", lambda path, _: _read(path))
    examples = 1 if strategy == "tensor" and ranks != 2 else 2
    found = measure(zoo.get(name), ranks, tmp_path, strategy, examples=examples)
    assert found.error <= zoo.tolerance(name)
    if strategy == "tensor":
        _check_tensors(name, found)
    elif strategy == "pipeline":
        assert set(found.counts) == {"Send"}
    else:
        assert found.total == 0
    for symbol in EMPTY.get(name, ()) if (ranks, strategy) == (2, "tensor") else ():
        lockstep.assert_same(tmp_path / "slices", zoo.get(name).path, _empty(zoo.get(name), symbol))


def _check_tensors(name: str, found: Measured) -> None:
    expected = EXPECTED[name, found.ranks]
    assert found.rank_share <= max(1 / found.ranks + zoo.WEIGHT_SLACK, expected.rank_share + PRINTED)
    assert found.total <= expected.total, dict(found.counts)


def _empty(model: zoo.Model, symbol: str) -> Feeds:
    """The first example inputs, of which no axis of this length is left."""
    graph = onnx.load(model.path, load_external_data=False).graph
    axes = {item.name: [axis.dim_param for axis in item.type.tensor_type.shape.dim] for item in graph.input}
    feeds = {
        name: array[tuple(slice(0 if axis == symbol else None) for axis in axes[name])]
        for name, array in model.feeds[0].items()
    }
    assert any(array.size == 0 for array in feeds.values())
    return feeds


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "strategy"),
    [("llama_cache", "tensor"), ("llama_4bit", "tensor"), ("lstm", "tensor"), ("unet", "pipeline")],
)
def test_processes_give_the_unsliced_outputs(name: str, strategy: str, tmp_path: Path) -> None:
    sharding.slice_model(zoo.get(name).path, 2, tmp_path / "slices", options=SliceOptions(strategy=strategy))
    assert processes_error(zoo.get(name), tmp_path / "slices") <= zoo.tolerance(name)
