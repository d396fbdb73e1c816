"""Every architecture sliced and run on two ranks, some on four: outputs, memory and number of collectives."""

from pathlib import Path

import onnx
import pytest

import sharding
from sharding.demands.options import SliceOptions
from tests.architectures import table, zoo
from tests.architectures.measure import measure, processes_error
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


@pytest.mark.parametrize(("name", "ranks"), [(name, 2) for name in zoo.NAMES] + list(MORE_RANKS.items()))
def test_slices_give_the_unsliced_outputs(name: str, ranks: int, tmp_path: Path) -> None:
    found = measure(zoo.get(name), ranks, tmp_path, examples=2 if ranks == 2 else 1)
    assert found.error <= zoo.tolerance(name)
    expected = EXPECTED[name, ranks]
    assert found.rank_share <= max(1 / ranks + zoo.WEIGHT_SLACK, expected.rank_share + PRINTED)
    assert found.total <= expected.total, dict(found.counts)
    for symbol in EMPTY.get(name, ()) if ranks == 2 else ():
        lockstep.assert_same(tmp_path / "slices", zoo.get(name).path, _empty(zoo.get(name), symbol))


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


@pytest.mark.parametrize(("name", "ranks"), [("bert", 2), ("gpt2", 3), ("resnet50", 3), ("unet", 2)])
def test_stages_give_the_unsliced_outputs(name: str, ranks: int, tmp_path: Path) -> None:
    found = measure(zoo.get(name), ranks, tmp_path, "pipeline")
    assert found.error <= zoo.tolerance(name)
    assert set(found.counts) == {"Send"}


@pytest.mark.parametrize(("name", "ranks"), [("gpt2", 2), ("resnet50", 2), ("unet", 2)])
def test_parts_of_a_batch_give_the_unsliced_outputs(name: str, ranks: int, tmp_path: Path) -> None:
    found = measure(zoo.get(name), ranks, tmp_path, "data")
    assert found.error <= zoo.tolerance(name)
    assert found.total == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "strategy"),
    [("llama_cache", "tensor"), ("llama_4bit", "tensor"), ("lstm", "tensor"), ("unet", "pipeline")],
)
def test_processes_give_the_unsliced_outputs(name: str, strategy: str, tmp_path: Path) -> None:
    sharding.slice_model(zoo.get(name).path, 2, tmp_path / "slices", options=SliceOptions(strategy=strategy))
    assert processes_error(zoo.get(name), tmp_path / "slices") <= zoo.tolerance(name)
