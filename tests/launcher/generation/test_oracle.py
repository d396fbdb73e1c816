"""Tokens, scores and probabilities are those of transformers: `tests.launcher.generation.record`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from launcher.generation.generate import Manner, generate
from launcher.generation.options import GenerateOptions
from launcher.generation.text.chat import ChatTemplate
from ranks.tokens.sampling import candidates
from tests.launcher.generation import record
from tests.launcher.generation.table import VOCABULARY, TableDecoder

RECORDED = json.loads(record.FILE.read_text())
NAMES = {"num_beams": "beams", "num_return_sequences": "returned", "no_repeat_ngram_size": "no_repeat_ngram",
         "suppress_tokens": "suppressed", "begin_suppress_tokens": "suppressed_first"}  # fmt: skip


def named(case: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in case["options"].items() if key != "max_new_tokens")


def test_all_cases_are_recorded() -> None:
    assert [case["options"] for case in RECORDED["texts"]] == record.cases()
    assert [case["options"] for case in RECORDED["spreads"]] == record.sampling()


@pytest.mark.parametrize("case", RECORDED["texts"], ids=named)
def test_greedy_and_beams(case: dict[str, Any]) -> None:
    options = {NAMES.get(name, name): value for name, value in case["options"].items()}
    if "forced_eos_token_id" in options:
        options["forced_last"] = [options.pop("forced_eos_token_id")]
    decoder = TableDecoder()
    manner = Manner(ends=tuple(options.pop("eos_token_id")))
    found = generate(decoder, record.PROMPT, manner=manner, **options).finish()
    assert [item.ids for item in found] == case["ids"]
    if case["scores"] is not None:
        assert [item.score for item in found] == pytest.approx(case["scores"], rel=1e-4)
    assert decoder.open == 0


@pytest.mark.parametrize("case", RECORDED["spreads"], ids=named)
def test_random_choices(case: dict[str, Any]) -> None:
    """Exactly the tokens that may come, with their probabilities."""
    row = TableDecoder().sequence().step(np.array(record.PROMPT))[0]
    spread = candidates(row, GenerateOptions(**case["options"])).spread(VOCABULARY)
    expected = np.array(case["probabilities"])
    assert ((spread > 0) == (expected > 0)).all()
    assert np.abs(spread - expected).max() < 1e-6


def test_chat_templates() -> None:
    template = ChatTemplate(record.CHAT, record.FILE, {"bos_token": "<s>", "eos_token": "</s>"})
    for continued, expected in zip((True, False), RECORDED["chat"], strict=True):
        assert template.text(record.MESSAGES, continued=continued) == expected
