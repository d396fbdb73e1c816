"""Large bodies: the same values as Python's own reader gives, while other threads go on."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.serving.openai import large
from launcher.serving.openai.large import AT_ONCE, large_object
from launcher.serving.refusals import RefusalError
from tests.launcher.serving.running import Running

WORDS = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS, inner), max_leaves=30
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "prompt", "ü"]), VALUES),
    st.sampled_from([2, 5, 17, 200]),
    st.booleans(),
)
def test_values_are_those_of_the_own_reader(value: Any, at_once: int, spread: bool) -> None:
    text = json.dumps(value, ensure_ascii=spread, indent=1 if spread else None)
    before, large.AT_ONCE = large.AT_ONCE, at_once
    try:
        assert large_object(text.encode()) == json.loads(text) == value
        assert large_object(b"\xef\xbb\xbf " + text.encode() + b"\n ") == value
    finally:
        large.AT_ONCE = before


@pytest.mark.parametrize("at_once", [3, AT_ONCE])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        '{"a":',
        '{"a": 1',
        '{"a": 1,}',
        '{"a": 1 "b": 2}',
        "{a: 1}",
        '{"a": [1, 2}',
        '{"a": [1,, 2]}',
        '{"a": [1, 2, ]}',
        '{"a": [, 1]}',
        '{"a": [1 2]}',
        '{"a": [1, , 2, 3, 4]}',
        '{"a": NaN}',
        '{"a": [1, Infinity]}',
        '{"a": 1} x',
        '{"a": "x',
        '{"a": "\\ud800"}',
        '{"\\ud800": 1}',
        "[1]",
        "3",
        '{"a": [1, 2, 3, 4, 5, 6 7, 8]}',
        '{"a": [1, 2, 3, 4, 5], 6]}',
        "{1: 2}",
        '{"a": [[1, 2, 3], [4, 5], 6 [7]]}',
        '{"a": ' + "[" * 70 + "]" * 70 + "}",
    ],
)
def test_what_is_no_json_is_refused(text: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "AT_ONCE", at_once)
    with pytest.raises(RefusalError, match="the body"):
        large_object(text.encode())


def test_no_text_at_all() -> None:
    with pytest.raises(RefusalError, match="no JSON"):
        large_object(b'{"a": "\xff"}')


@pytest.mark.parametrize(
    "value",
    [list(range(1_500_000)), [list(range(90))] * 15_000, ["a word " * 40] * 60_000],
    ids=["flat", "rows", "texts"],
)
def test_other_threads_go_on_meanwhile(value: Any) -> None:
    """Python's own reader would let this one look once or twice."""
    data, looked, done = json.dumps({"input": value}).encode(), [0], threading.Event()

    def look() -> None:
        while not done.is_set():
            time.sleep(0.001)
            looked[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        before = looked[0]
        found = large_object(data)
        seen = looked[0] - before
    finally:
        done.set()
        thread.join()
    assert found["input"] == value and seen >= 5


def test_a_large_body_is_answered(server: Running) -> None:
    text = "x" * AT_ONCE
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": text}, timeout=60)
    assert answer.status_code == 400 and "prompt" in answer.text
    broken = httpx.post(
        f"{server.url}/v1/completions", content=b'{"prompt": "' + text.encode() + b'", }', timeout=60
    )
    assert broken.status_code == 400 and "the body is no JSON" in broken.text
