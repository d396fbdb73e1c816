# ruff: noqa: E501 - the tables of cases stay one line each
"""Models of encoder and decoder, in every form: the tokens are those of the graphs without state."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import launcher
from launcher.errors import ConfigError
from launcher.generation.folder import read_folder
from launcher.generation.generate import generate
from launcher.generation.model import build
from launcher.generation.stateful import Program, StatefulDecoder
from ranks.common.tensors import TensorSpec, element_dtype, element_number
from tests.launcher.generation import tiny_encoders

PROMPT = [5, 30, 12, 7]


def program(path: Path) -> Program:
    """A graph in plain ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def specs(items: Any) -> list[TensorSpec]:
        return [TensorSpec(i.name, element_dtype(element_number(i.type)), tuple(i.shape)) for i in items]

    outputs = specs(session.get_outputs())
    names = [spec.name for spec in outputs]
    return Program(
        lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True)),
        specs(session.get_inputs()),
        outputs,
    )


def greedy(folder: Path, hidden: Any, start: list[int], count: int) -> list[int]:
    """By the graph of the first step alone, which computes all tokens anew."""
    decoder = program(folder / "decoder_model.onnx")
    ids = list(start)
    for _ in range(count):
        found = decoder.run({"input_ids": np.array([ids]), "encoder_hidden_states": hidden})
        ids.append(int(found["logits"][0, -1].argmax()))
    return ids[len(start) :]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("encoders")
    return {
        "two": tiny_encoders.save_optimum(place / "two", merged=False),
        "merged": tiny_encoders.save_optimum(place / "merged", merged=True),
        "genai": tiny_encoders.save_genai(place / "genai"),
    }


@pytest.mark.parametrize("form", ["two", "merged"])
@pytest.mark.parametrize(
    "options", [{}, {"chunk": 1}, {"speculate": 3}, {"samples": 2, "top_k": 1}, {"beams": 1}], ids=str
)
def test_text_to_text(folders: dict[str, Path], form: str, options: dict[str, Any]) -> None:
    folder = read_folder(folders[form])
    decoder = build(folder, program)
    encoded = program(folders[form] / "encoder_model.onnx").run(
        {"input_ids": np.array([PROMPT]), "attention_mask": np.ones((1, 4), np.int64)}
    )["last_hidden_state"]
    expected = greedy(folders[form], encoded, [tiny_encoders.START], 12)
    made = generate(decoder, PROMPT, manner=folder.manner, max_new_tokens=12, ignore_eos=True, **options)
    assert len(set(expected)) > 2 and all(found.ids == expected for found in made.finish())
    masked = {"input_ids": np.array([[*PROMPT, 9]]), "attention_mask": np.array([[1, 1, 1, 1, 0]])}
    hidden = program(folders[form] / "encoder_model.onnx").run(masked)["last_hidden_state"]
    more = generate(decoder, [3, 8], inputs=masked, max_new_tokens=6, ignore_eos=True, **options)
    assert more.ids == greedy(folders[form], hidden, [3, 8], 6)


def test_forms_search_alike(folders: dict[str, Path]) -> None:
    found = []
    for form in ("two", "merged"):
        folder = read_folder(folders[form])
        made = generate(
            build(folder, program), PROMPT, manner=folder.manner, beams=4, returned=4, max_new_tokens=8
        )
        found.append([(item.ids, round(item.score or 0, 4)) for item in made.finish()])
    assert found[0] == found[1] and len(found[0]) == 4


def test_sound(folders: dict[str, Path]) -> None:
    """The encoder's arrays, and what the decoder begins with."""
    sound = np.random.default_rng(0).standard_normal((1, 7, tiny_encoders.WIDTH)).astype(np.float32)
    folder = read_folder(folders["genai"])
    decoder = build(folder, program)
    assert [spec.name for spec in decoder.encoder_inputs] == ["audio_features"] and decoder.context == 30
    hidden = program(folders["genai"] / "encoder.onnx").run({"audio_features": sound})["hidden_states"]
    expected = greedy(folders["two"], hidden, [3, 9], 15)
    inputs = {"audio_features": sound}
    for options in ({}, {"speculate": 4}, {"samples": 2, "top_k": 1}):
        made = generate(
            decoder,
            [3, 9],
            inputs=inputs,
            manner=folder.manner,
            max_new_tokens=15,
            ignore_eos=True,
            **options,
        )
        assert all(found.ids == expected for found in made.finish())


@pytest.mark.parametrize(
    ("shapes", "mask", "expected"),
    [
        ({"samples": ("b", "n")}, ("b", "n"), (1, 7)),
        ({"frames": ("b", 5, "n")}, ("b", "n"), (1, 7)),
        ({"frames": ("b", "n", 5)}, ("b", 1, "n"), (1, 1, 7)),
        ({"samples": ("b", "m")}, ("b", "n"), None),
        ({"samples": (None, None)}, (None, None), None),
    ],
)
def test_a_mask_of_sound_may_be_left_out(shapes: Any, mask: Any, expected: Any) -> None:
    """As that of tokens: its lengths have the names of what was given."""
    whole, real = np.dtype(np.int64), np.dtype(np.float32)
    taken: list[dict[str, Any]] = []

    def encode(feeds: Any) -> Any:
        taken.append(dict(feeds))
        return {"hidden": np.zeros((1, 2, 3), np.float32)}

    inputs = [TensorSpec(name, real, shape) for name, shape in shapes.items()]
    encoder = Program(
        encode, [*inputs, TensorSpec("attention_mask", whole, mask)], [TensorSpec("hidden", real, (1, 2, 3))]
    )
    given = [TensorSpec("input_ids", whole, (1, "t")), TensorSpec("encoder_hidden_states", real, (1, 2, 3))]
    logits = TensorSpec("logits", real, (1, "t", 10))
    decoder = StatefulDecoder(Program(lambda feeds: {}, given, [logits]), encoder=encoder)
    lengths = {"b": 1, "n": 7, "m": 7, None: 4, 5: 5}
    sound = {spec.name: np.zeros([lengths[length] for length in spec.shape]) for spec in inputs}
    decoder.sequence(sound)
    found = taken[0].get("attention_mask")
    assert (None if found is None else found.shape) == expected
    assert found is None or (found.dtype == np.int64 and found.all())


@pytest.mark.parametrize(
    ("form", "prompt", "inputs", "message"),
    [
        ("genai", [3], None, "the model's encoder takes the array 'audio_features', which is not given"),
        ("genai", None, {"audio_features": np.zeros((1, 2, 16))}, "nothing says with which token this decoder starts"),
        ("genai", [3], {"sound": np.zeros(1)}, "the encoder has no input 'sound'; it takes audio_features"),
        ("two", None, None, "there is no prompt, which the model's encoder reads"),
        ("two", [99], None, "the prompt holds the token 99, but the model's vocabulary has the ids 0 to 39"),
    ],
)  # fmt: skip
def test_what_an_encoder_is_not_given(
    folders: dict[str, Path], form: str, prompt: Any, inputs: Any, message: str
) -> None:
    folder = read_folder(folders[form])
    with pytest.raises(ConfigError, match=re.escape(message)):
        generate(build(folder, program), prompt, inputs=inputs, manner=folder.manner)


def test_an_encoder_of_fewer_layers_than_its_decoder_is_refused_at_once(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["genai"], tmp_path / "model")
    encoder = onnx.load(folder / "encoder.onnx")
    kept = [value for value in encoder.graph.output if value.name != "present_value_cross_0"]
    del encoder.graph.output[:]
    encoder.graph.output.extend(kept)
    onnx.save(encoder, folder / "encoder.onnx")
    message = "expected an output 'present_value_cross_0', found 'hidden_states', 'present_key_cross_0'"
    with pytest.raises(ConfigError, match=rf"input 'past_value_cross_0' .*{message}"):
        build(read_folder(folder), program)


def test_on_ranks(folders: dict[str, Path]) -> None:
    folder = read_folder(folders["two"])
    expected = generate(build(folder, program), PROMPT, manner=folder.manner, max_new_tokens=6).ids
    made = launcher.generate(folders["two"], PROMPT, ranks=2, launcher="local", threads=1, max_new_tokens=6)
    assert made.ids == expected
