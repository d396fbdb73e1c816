"""Every architecture sliced and run on two ranks, some on four: outputs, memory and number of collectives."""

from pathlib import Path

import onnxruntime
import pytest

import sharding
from sharding.demands.options import SliceOptions
from tests.architectures import table, zoo
from tests.architectures.measure import measure, processes_error
from tests.models import BUILD_SECONDS
from tests.sharding import lockstep

MORE_RANKS = dict.fromkeys(
    (
        *("bert", "gpt2", "llama", "llama_opset23", "llama_cache", "mixtral", "unet", "bert_4bit"),
        *("llama_4bit", "albert", "falcon", "gpt_oss"),
    ),
    4,
)
"""Besides two."""
EXPECTED = {
    (name, result.ranks): result
    for name, slicings in table.read().items()
    for result in slicings
    if result.strategy == "tensor"
}
"""What docs/coverage.md says, which `scripts/coverage.py` writes: a plan that needs more is worse."""
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
    found = measure(zoo.get(name), ranks, tmp_path)
    assert found.error <= zoo.tolerance(name)
    expected = EXPECTED[name, ranks]
    assert found.rank_share <= max(1 / ranks + zoo.WEIGHT_SLACK, expected.rank_share + PRINTED)
    assert found.total <= expected.total, dict(found.counts)


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
    measure(zoo.get(name), 2, tmp_path, strategy)
    assert processes_error(zoo.get(name), tmp_path / "slices") <= zoo.tolerance(name)


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


@pytest.mark.parametrize("name", EMPTY)
def test_empty_batches_and_sequences(name: str, tmp_path: Path) -> None:
    model = zoo.get(name)
    sharding.slice_model(model.path, 2, tmp_path / "slices", options=SliceOptions(allow_replicated=True))
    session = onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    for symbol in EMPTY[name]:
        feeds = {
            item.name: model.feeds[0][item.name][
                tuple(slice(0, 0) if length == symbol else slice(None) for length in item.shape)
            ]
            for item in session.get_inputs()
        }
        assert any(array.size == 0 for array in feeds.values())
        lockstep.assert_same(tmp_path / "slices", model.path, feeds)
