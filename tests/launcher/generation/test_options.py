"""What each option of generating takes, at its edges, and which exclude each other."""

from __future__ import annotations

import math
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.generation.options import GENERATE, GenerateOptions, options_of

WHOLE = {
    "max_new_tokens": (1, 2**31 - 1), "min_new_tokens": (0, 2**31 - 1), "top_k": (0, 2**31 - 1),
    "no_repeat_ngram": (0, 4096), "seed": (0, 2**64 - 1), "samples": (1, 4096), "beams": (1, 1024),
    "returned": (1, 1024), "logprobs": (0, 1 << 20), "chunk": (1, 2**31 - 1), "speculate": (0, 256),
}  # fmt: skip
NUMBERS = {
    "temperature": (0, 100), "min_p": (0, 1), "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100), "length_penalty": (-100, 100),
}  # fmt: skip
ABOVE = {"top_p": 1, "repetition_penalty": 100}


def made(name: str, value: Any) -> Any:
    return getattr(GenerateOptions(**{name: value}), name)


def refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: expected .*, found "):
        made(name, value)


def test_all_numbers_are_in_the_tables() -> None:
    kinds = {name for name, option in GENERATE.items() if type(option.kind).__name__ in {"Whole", "Number"}}
    assert kinds == {*WHOLE, *NUMBERS, *ABOVE}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    low, high = WHOLE[name]
    assert (made(name, low), made(name, high)) == (low, high)
    for value in (low - 1, high + 1, float(low), True, str(low)):
        refused(name, value)


@pytest.mark.parametrize("name", [*NUMBERS, *ABOVE])
def test_numbers(name: str) -> None:
    low, high = NUMBERS.get(name, (0, ABOVE.get(name, 0)))
    assert made(name, high) == high and made(name, math.nextafter(low, high)) > low
    for value in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan, True, str(high)):
        refused(name, value)
    if name in ABOVE:
        refused(name, low)
    else:
        assert made(name, low) == low


def test_lists_and_mappings() -> None:
    assert made("stop", "x") == ("x",) and made("stop_ids", [0, 7]) == [0, 7]
    for name, value in (
        ("stop", ["x", ""]),
        ("stop_ids", [0, -1]),
        ("suppressed", [True]),
        ("logit_bias", {1: 10001}),
    ):
        refused(name, value)
    assert made("logit_bias", {0: -1e4, 1: 1e4}) == {0: -1e4, 1: 1e4}
    with pytest.raises(ConfigError, match="logit_bias: expected token ids as keys, found -1"):
        made("logit_bias", {-1: 0})
    with pytest.raises(ConfigError, match="no option 'beam' of generating; did you mean 'beams'"):
        options_of(None, {"beam": 2})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beams": 2, "samples": 2}, "samples and beams exclude each other"),
        ({"beams": 2, "speculate": 1}, "beams and speculate exclude each other"),
        ({"beams": 2, "temperature": 0.1}, "beams and a temperature exclude each other"),
        ({"beams": 2, "json_schema": "{}"}, "json_schema and beams or speculate exclude each other"),
        ({"speculate": 1, "json_schema": "{}"}, "json_schema and beams or speculate exclude each other"),
        ({"beams": 2, "returned": 3}, "returned: 3 texts are asked of a search of 2 beams"),
    ],
)
def test_what_excludes_what(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GenerateOptions(**given)
    for one in given:
        GenerateOptions(**{name: value for name, value in given.items() if name != one})
    GenerateOptions(
        **{**given, "beams": None if "returned" in given else 1, "speculate": 0, "temperature": 0}
    )


@pytest.mark.parametrize(
    ("given", "defaults", "temperature", "beams"),
    [
        ({}, {}, 0.0, None),
        ({}, {"do_sample": True}, 1.0, None),
        ({}, {"do_sample": True, "temperature": 0.7}, 0.7, None),
        ({}, {"do_sample": False, "temperature": 0.7}, 0.0, None),
        ({"top_k": 5}, {"temperature": 0.7}, 0.7, None),
        ({"temperature": 0.0}, {"do_sample": True}, 0.0, None),
        ({"temperature": 0.3}, {"temperature": 0.7}, 0.3, None),
        ({}, {"beams": 4, "do_sample": True}, 0.0, 4),
        ({"samples": 2}, {"beams": 4}, 1.0, None),
        ({"json_schema": "{}"}, {"beams": 4}, 0.0, None),
        ({"beams": 1}, {"beams": 4, "do_sample": True}, 1.0, 1),
    ],
)
def test_what_a_folder_says_where_nothing_is_given(
    given: dict[str, Any], defaults: dict[str, object], temperature: float, beams: int | None
) -> None:
    found = GenerateOptions(**given).filled(defaults)
    assert (found.temperature, found.beams) == (temperature, beams)
    assert found.greedy == (temperature == 0)
