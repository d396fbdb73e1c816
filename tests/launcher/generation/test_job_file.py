# ruff: noqa: E501 - the tables of cases stay one line each
"""Options of generating in a job file: read as flags are, beaten by them, and refused with one sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.generation.options import GENERATE, GenerateOptions
from launcher.job.job_file import read_job_file, read_section


def write(folder: Path, section: Any) -> Path:
    path = folder / "job.yaml"
    data = section if isinstance(section, str) else yaml.safe_dump({"ranks": 2, "generate": section})
    path.write_text(data)
    return path


def options(path: Path, **flags: Any) -> GenerateOptions:
    return GenerateOptions().with_flags(flags, read_section(path, "generate", GENERATE))


EVERY: dict[str, Any] = {
    "max_new_tokens": 5, "min_new_tokens": 1, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1,
    "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -1, "no_repeat_ngram": 2,
    "logit_bias": {5: 1.5, 7: -2}, "seed": 4, "samples": 2, "stop": ("a", "b"), "stop_ids": (3, 4),
    "suppressed": (1,), "suppressed_first": (2,), "forced_first": (6,), "forced_last": (7,),
    "ignore_eos": True, "beams": 1, "length_penalty": 0.5, "early_stopping": "never", "returned": 1, "logprobs": 2,
    "chunk": 8, "speculate": 3, "json_schema": None,
}  # fmt: skip


def test_every_option(tmp_path: Path) -> None:
    assert EVERY.keys() == GENERATE.keys()
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in EVERY.items()}
    plain["logit_bias"] = {str(key): value for key, value in EVERY["logit_bias"].items()}
    path = write(tmp_path, plain)
    assert options(path) == GenerateOptions(**EVERY)
    assert read_job_file(path) == {"ranks": 2}


def test_a_schema_is_written_out_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    assert options(write(tmp_path, {"json_schema": {"type": "integer"}})).json_schema == '{"type": "integer"}'
    path = write(tmp_path, {"json_schema": "schema.json"})
    assert options(path).json_schema == '{"type": "integer"}'
    (tmp_path / "other.json").write_text("{}")
    assert (
        options(
            path, json_schema=GENERATE["json_schema"].kind.parse(str(tmp_path / "other.json"))
        ).json_schema
        == "{}"
    )


def test_flags_win(tmp_path: Path) -> None:
    path = write(tmp_path, {"temperature": 0.5, "stop": ["a"], "logit_bias": {"5": 1, "6": 2}, "seed": 1})
    found = options(path, temperature=0.0, stop=["b"], logit_bias=["6=3"], samples=None)
    assert found == GenerateOptions(temperature=0.0, stop=("b",), logit_bias={5: 1, 6: 3}, seed=1)
    # What the file says of several options need not go together with what flags say instead.
    path = write(tmp_path, {"beams": 4})
    assert options(path, beams=1, samples=3).samples == 3


@pytest.mark.parametrize("text", ["ranks: 2\n", "generate:\n", '{"generate": null}', "generate: {}\n"])
def test_nothing_said(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert options(path) == GenerateOptions() and "generate" not in read_job_file(path)


def test_as_json_and_as_yaml_write_them(tmp_path: Path) -> None:
    path = write(tmp_path, '{"generate": {"logit_bias": {"5": 1}, "early_stopping": true}}')
    found = options(path)
    assert found.logit_bias == {5: 1} and found.early_stopping == "true"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"temprature": 1}, 'unknown key "temprature" in $.generate; did you mean temperature?'),
        ({"zzz": 1}, 'unknown key "zzz" in $.generate; expected one of max_new_tokens'),
        ({"temperature": "hot"}, '$.generate.temperature: expected a number from 0 to 100, found "hot"'),
        ({"temperature": -1}, "$.generate.temperature: expected a number from 0 to 100, found -1"),
        ({"top_p": 0}, "$.generate.top_p: expected a number above 0 up to 1, found 0"),
        ({"top_k": 1.5}, "$.generate.top_k: expected a whole number from 0 to"),
        ({"samples": True}, "$.generate.samples: expected a whole number from 1 to 4096, found true"),
        ({"stop": "x"}, '$.generate.stop: expected a list of texts, none of them empty, found "x"'),
        ({"stop": [""]}, "$.generate.stop: expected a list of texts"),
        ({"stop_ids": [-1]}, "$.generate.stop_ids: expected a list of token ids, found [-1]"),
        ({"logit_bias": [1]}, "$.generate.logit_bias: expected a mapping of token ids to numbers"),
        ({"logit_bias": {"x": 1}}, '$.generate.logit_bias: expected a token id as each name, found "x"'),
        ({"logit_bias": {"5": "x"}}, '$.generate.logit_bias.5: expected a number from -10000 to 10000, found "x"'),
        ({"logit_bias": {"5": 1, "05": 2}}, "$.generate.logit_bias: the name 5 is given twice"),
        ({"early_stopping": "soon"}, '$.generate.early_stopping: expected one of false, true, never, found "soon"'),
        ({"ignore_eos": 1}, "$.generate.ignore_eos: expected true or false, found 1"),
        ("generate: 3\n", "$.generate: expected a mapping of options, found 3"),
        ("generate: []\n", "$.generate: expected a mapping of options, found []"),
        ({"beams": 2, "samples": 2}, "samples and beams exclude each other"),
    ],
)  # fmt: skip
def test_wrong_values(tmp_path: Path, section: Any, message: str) -> None:
    path = write(tmp_path, section)
    with pytest.raises(ConfigError) as caught:
        read_job_file(path)
        options(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "exclude" in message


@settings(max_examples=150, deadline=None)
@given(
    data=st.dictionaries(
        st.sampled_from([*GENERATE, "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.lists(st.text(max_size=3) | st.integers(), max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9).map(str), st.floats() | st.text(max_size=3), max_size=3),
        max_size=3,
    )
)  # fmt: skip
def test_any_section_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "section.yaml"
    path.write_text(yaml.safe_dump({"generate": data}), encoding="utf-8")
    try:
        found = options(path)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        given = dataclasses.asdict(found)
        assert set(data) <= set(given)
