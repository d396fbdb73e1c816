"""Texts of ranks that have logits in parts, of which only the best travel: those of plain ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sharding
from launcher.generation.decoder import Ids, Logits, step_each
from launcher.generation.model import of_ranks
from launcher.generation.scoring import alike, probing
from launcher.generation.stateful import StatefulDecoder
from launcher.group.led import LedModel, lead_models
from ranks.run import executor
from ranks.tokens.draws import Draw
from ranks.tokens.sampling import uniform
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Ask, Want
from tests.launcher.generation import tiny
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

PROMPT, COUNT = [5, 66, 7, 123, 9, 40, 41], 12
PART = tiny.VOCABULARY // 2
Work = Callable[[LedModel], Any]


class PlainSequence:
    """The whole model in plain ONNX Runtime, every token anew."""

    def __init__(self, plain: tiny.Plain, ids: Sequence[int] = ()) -> None:
        self._plain, self._ids = plain, list(ids)

    @property
    def length(self) -> int:
        return len(self._ids)

    def step(self, ids: Ids, *, every: bool = False) -> Logits:
        self._ids += ids.tolist()
        rows = self._plain.logits(self._ids)
        return np.asarray(rows[-len(ids) :] if every else rows[-1:], np.float32)

    def rewind(self, length: int) -> None:
        del self._ids[length:]

    def fork(self) -> PlainSequence:
        return PlainSequence(self._plain, self._ids)

    def close(self) -> None: ...


class PlainDecoder:
    context, rewinds, encoder_inputs = tiny.CONTEXT, True, ()

    def __init__(self, path: Path) -> None:
        self._plain = tiny.Plain(path)
        self.vocabulary = self._plain.logits([1]).shape[-1]

    def sequence(self, inputs: Any = None) -> PlainSequence:
        return PlainSequence(self._plain)

    def step_many(self, sequences: Any, ids: Ids) -> list[Logits]:
        return step_each(sequences, ids)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_decoder(tmp_path_factory.mktemp("parted") / "model.onnx")


@pytest.fixture(scope="module")
def slices(path: Path) -> Path:
    sharding.slice_model(path, 2, path.with_name("slices"))
    return path.with_name("slices")


def led(slices: Path, work: Work, ranks: int = 2) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """What a work gave on led ranks, and what the last one was asked to exchange meanwhile."""

    def run(rank: FakeCommunicator) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
        model = executor.load(slices / f"rank_{rank.rank}.onnx", communicator=rank, threads=1)
        rank.calls.clear()
        return lead_models(rank, [model], lambda models: work(models[0])), list(rank.calls)

    found = on_ranks(ranks, run)
    return found[0][0], found[-1][1]


def wholes(calls: list[tuple[str, tuple[int, ...]]]) -> int:
    """How often logits were gathered."""
    return sum(call == "all_gather" and shape[-1] == PART for call, shape in calls)


def finished(completions: Any) -> list[Any]:
    return [(item.ids, item.reason) for item in completions]


GIVEN: list[dict[str, Any]] = [
    {},
    {"chunk": 2},
    {"repetition_penalty": 1.4, "suppressed": [3, 150, 303]},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.95},
    {"temperature": 1.2, "top_k": 9, "samples": 3, "presence_penalty": 0.5},
    {"no_repeat_ngram": 2, "logit_bias": {7: 2.5}},
    {"logprobs": 3},
    {"temperature": 1.2, "top_k": 9, "samples": 2, "logprobs": 0},
    {"beams": 3},
    {"beams": 4, "returned": 2, "repetition_penalty": 1.3, "length_penalty": 0.5, "stop_ids": [9]},
    {"speculate": 3},
    {"speculate": 4, "repetition_penalty": 1.4},
    {"speculate": 4, "no_repeat_ngram": 2},
    {"temperature": 1.3},
    {"temperature": 1.5, "top_p": 0.9, "repetition_penalty": 1.4, "suppressed": [3, 150, 303]},
    {"temperature": 1.2, "min_p": 0.02, "samples": 3, "presence_penalty": 0.5},
    {"temperature": 0.8, "top_p": 0.8, "min_p": 0.01, "samples": 2, "logprobs": 3, "chunk": 3},
    {"temperature": 1.3, "top_p": 0.95, "speculate": 3, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_no_logits_travel(path: Path, slices: Path, given: dict[str, Any]) -> None:
    options = {"max_new_tokens": COUNT, "ignore_eos": "stop_ids" not in given, "seed": 5, **given}
    want = of_plain(path).generate(PROMPT, **options).finish()

    def work(model: LedModel) -> Any:
        return model.generate(PROMPT, **options).finish()

    found, calls = led(slices, work)
    assert finished(found) == finished(want)
    assert calls and not wholes(calls)
    for one, other in zip(found, want, strict=True):
        if "logprobs" in given:
            assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)
            assert [[k for k, _ in row] for row in one.top] == [[k for k, _ in row] for row in other.top]
        if "beams" in given:
            assert np.isclose(one.score, other.score, atol=1e-4)


def of_plain(path: Path) -> Any:
    from launcher.generation.model import LanguageModel

    return LanguageModel(PlainDecoder(path))


def test_where_all_logits_are_needed_they_come(path: Path, slices: Path) -> None:
    options: dict[str, Any] = {"max_new_tokens": COUNT, "ignore_eos": True, "seed": 2}
    options |= {"temperature": 1.3, "top_k": 90}
    want = of_plain(path).generate(PROMPT, **options).finish()
    found, calls = led(slices, lambda model: model.generate(PROMPT, **options).finish())
    assert finished(found) == finished(want) and wholes(calls) == COUNT


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_seed_gives_one_text_on_any_number_of_ranks(
    tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "VOCABULARY", 312)
    path = tiny.save_decoder(tmp_path / "model.onnx")
    sharding.slice_model(path, ranks, tmp_path / "slices")
    given: list[dict[str, Any]] = [
        {"temperature": 1.4, "samples": 2},
        {"temperature": 1.4, "top_p": 0.9, "repetition_penalty": 1.2},
        {"temperature": 1.4, "min_p": 0.01, "logprobs": 1},
    ]
    given = [{"max_new_tokens": COUNT, "ignore_eos": True, "seed": 8, **more} for more in given]
    found, calls = led(
        tmp_path / "slices",
        lambda model: [model.generate(PROMPT, **options).finish() for options in given],
        ranks,
    )
    assert not [one for one in calls if one[1][-1] == 312 // ranks]
    for options, completions in zip(given, found, strict=True):
        assert finished(completions) == finished(of_plain(path).generate(PROMPT, **options).finish())


@pytest.mark.parametrize("more", [{}, {"top_p": 0.9}, {"min_p": 0.02}], ids=str)
def test_tokens_come_as_often_as_plain_onnx_runtime_says(
    path: Path, slices: Path, more: dict[str, Any]
) -> None:
    """Chi-squared over what one step of the ranks draws by many random numbers."""
    rounds, heat = 20_000, 30.0
    numbers = tuple(uniform(1, sample, 0) for sample in range(rounds))
    ask = Ask("logits", tiny.VOCABULARY, [Want(0, draw=Draw(heat, numbers, **more))])

    def work(model: LedModel) -> Any:
        with model.session() as session:
            [scores] = ask.read(session.step({"input_ids": np.array([PROMPT])}, ask)) or []
        return scores.drawn

    found, calls = led(slices, work)
    assert not wholes(calls) and set(found) == set(numbers)
    row = tiny.Plain(path).logits(PROMPT)[-1].astype(np.float64) / heat
    chances = np.exp(row - row.max())
    likely = chances >= more.get("min_p", 0)
    chances /= chances.sum()
    order = np.argsort(-chances)
    likely[order[np.cumsum(chances[order]) - chances[order] >= more.get("top_p", 1)]] = False
    chances[~likely] = 0
    chances /= chances.sum()
    drawn = np.bincount(list(found.values()), minlength=tiny.VOCABULARY)
    assert not drawn[chances == 0].any()
    often = rounds * chances >= 5
    expected = np.append(rounds * chances[often], rounds * chances[~often].sum() or 1)
    found_often = np.append(drawn[often], drawn[~often].sum() or expected[-1])
    statistic = float(((found_often - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert freedom > 20 and abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_an_engine_of_texts_of_all_kinds(path: Path, slices: Path) -> None:
    asked = [(PROMPT[k % 3 :], {"max_new_tokens": 6, "ignore_eos": True, "seed": k, **given})
             for k, given in enumerate(GIVEN) if not {"beams", "speculate"} & set(given)]  # fmt: skip

    def work(model: LedModel) -> Any:
        loaded = of_ranks(model)
        with loaded.engine(sequences=12) as engine:
            # The first batch of different lengths is computed alone, too.
            streams = [engine.submit(prompt, **options) for prompt, options in asked]
            found = [stream.finish() for stream in streams]
        assert isinstance(loaded.decoder, StatefulDecoder) and engine.steps
        return found

    found, calls = led(slices, work)
    for (prompt, options), completions in zip(asked, found, strict=True):
        assert finished(completions) == finished(of_plain(path).generate(prompt, **options).finish())
    assert not wholes(calls)


TAILS: dict[str, list[str]] = {
    "to half": ["logits = Cast<to = 10>(z)"],
    "from half": [
        "logits = Cast<to = 1>(z)",
    ],
    "scale": ["logits = Mul(z, scale)"],
    "scale from half": ["y = Mul(z, half_scale)", "logits = Cast<to = 1>(y)"],
    "soft cap": ["y = Div(z, cap)", "x = Tanh(y)", "logits = Mul(x, cap)"],
    "soft cap from half": [
        "y = Cast<to = 1>(z)", "x = Div(y, cap)", "w = Tanh(x)", "logits = Mul(cap, w)",
    ],
    "bias": ["logits = Add(bias, z)"],
    "words that are none": ["logits = Where(words, z, least)"],
    "clipped": ["logits = Clip(z, least, most)"],
}  # fmt: skip
"""What follows the head."""


def save_with_tail(path: Path, folder: Path, tail: str) -> Path:
    """The decoder with another head: ``z`` is what its product gives."""
    model, random = onnx.load(path), np.random.default_rng(3)
    head = next(weight for weight in model.graph.initializer if weight.name == "head")
    product = model.graph.node[-1]
    product.output[0] = "z"
    if "from half" in tail:
        model.graph.node.insert(
            len(model.graph.node) - 1, helper.make_node("Cast", [product.input[0]], ["hidden"], to=10)
        )
        model.graph.node[-1].input[0] = "hidden"
        values = numpy_helper.to_array(head).astype(np.float16)
        head.CopyFrom(numpy_helper.from_array(values, head.name))
    constants = {
        "scale": np.float32(0.37), "half_scale": np.float16(0.25), "cap": np.float32(60.0),
        "least": np.float32(-1e4), "most": np.float32(1e4),
        "bias": random.standard_normal(tiny.VOCABULARY).astype(np.float32),
        "words": random.random(tiny.VOCABULARY) < 0.7,
    }  # fmt: skip
    for line in TAILS[tail]:
        node = onnx.parser.parse_node(line)
        model.graph.node.append(node)
        for name in set(node.input) & set(constants):
            if name not in {weight.name for weight in model.graph.initializer}:
                model.graph.initializer.append(numpy_helper.from_array(np.array(constants[name]), name))
    kind = TensorProto.FLOAT16 if tail == "to half" else TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.elem_type = kind
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("tail", TAILS)
def test_no_logits_travel_where_something_follows_the_head(tmp_path: Path, path: Path, tail: str) -> None:
    """Of half precision, several logits are equal."""
    model = save_with_tail(path, tmp_path, tail)
    sharding.slice_model(model, 2, tmp_path / "slices")
    for more in ({}, {"temperature": 1.3, "top_k": 7}):
        options: dict[str, Any] = {"max_new_tokens": COUNT, "ignore_eos": True, "seed": 1, "logprobs": 2}
        options |= more
        want = of_plain(model).generate(PROMPT, **options).finish()

        def work(model: LedModel, given: dict[str, Any] = options) -> Any:
            return model.generate(PROMPT, **given).finish()

        found, calls = led(tmp_path / "slices", work)
        assert finished(found) == finished(want) and not wholes(calls)


def test_rows_of_a_batch_are_compared_by_the_logits_that_both_tell() -> None:
    size = 400
    row = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    row[:7] = -np.inf  # words that are none
    wants = probing([Want(2), Want(0, draw=Draw(1.0, (0.3,))), None], size)
    assert wants[2] is None

    def told(want: Want | None, change: float = 0.0) -> Scores:
        """What ranks tell of a row, other than by so much everywhere."""
        values = row + np.float32(change)
        if want is None:
            return Scores(values)
        ids = np.union1d(want.also, np.argsort(values)[-want.room :])
        return Scores(values[ids], ids)

    for want, other in itertools.product(wants, wants):
        assert alike([told(want)], [told(other)])
        assert not alike([told(want), told(want, 0.2)], [told(want), told(other)])
        assert not alike([told(want, np.nan)], [told(other)])
