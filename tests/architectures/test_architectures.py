"""Every architecture sliced and run on two ranks, some on four: outputs, memory and number of collectives."""

from pathlib import Path

import pytest

from tests.architectures import zoo
from tests.architectures.measure import measure, processes_error

# Collectives of one inference that today's plans need; a plan that needs more is worse.
COLLECTIVES = {
    "bert": {2: 7, 4: 7},
    "gpt2": {2: 8, 4: 8},
    "llama": {2: 8, 4: 8},
    "llama_opset23": {2: 8, 4: 8},
    "llama_cache": {2: 14, 4: 14},
    "qwen2": {2: 8},
    "t5_encoder": {2: 7},
    "t5_decoder": {2: 11},
    "mixtral": {2: 8, 4: 8},
    "moe": {2: 4},
    "lstm": {2: 3},
    "bert_fused": {2: 7},
    "gpt2_fused": {2: 8},
    "llama_fused": {2: 14},
    "vit": {2: 8},
    "whisper_encoder": {2: 7},
    "resnet50": {2: 28},
    "mobilenet_v2": {2: 18},
    "unet": {2: 15, 4: 16},
    "bert_int8_dynamic": {2: 13},
    "bert_int8_static": {2: 7},
    "bert_4bit": {2: 7, 4: 7},
    "llama_int8_dynamic": {2: 14},
    "llama_int8_static": {2: 8},
    "llama_4bit": {2: 8, 4: 8},
    "resnet50_int8": {2: 31},
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    zoo.build(zoo.NAMES)


def test_every_architecture_has_its_number_of_collectives() -> None:
    assert set(COLLECTIVES) == set(zoo.NAMES)


@pytest.mark.parametrize(
    ("name", "ranks"), [(name, ranks) for name, counts in COLLECTIVES.items() for ranks in counts]
)
def test_slices_give_the_unsliced_outputs(name: str, ranks: int, tmp_path: Path) -> None:
    found = measure(zoo.get(name), ranks, tmp_path)
    assert found.error <= zoo.tolerance(name)
    assert found.rank_share <= 1 / ranks + zoo.WEIGHT_SLACK
    assert found.total <= COLLECTIVES[name][ranks], dict(found.counts)


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
