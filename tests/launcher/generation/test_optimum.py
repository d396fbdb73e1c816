"""Models with an encoder as optimum exports them, with both steps of the decoder in one `If`: tokens of plain
ONNX Runtime. `scripts/keep_optimum.py` has made their graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import cli, load_language_model
from launcher.generation.model import LanguageModel
from tests import kept
from tests.sharding import graphs

ARCHIVE = kept.GRAPHS / "optimum.zip"
COUNT = 20
Array = np.ndarray[Any, Any]
CONFIGS: dict[str, dict[str, Any]] = {
    "whisper": {
        "model_type": "whisper", "vocab_size": 300, "decoder_start_token_id": 3, "eos_token_id": 2,
        "max_target_positions": 64, "is_encoder_decoder": True,
    },
    "captioner": {
        "model_type": "vision-encoder-decoder", "vocab_size": 300, "decoder_start_token_id": 0,
        "eos_token_id": 2, "is_encoder_decoder": True,
    },
}  # fmt: skip
GIVEN = {"whisper": ("input_features", (1, 16, 3000)), "captioner": ("pixel_values", (1, 3, 32, 32))}
PROMPTS = {"whisper": [3, 9, 12], "captioner": None}
"""None: what the configuration says a text begins with."""


def greedy(folder: Path, name: str, given: dict[str, Array]) -> list[int]:
    """The likeliest tokens by the unsliced models, one step after another."""
    encoder = graphs.session(folder / "encoder_model.onnx", optimized=False)
    decoder = graphs.session(folder / "decoder_model_merged.onnx", optimized=False)
    hidden = encoder.run(None, given)[0]
    inputs = {item.name: item for item in decoder.get_inputs()}
    state: dict[str, Array] = {
        key: np.zeros(
            [dim if isinstance(dim, int) else int(not axis) for axis, dim in enumerate(item.shape)], "f4"
        )
        for key, item in inputs.items()
        if key.startswith("past")
    }
    ids = list(PROMPTS[name] or [CONFIGS[name]["decoder_start_token_id"]])
    new, past = list(ids), 0
    names = [item.name for item in decoder.get_outputs()]
    while True:
        feeds = {
            "input_ids": np.array([new]),
            "encoder_hidden_states": hidden,
            "use_cache_branch": np.array([past > 0]),
            "cache_position": np.arange(past, past + len(new)),
        }
        given_now = {key: array for key, array in feeds.items() if key in inputs}
        found = dict(zip(names, decoder.run(None, {**state, **given_now}), strict=True))
        state = {
            key: old if past and ".encoder." in key else found[key.replace("past_key_values", "present")]
            for key, old in state.items()
        }
        past += len(new)
        row = found["logits"][0, -1]
        row[2] = -np.inf  # the text goes on
        new = [int(row.argmax())]
        ids += new
        if len(ids) >= COUNT + len(PROMPTS[name] or [0]):
            return ids[-COUNT:]


@pytest.fixture(scope="module", params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(name)
    for part, file in (("encoder", "encoder_model.onnx"), ("decoder", "decoder_model_merged.onnx")):
        kept.restore(ARCHIVE, f"{name}_{part}", made / file)
    (made / "config.json").write_text(json.dumps(CONFIGS[name]))
    return made


@pytest.fixture(scope="module")
def given(name: str) -> dict[str, Array]:
    what, shape = GIVEN[name]
    return {what: np.random.default_rng(1).standard_normal(shape, dtype=np.float32)}


@pytest.fixture(scope="module")
def want(folder: Path, name: str, given: dict[str, Array]) -> list[int]:
    return greedy(folder, name, given)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with load_language_model(str(folder), ranks=2, threads=1, launcher="local") as model:
        yield model


@pytest.mark.timeout(240)
def test_tokens_are_those_of_plain_onnx_runtime(
    model: LanguageModel, name: str, given: dict[str, Array], want: list[int]
) -> None:
    assert len(set(want)) > 2
    options: dict[str, Any] = {"max_new_tokens": COUNT, "min_new_tokens": COUNT, "temperature": 0}
    for _ in range(2):
        assert model.generate(PROMPTS[name], inputs=given, **options).ids == want


@pytest.mark.timeout(240)
def test_the_command_gives_the_same(
    folder: Path,
    name: str,
    given: dict[str, Array],
    want: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The slices are in the cache by now."""
    [(what, array)] = given.items()
    np.save(tmp_path / "given.npy", array)
    prompt = ["--ids", ",".join(map(str, PROMPTS[name] or [0]))]
    arguments = ["--input", f"{what}={tmp_path / 'given.npy'}", "--temperature", "0", "--json"]
    arguments += ["--max-new-tokens", str(COUNT), "--min-new-tokens", str(COUNT), "--launcher", "local"]
    assert cli.main(["generate", str(folder), "--ranks", "2", *prompt, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["completions"][0]["ids"] == want
