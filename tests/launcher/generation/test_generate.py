"""Generating above a decoder that is a table: seeds, speculation, limits, ends, and all is given back."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.errors import ConfigError, ShardrunError
from launcher.generation.engine import Engine
from launcher.generation.generate import Manner, generate
from launcher.generation.options import GENERATE, GenerateOptions, options_of
from launcher.generation.sample import Done, Token
from launcher.generation.text.tokenizer import Tokenizer
from ranks.tokens.sampling import UNITS, Candidates, candidates, top, uniform
from ranks.tokens.scores import Scores
from tests.launcher.generation import tokenizers_made
from tests.launcher.generation.table import VOCABULARY, TableDecoder

PROMPT = [3, 17, 5, 30, 5, 9]
RANDOM = {"temperature": 1.5, "top_p": 0.95, "seed": 11}


def ids(decoder: TableDecoder, **options: Any) -> list[list[int]]:
    found = [item.ids for item in generate(decoder, PROMPT, **{"max_new_tokens": 30, **options}).finish()]
    assert decoder.open == 0
    return found


def logits(prompt: list[int]) -> Any:
    return TableDecoder().sequence().step(np.array(prompt))[0]


@pytest.mark.parametrize(
    "options", [{}, RANDOM, {**RANDOM, "repetition_penalty": 1.3, "frequency_penalty": 0.4}]
)
@pytest.mark.parametrize(
    "other", [{"chunk": 1}, {"chunk": 4}, {"speculate": 1}, {"speculate": 7, "chunk": 2}]
)
def test_the_text_is_the_same(options: dict[str, Any], other: dict[str, Any]) -> None:
    assert ids(TableDecoder(), **options) == ids(TableDecoder(), **options, **other)


@pytest.mark.parametrize("noise", [0.0, 0.05, 5.0])
def test_a_draft_changes_no_greedy_text(noise: float) -> None:
    decoder, draft = TableDecoder(), TableDecoder(noise=noise)
    found = ids(decoder, speculate=4, draft=draft, no_repeat_ngram=4)
    assert found == ids(TableDecoder(), no_repeat_ngram=4) and draft.open == 0
    if not noise:
        decoder = TableDecoder()
        assert ids(decoder, speculate=4, draft=draft) and decoder.steps <= 8


def test_lookup_saves_steps() -> None:
    """A greedy table repeats itself soon."""
    plain, guessed = TableDecoder(), TableDecoder()
    assert ids(plain, max_new_tokens=100) == ids(guessed, max_new_tokens=100, speculate=9)
    assert plain.steps == 100 and guessed.steps < 70 and guessed.longest <= 10


def test_a_draft_keeps_the_distribution() -> None:
    """Of the first two tokens, over many seeds: the second is the first one that a guess is checked for."""
    rounds = 3000
    draft = TableDecoder(seed=5)
    options = {"temperature": 1.0, "top_k": 6, "max_new_tokens": 2}
    drawn = Counter(
        tuple(generate(TableDecoder(), PROMPT, seed=seed, speculate=2, draft=draft, **options).ids)
        for seed in range(rounds)
    )
    settled = GenerateOptions(temperature=1.0, top_k=6)
    chance = {}
    first = candidates(logits(PROMPT), settled).spread(VOCABULARY)
    for one in np.flatnonzero(first):
        second = candidates(logits([*PROMPT, int(one)]), settled).spread(VOCABULARY)
        chance |= {(int(one), int(two)): first[one] * second[two] for two in np.flatnonzero(second)}
    assert set(drawn) <= set(chance)
    statistic = sum((drawn[pair] - rounds * p) ** 2 / (rounds * p) for pair, p in chance.items())
    freedom = len(chance) - 1
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5  # of chi-squared


def test_seeds() -> None:
    whole = ids(TableDecoder(), **RANDOM, samples=3)
    assert len({tuple(item) for item in whole}) == 3
    assert ids(TableDecoder(), **RANDOM) == whole[:1]
    assert ids(TableDecoder(), **{**RANDOM, "seed": 12}) != whole[:1]
    assert ids(TableDecoder(), **{**RANDOM, "max_new_tokens": 7}) == [whole[0][:7]]
    fresh = [generate(TableDecoder(), PROMPT, samples=2) for _ in range(2)]
    assert fresh[0].options.seed != fresh[1].options.seed and fresh[0].options.temperature == 1


def test_numbers_are_uniform_and_apart() -> None:
    keys = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (2**64 - 1, 0, 0, 0)]
    assert len({uniform(*key) for key in keys}) == len(keys)
    numbers = [uniform(7, 0, position) for position in range(4000)]
    assert abs(np.mean(numbers) - 0.5) < 0.02 and abs(np.var(numbers) - 1 / 12) < 0.01


@pytest.mark.parametrize("size", [1, 5, 127, 128, 129, 1000, 40_000])
def test_picking_follows_running_sums(size: int) -> None:
    weights = np.rint(np.random.default_rng(size).random(size).astype(np.float32) * UNITS)
    weights[size // 2 :: 3] = 0
    if not weights.any():
        weights[0] = 1
    sums = np.cumsum(weights, dtype=np.float64)
    found = Candidates(None, weights)
    for number in (0.0, 0.1, 0.5, 0.77, 0.999999, np.nextafter(1, 0)):
        token = found.pick(number)
        assert weights[token] > 0
        aim = number * sums[-1]
        assert sums[token] >= aim * (1 - 1e-6) and sums[token] - weights[token] <= aim * (1 + 1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0, 30.0])
@pytest.mark.parametrize("count", [1, 50, 900, 5000])
def test_large_vocabularies(scale: float, count: int) -> None:
    """The quick ways leave what sorting all leaves."""
    row = (np.random.default_rng(count).standard_normal(32_000) * scale).astype(np.float32)
    order = np.argsort(-row, kind="stable")
    assert (top(row, count) == order[:count]).all()
    probabilities = np.exp(row.astype(np.float64) - row.max())
    probabilities /= probabilities.sum()
    sums = np.cumsum(probabilities[order])
    kept = candidates(row, GenerateOptions(temperature=1.0, top_p=0.9)).ids
    assert kept is not None
    assert abs(len(kept) - (int(np.searchsorted(sums, 0.9)) + 1)) <= 1 and set(kept) <= set(
        order[: len(kept)]
    )
    best = candidates(row, GenerateOptions(temperature=1.0, top_k=count)).ids
    assert best is not None and set(best) >= set(order[:count]) and (len(best) == count or not scale)


def test_penalties_on_what_was_generated() -> None:
    row = logits(PROMPT)
    best = int(row.argmax())
    assert ids(TableDecoder(), max_new_tokens=1) == [[best]]
    assert ids(TableDecoder(), max_new_tokens=1, logit_bias={best: -100}) != [[best]]
    assert ids(TableDecoder(), max_new_tokens=1, logit_bias={8: 100}) == [[8]]
    # The prompt does not count: only what was generated is made less likely.
    repeated = ids(TableDecoder(), presence_penalty=100.0, max_new_tokens=VOCABULARY)[0]
    assert sorted(repeated) == list(range(VOCABULARY))
    assert ids(TableDecoder(), frequency_penalty=100.0, max_new_tokens=VOCABULARY)[0] == repeated
    assert ids(TableDecoder(), frequency_penalty=0.01, logit_bias={8: 100}, max_new_tokens=4) == [[8] * 4]


def test_log_probabilities() -> None:
    """Of the model's own logits, whatever is done to choose a token."""
    found = generate(TableDecoder(), PROMPT, max_new_tokens=3, logprobs=4, logit_bias={8: 100}).finish()[0]
    assert found.ids == [8] * 3 and found.logprobs is not None and found.top is not None
    for place, (value, best) in enumerate(zip(found.logprobs, found.top, strict=True)):
        row = logits([*PROMPT, *found.ids[:place]]).astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert value == pytest.approx(expected[8], abs=1e-5)
        order = np.argsort(-expected)[:4]
        assert [token for token, _ in best] == order.tolist()
        assert [log for _, log in best] == pytest.approx(expected[order], abs=1e-5)
    assert Scores(logits(PROMPT)).logs().dtype == np.float32


def test_ends() -> None:
    whole = ids(TableDecoder(), **RANDOM)[0]
    end = whole[8]
    first = whole.index(end)
    found = generate(TableDecoder(), PROMPT, manner=Manner(ends=(end,)), **RANDOM).finish()[0]
    assert found.ids == whole[: first + 1] and found.reason == "end" and found.text is None
    again = generate(TableDecoder(), PROMPT, stop_ids=[end], max_new_tokens=30, **RANDOM).finish()[0]
    assert again == found
    more = generate(
        TableDecoder(), PROMPT, manner=Manner(ends=(end,)), ignore_eos=True, max_new_tokens=30, **RANDOM
    ).finish()[0]
    assert more.ids == whole and more.reason == "length"
    later = generate(TableDecoder(), PROMPT, stop_ids=[end], min_new_tokens=20, max_new_tokens=30, **RANDOM)
    assert end not in later.ids[:20] and len(later.ids) > 20


def test_events_and_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    decoder = TableDecoder(vocabulary=tokenizer.size)
    bias = dict.fromkeys(tokenizer.ids("abc"), 50.0)
    made = generate(
        decoder,
        PROMPT,
        tokenizer=tokenizer,
        logit_bias=bias,
        samples=2,
        max_new_tokens=12,
        seed=2,
        temperature=2,
    )
    events = list(made)
    for sample in range(2):
        own = [event for event in events if event.sample == sample]
        assert isinstance(own[-1], Done) and all(isinstance(event, Token) for event in own[:-1])
        whole = own[-1].completion
        assert "".join(event.text for event in own) == whole.text == tokenizer.text(whole.ids)
        assert [event.id for event in own[:-1] if isinstance(event, Token)] == whole.ids and len(
            whole.ids
        ) == 12
    assert made.tokens == 24 and decoder.open == 0
    text = str(made.completions[0].text)
    stop = text[5:8]
    cut = generate(
        decoder,
        PROMPT,
        tokenizer=tokenizer,
        logit_bias=bias,
        stop=stop,
        max_new_tokens=12,
        seed=2,
        temperature=2,
    ).finish()[0]
    assert cut.reason == "stop" and cut.text == text[: text.index(stop)] and len(cut.ids) < 12
    best = generate(decoder, PROMPT, tokenizer=tokenizer, logit_bias=bias, stop=["b"], beams=3, returned=3)
    assert all("b" not in str(item.text) for item in best.finish()) and decoder.open == 0


@pytest.mark.parametrize("options", [{}, {"speculate": 2}, {"beams": 2}, {"samples": 2, **RANDOM}])
def test_a_text_goes_on_with_its_space(tmp_path: Path, options: dict[str, Any]) -> None:
    """Prompt and text together are what the tokenizer makes of all ids; an answer to messages begins anew."""
    tokenizer = Tokenizer(tokenizers_made.byte_fallback(tmp_path / "tokenizer.json"))
    decoder = TableDecoder(vocabulary=tokenizer.size)
    bias = {token: 50.0 for word in ("▁dog", "▁fox") if (token := tokenizer.id_of(word)) is not None}
    more: dict[str, Any] = {"tokenizer": tokenizer, "logit_bias": bias, "max_new_tokens": 5, **options}
    prompt = tokenizer.ids("The quick")
    for item in generate(decoder, "The quick", **more).finish():
        assert item.text == tokenizer.text([*prompt, *item.ids]).removeprefix("The quick")
        assert str(item.text).startswith(" ")
    cut = generate(decoder, prompt, stop=[" "], **more).finish()[0]
    assert (cut.text, cut.reason, len(cut.ids)) == ("", "stop", 1)
    for item in generate(decoder, "The quick", special=False, **more).finish():
        assert item.text == tokenizer.text(item.ids)
    if not {"speculate", "beams"} & set(options):
        with Engine(decoder, tokenizer=tokenizer) as engine:
            streams = [
                engine.submit("The quick", special=special, **_of_engine(more)) for special in (True, False)
            ]
            for stream, first in zip(streams, (" ", ""), strict=True):
                assert stream.goes_on == bool(first)
                for item in stream.finish():
                    assert item.text == first + tokenizer.text(item.ids)


def _of_engine(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "tokenizer"}


@pytest.mark.parametrize("options", [RANDOM, {"speculate": 2, **RANDOM}])
def test_a_special_token_as_stop_text(tmp_path: Path, options: dict[str, Any]) -> None:
    """It is in no text, but whoever writes it means it."""
    tokenizer = Tokenizer(tokenizers_made.byte_level(tmp_path / "tokenizer.json"))
    mark = tokenizer.id_of(tokenizers_made.END)
    assert mark is not None
    more: dict[str, Any] = {
        "tokenizer": tokenizer, "max_new_tokens": 30,
        "logit_bias": dict.fromkeys([*tokenizer.ids("abc"), mark], 50.0), **options,
    }  # fmt: skip
    decoder = TableDecoder(vocabulary=tokenizer.size)
    whole = generate(decoder, PROMPT, **more).finish()[0]
    place = whole.ids.index(mark)
    assert 0 < place < 29 and tokenizers_made.END not in str(whole.text)
    cut = generate(decoder, PROMPT, stop=["abcabcabc", tokenizers_made.END], **more).finish()[0]
    assert (cut.reason, cut.ids) == ("stop", whole.ids[: place + 1])
    assert cut.text == tokenizer.text(whole.ids[:place])


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    decoder = TableDecoder()
    with generate(decoder, PROMPT, max_new_tokens=1000) as made:
        assert decoder.steps == 0
        for _ in range(5):
            next(made)
        assert decoder.steps == 5 and decoder.open == 1
    assert decoder.open == 0
    with pytest.raises(StopIteration):
        next(made)


@pytest.mark.parametrize("options", [{}, {"samples": 3}, {"beams": 3}, {"speculate": 3}])
def test_an_error_in_the_model_gives_all_back(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = TableDecoder()

    def lost(sequences: Any, given: Any) -> Any:
        raise ShardrunError("rank 1 was lost")

    decoder.last[:, :] = np.nan if options == {"speculate": 3} else decoder.last
    if options == {}:
        decoder.last[:, 0] = np.inf
    monkeypatch.setattr(decoder, "step_many", lost)
    with pytest.raises(ShardrunError, match=r"rank 1 was lost|not finite"):
        generate(decoder, PROMPT, **options).finish()
    assert decoder.open == 0


def test_contexts() -> None:
    for more in ({}, {"speculate": 8}, {"beams": 2}, {"speculate": 8, "draft": TableDecoder(context=12)}):
        decoder = TableDecoder(context=20)
        made = generate(decoder, PROMPT, max_new_tokens=500, **more)
        assert len(made.ids) == 14 and made.completions[0].reason == "length"
    with pytest.raises(
        ConfigError, match=r"the prompt has 20 tokens, but the model's context holds 20, and one"
    ):
        generate(TableDecoder(context=20), [1] * 20)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has no token"),
        ([1, 40], "the prompt holds the token 40, but the model's vocabulary has the ids 0 to 39"),
        ([-1], "the prompt holds the token -1"),
        ([2**70], "whole numbers in one row"),
        ([1.5], "whole numbers in one row"),
        ([[1], [2, 3]], "whole numbers in one row"),
        ("text", "the prompt is text, but there is no tokenizer"),
        (None, "there is no prompt"),
    ],
)
def test_wrong_prompts(prompt: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        generate(TableDecoder(), prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "there is no option 'temprature' of generating; did you mean 'temperature'?"),
        ({"temperature": -1}, "temperature: expected a number from 0 to 100, found -1"),
        ({"temperature": float("nan")}, "temperature: expected"),
        ({"top_p": 0}, "top_p: expected a number above 0 up to 1, found 0"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected a whole number from 1"),
        ({"max_new_tokens": True}, "max_new_tokens: expected a whole number from 1"),
        ({"logit_bias": {40: 1.0}}, "logit_bias: there is no token 40"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias: expected token ids as keys"),
        ({"stop": [""]}, "stop: expected a list of texts, none of them empty"),
        ({"stop": "x"}, "stop: a stop text is looked for in text, but there is no tokenizer"),
        ({"stop_ids": [99]}, "the token 99 shall end the text"),
        ({"suppressed": list(range(TableDecoder().vocabulary))}, "suppressed: these are all tokens"),
        ({"beams": 2, "samples": 2}, "samples and beams exclude each other"),
        ({"beams": 2, "speculate": 2}, "beams and speculate exclude each other"),
        ({"beams": 2, "returned": 3}, "returned: 3 texts are asked of a search of 2 beams"),
        ({"draft": TableDecoder()}, "give `speculate`"),
        ({"inputs": {"x": np.ones(1)}}, "the model has no encoder"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        generate(TableDecoder(), PROMPT, **options)


def test_a_folder_has_the_last_word_only_where_nobody_speaks() -> None:
    folder = {"do_sample": True, "temperature": 0.7, "top_k": 5, "beams": 3}
    asked = options_of(None, {}).filled({**folder, "beams": None})
    assert (asked.temperature, asked.top_k) == (0.7, 5)
    assert options_of(None, {"temperature": 0.0}).filled({**folder, "beams": None}).greedy
    assert options_of(None, {}).filled(folder).beams == 3 and options_of(None, {}).filled(folder).greedy
    assert options_of(None, {"temperature": 0.5}).filled(folder).beams is None
    assert options_of(None, {"top_p": 0.5}).filled({"temperature": 0.7}).temperature == 0.7
    assert options_of(None, {}).filled({"temperature": 0.7, "top_k": 50}).greedy
    assert all(option.kind.expected and option.help for option in GENERATE.values())
