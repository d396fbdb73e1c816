# ruff: noqa: E501 - the tables of cases stay one line each
"""Folders as people have them, and everything that can be wrong with one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from launcher.errors import ConfigError
from launcher.generation import model as language_model
from launcher.generation.folder import read_folder
from launcher.generation.model import read_texts
from launcher.generation.names import Names
from launcher.generation.stateful import Program, StatefulDecoder
from ranks.common.tensors import TensorSpec
from sharding.slices.state import StatePair
from tests.launcher.generation import tiny, tokenizers_made

INT, FLOAT = np.dtype(np.int64), np.dtype(np.float32)


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_texts_of_another_folder_say_all_of_a_model(folder: Path, tmp_path: Path) -> None:
    """Of a slice folder, and of a decoder under another name: also its heads, which the graph leaves open."""
    whole = read_folder(folder)
    slices, other = write(tmp_path / "slices", manifest__json="{}"), tmp_path / "other.onnx"
    other.write_bytes(b"")
    for model in (slices, other):
        found = read_folder(model, folder)
        assert found == replace(whole, decoder=model)
        assert found.names.heads == tiny.KV and found.names.head_size == tiny.SIZE


def test_a_folder_of_genai(folder: Path) -> None:
    found = read_folder(folder)
    assert (found.decoder, found.encoder, found.later) == (folder / "model.onnx", None, None)
    assert (found.vocabulary, found.context, found.manner.ends) == (tiny.VOCABULARY, tiny.CONTEXT, (0,))
    assert found.names.pairs == {
        f"past_key_values.%d.{kind}": f"present.%d.{kind}" for kind in ("key", "value")
    }
    assert (found.names.heads, found.names.head_size) == (tiny.KV, tiny.SIZE)
    assert dict(found.manner.defaults or {}) == {"do_sample": False, "temperature": 1.0, "top_k": 50}
    assert found.special == {"eos_token": tokenizers_made.END, "bos_token": tokenizers_made.END}
    assert read_folder(folder / "model.onnx") == found


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 99, "max_position_embeddings": 64, "eos_token_id": 2,
              "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    generation = {"eos_token_id": [3, 4], "do_sample": True, "top_p": 0.5, "num_beams": 2, "max_length": 20,
                  "early_stopping": True, "transformers_version": "5", "pad_token_id": None}  # fmt: skip
    write(tmp_path, config__json=config, generation_config__json=generation, model__onnx="")
    found = read_folder(tmp_path)
    assert (found.vocabulary, found.context, found.manner.ends) == (99, 64, (3, 4))
    assert found.manner.defaults == {
        "do_sample": True, "top_p": 0.5, "beams": 2, "max_length": 20, "early_stopping": "true",
    }  # fmt: skip
    assert found.names == Names(heads=2, head_size=16)
    write(tmp_path, config__json={"text_config": {**config, "vocab_size": 98}})
    assert read_folder(tmp_path).vocabulary == 98


@pytest.mark.parametrize("below", ["", "onnx/"])
def test_folders_of_optimum(tmp_path: Path, below: str) -> None:
    files = {
        f"{below}{name}": ""
        for name in ("decoder_model.onnx", "decoder_with_past_model.onnx", "encoder_model.onnx")
    }
    config = {
        "model_type": "t5",
        "vocab_size": 9,
        "n_positions": 5,
        "decoder_start_token_id": 7,
        "eos_token_id": 1,
    }
    write(tmp_path, config__json=config, **files)
    inner = tmp_path / below
    found = read_folder(tmp_path)
    assert (found.decoder, found.later) == (
        inner / "decoder_model.onnx",
        inner / "decoder_with_past_model.onnx",
    )
    assert found.encoder == inner / "encoder_model.onnx" and found.context is None
    assert (found.manner.start, found.manner.ends) == ((7,), (1,))
    write(tmp_path, **{f"{below}decoder_model_merged.onnx": ""})
    found = read_folder(tmp_path)
    assert (found.decoder, found.later) == (inner / "decoder_model_merged.onnx", None)
    given = read_folder(inner / "decoder_model_merged.onnx")
    assert (given.decoder, given.encoder, given.vocabulary) == (found.decoder, found.encoder, 9)


def test_a_whisper_starts_with_what_its_configuration_forces(tmp_path: Path) -> None:
    config = {"vocab_size": 99, "decoder_start_token_id": 50, "max_target_positions": 448}
    forced = {"forced_decoder_ids": [[1, 51], [2, 52], [4, 60]]}
    write(tmp_path, config__json=config, generation_config__json=forced, model__onnx="")
    found = read_folder(tmp_path)
    assert (found.manner.start, found.context) == ((50, 51, 52), 448)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no language model: expected genai_config.json, model.onnx or decoder_model_merged.onnx"),
        ({"a__onnx": "", "b__onnx": ""}, "has several models (a.onnx, b.onnx): give the file of the decoder"),
        ({"genai_config__json": "{"}, "genai_config.json: this configuration cannot be read"),
        ({"genai_config__json": "[]"}, "genai_config.json: the file: expected a mapping, found []"),
        ({"genai_config__json": "{}"}, "genai_config.json: model: expected a mapping, found null"),
        ({"genai_config__json": {"model": {"decoder": 5}}}, "model.decoder: expected a mapping, found 5"),
        ({"genai_config__json": tiny.genai_config()}, "names the model 'model.onnx', which"),
        ({"genai_config__json": {"model": {"decoder": {"filename": "../x.onnx"}}}}, "the name of a file in this"),
        ({"genai_config__json": {"model": {"decoder": {"filename": "/x.onnx"}}}}, "the name of a file in this"),
        ({"genai_config__json": {"model": {"decoder": {"pipeline": [{}]}}}}, "a pipeline of several models"),
        ({"genai_config__json": {"model": {"decoder": {}, "vision": {"a": 1}}}}, "more than tokens"),
        ({"genai_config__json": {"model": {"decoder": {}, "vocab_size": -5}}}, "vocab_size: expected a whole"),
        ({"genai_config__json": tiny.genai_config(top_p=7)}, "top_p: expected a number above 0 up to 1, found 7"),
        ({"genai_config__json": tiny.genai_config(early_stopping=[])}, "early_stopping: expected true, false or"),
        ({"genai_config__json": tiny.genai_config(max_length="a")}, 'max_length: expected a whole number'),
        ({"model__onnx": "", "config__json": '{"vocab_size": 1e999}'}, "config.json: this configuration cannot"),
        ({"model__onnx": "", "config__json": {"vocab_size": "many"}}, 'vocab_size: expected a whole number'),
        ({"model__onnx": "", "config__json": {"eos_token_id": "x"}}, "eos_token_id: expected a token id or"),
        ({"model__onnx": "", "generation_config__json": {"temperature": "hot"}}, "temperature: expected a number"),
        ({"model__onnx": "", "config__json": "[" * 100_000}, "nested deeper than 32"),
        ({"model__onnx": "", "config__json": '{"a": 1, "a": 2}'}, "given twice"),
        ({"model__onnx": "", "tokenizer_config__json": "5"}, "tokenizer_config.json: the file: expected a mapping"),
    ],
)  # fmt: skip
def test_wrong_folders(tmp_path: Path, files: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_folder(write(tmp_path, **files))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_paths(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"absent: there is no such folder or file.*; expected a language model"
    ):
        read_folder(tmp_path / "absent")
    with pytest.raises(ConfigError, match="expected a folder with a tokenizer and configuration"):
        read_folder(folder, folder / "model.onnx")
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ConfigError, match="a configuration has at most 4194304 bytes, found 1099511627776"):
        read_folder(tmp_path)


def test_a_tokenizer_must_fit_what_the_graph_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no configuration says how many tokens the model knows."""
    ended: list[Path] = []

    @contextlib.contextmanager
    def start(path: Path) -> Iterator[Any]:
        try:
            yield path
        finally:
            ended.append(path)

    def build(found: Any, start: Any) -> Any:
        return SimpleNamespace(vocabulary=size, program=start(found.decoder))

    monkeypatch.setattr(language_model, "build", build)
    size = tiny.VOCABULARY
    with language_model.assemble(read_folder(folder), start) as whole:
        assert whole.tokenizer is not None and not ended
    size = 5
    with pytest.raises(ConfigError, match=r"does not fit .*the model's vocabulary ends at 4"):
        language_model.assemble(read_folder(folder), start)
    assert len(ended) == 2


def test_a_tokenizer_that_does_not_fit_is_refused_before_anything_starts(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    tokenizers_made.byte_fallback(copy / "tokenizer.json")
    config = tiny.genai_config()
    config["model"]["vocab_size"] = 280
    (copy / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"tokenizer.json does not fit .*: this tokenizer has ids up to 29\d, but"
    ):
        read_texts(read_folder(copy))


def program(inputs: Mapping[str, tuple[Any, Any]], outputs: Mapping[str, tuple[Any, Any]]) -> Program:
    def specs(table: Mapping[str, tuple[Any, Any]]) -> list[TensorSpec]:
        return [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape) in table.items()]

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError("not run here")

    return Program(run, specs(inputs), specs(outputs))


IDS = {"input_ids": (INT, ("b", "s"))}
LOGITS = {"logits": (FLOAT, ("b", "s", 9))}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x": (FLOAT, (1, 3))}, {"y": (FLOAT, (1, 3))}, "the model is no language model: expected an output"),
        ({"x": (FLOAT, (1, 3))}, LOGITS, "the model is no decoder of tokens: expected an input 'input_ids'"),
        ({**IDS, "a": (FLOAT, (1, 3))}, {**LOGITS, "b": (FLOAT, (1, 4))}, "the model's input 'a' is none that"),
        ({**IDS, "a": (FLOAT, (1, 3))}, {**LOGITS, "b": (INT, (1, 3))}, "the model's input 'a' is none that"),
        ({**IDS, "a": (FLOAT, ("b", "s", 4))}, {**LOGITS, "b": (FLOAT, ("b", "s", 4))}, "the model's input 'a' is"),
        ({**IDS, "pixels": (FLOAT, (1, 3))}, LOGITS, "the model's input 'pixels' is none that generation knows"),
        (IDS, {"last_hidden_state": (FLOAT, ("b", "s", 9))}, "the model gives no logits: its output 'last_hidden_state'"),
        (IDS, {"logits": (FLOAT, ("b", "s", "v"))}, "nothing says how many tokens there are"),
        ({**IDS, "past.0": (FLOAT, ("b", "h", "p", "d"))}, {**LOGITS, "present.0": (FLOAT, ("b", "h", "q", "d"))}, "past.0 has the"),
        ({**IDS, "past.0": (FLOAT, ("b", 2, "p", 8))}, {**LOGITS, "present.0": (FLOAT, ("b",))}, "the model's input 'past.0' is"),
    ],
)  # fmt: skip
def test_graphs_that_are_no_decoders(inputs: Any, outputs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        StatefulDecoder(program(inputs, outputs))


@pytest.mark.parametrize(("size", "fits"), [(12, True), (9, True), (8, True), (4, False)])
def test_an_output_of_another_name_must_have_room_for_the_vocabulary(size: int, fits: bool) -> None:
    graph = program(IDS, {"output": (FLOAT, ("b", "s", size))})
    if fits:
        assert StatefulDecoder(graph, vocabulary=9).logits == "output"
        return
    with pytest.raises(ConfigError, match=re.escape("for each token of the vocabulary of 9 tokens")):
        StatefulDecoder(graph, vocabulary=9)


@pytest.mark.parametrize(
    ("past", "present", "shape", "names", "empty", "axis"),
    [
        ("past_key_values.0.key", "present.0.key", ("b", 2, "past", 8), Names(), (1, 2, 0, 8), 2),
        ("past_key_values.0.key", "present_key_values.0.key", ("b", 2, "p", 8), Names(), (1, 2, 0, 8), 2),
        ("past_key_self_3", "present_key_self_3", ("b", 2, "past", 8), Names(), (1, 2, 0, 8), 2),
        ("past_key_value.0", "present.0", ("b", 2, "past", 8), Names(), (1, 2, 0, 8), 2),
        ("cache_k_0", "cache_k_0_out", ("b", 2, "past", 8), Names(), (1, 2, 0, 8), 2),
        ("past_0", "present_0", (2, "b", 4, "past", 8), Names(), (2, 1, 4, 0, 8), 3),
        ("past.0.key", "present.0.key", ("b", "h", "past_seq", "d"), Names(heads=2, head_size=8), (1, 2, 0, 8), 2),
        ("past.0.key", "present.0.key", ("b", 4, 8, "past"), Names(), (1, 4, 8, 0), 3),
        ("past_conv.0", "present_conv.0", ("b", 16, 3), Names(), (1, 16, 3), None),
        ("state", "new_state", (2, 1, 128), Names(pairs={"state": "new_state"}), (2, 1, 128), None),
        ("h", "h_after", (2, 1, 128), Names(), (2, 1, 128), None),
        ("cached_keys", "keys", ("b", 2, "kept", 8), Names(), (1, 2, 0, 8), 2),
        ("k_%d", "k_out_%d", ("b", 2, "n", 8), Names(pairs={"k_%d": "k_out_%d"}), (1, 2, 0, 8), 2),
    ],
)  # fmt: skip
def test_state_by_name(
    past: str, present: str, shape: Any, names: Names, empty: tuple[int, ...], axis: int | None
) -> None:
    past, present = past.replace("%d", "5"), present.replace("%d", "5")
    made = program({**IDS, past: (FLOAT, shape)}, {**LOGITS, present: (FLOAT, shape)})
    decoder = StatefulDecoder(made, names=names)
    (state,) = decoder.states[id(made)]
    assert (state.past, state.present, state.shape, state.axis) == (past, present, empty, axis)
    assert decoder.rewinds == (axis is not None)


def test_state_that_the_ranks_found_needs_no_names() -> None:
    class Ranks:
        session_host = SimpleNamespace(known=SimpleNamespace(states={"a": StatePair("a", "c")}))

    shape = (FLOAT, ("b", 2, "n", 8))
    made = program({**IDS, "a": shape}, {**LOGITS, "b": shape, "c": shape})
    with pytest.raises(ConfigError, match="the model's input 'a' is none"):
        StatefulDecoder(made)
    found = replace(made, group=cast(Any, Ranks()))
    (state,) = StatefulDecoder(found).states[id(found)]
    assert (state.past, state.present, state.axis) == ("a", "c", 2)


@pytest.mark.parametrize(
    "name",
    ["genai_config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"],
)
def test_what_is_in_the_place_of_a_file_is_not_overlooked(folder: Path, name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(folder, tmp_path / "own")
    path = folder / name
    for make, found in (
        (Path.mkdir, "folder, pipe or device"),
        (os.mkfifo, "folder, pipe or device"),
        (lambda place: place.symlink_to("/nonexistent"), "broken link"),
        (lambda place: place.symlink_to(place), "broken link"),
    ):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        make(path)
        if name != "genai_config.json":
            (folder / "genai_config.json").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=re.escape(f"{name}: expected a file, found a {found}")):
            read_folder(folder)


def test_lengths_that_a_configuration_leaves_open(folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folder, tmp_path / "own")
    whole = tiny.genai_config()
    whole["model"]["context_length"] = None
    whole["search"].pop("max_length", None)
    (folder / "genai_config.json").write_text(json.dumps(whole))
    found = read_folder(folder)
    assert found.context is None
    assert "max_length" not in found.manner.defaults
