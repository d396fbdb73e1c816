"""Text from real ranks: plain ONNX Runtime's tokens, state forgotten and copied, and every way to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launcher
from launcher import Group
from launcher.errors import ConfigError, RankFailedError
from launcher.generation.model import LanguageModel
from launcher.generation.stateful import StatefulDecoder, program_of
from launcher.group.answers import PredictError
from tests.launcher.generation import tiny
from tests.launcher.processes import Runner

PROMPT = [5, 66, 7, 123, 9, 40, 41]


@pytest.mark.parametrize(
    "options",
    [{}, {"chunk": 1}, {"chunk": 3}, {"speculate": 4}, {"beams": 1}, {"samples": 2, "top_k": 1}],
    ids=str,
)
def test_greedy_tokens_are_those_of_plain_onnx_runtime(
    model: LanguageModel, plain: tiny.Plain, options: dict[str, Any]
) -> None:
    for prompt in (PROMPT, PROMPT[:1]):
        expected = plain.greedy(prompt, 40)
        for found in model.generate(prompt, max_new_tokens=40, ignore_eos=True, **options).finish():
            assert found.ids == expected


def test_logits_after_forgetting_and_copying(model: LanguageModel, plain: tiny.Plain) -> None:
    whole = plain.logits(PROMPT)
    sequence = model.decoder.sequence()
    found = sequence.step(np.array(PROMPT), every=True)
    assert np.abs(found - whole).max() < 1e-4 * np.abs(whole).max()
    sequence.rewind(4)
    twin = sequence.fork()
    sequence.step(np.array([11, 12]))
    assert (sequence.length, twin.length) == (6, 4)
    assert np.abs(twin.step(np.array(PROMPT[4:])) - whole[-1:]).max() < 1e-4 * np.abs(whole).max()
    other = plain.logits([*PROMPT[:4], 11, 12, 13])
    assert np.abs(sequence.step(np.array([13])) - other[-1:]).max() < 1e-4 * np.abs(other).max()
    sequence.rewind(0)
    assert np.abs(sequence.step(np.array(PROMPT)) - whole[-1:]).max() < 1e-4 * np.abs(whole).max()
    with pytest.raises(ConfigError, match="a sequence of 7 tokens cannot be rewound to 8"):
        sequence.rewind(8)
    twin.close()
    sequence.close()


def test_the_seed_decides_on_any_number_of_ranks(model: LanguageModel, folder: Path) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 5, "max_new_tokens": 20}
    found = model.generate("The quick", **options).text
    assert (
        found and found == launcher.generate(folder, "The quick", ranks=1, launcher="local", **options).text
    )


def test_a_graph_without_state(folder: Path, tmp_path: Path, plain: tiny.Plain) -> None:
    """A plain file, token ids, and no folder around it."""
    path = tiny.save_decoder(tmp_path / "whole.onnx", cache=False)
    with launcher.start(path, ranks=2, launcher="local", threads=1) as group:
        made = launcher.generate(group, PROMPT, max_new_tokens=12, speculate=2)
        assert made.ids == plain.greedy(PROMPT, 12) and made.completions[0].text is None
        assert launcher.generate(group, PROMPT, max_new_tokens=12, beams=2).ids


def test_chat_and_text(model: LanguageModel) -> None:
    made = model.chat("The dog", max_new_tokens=5)
    assert model.tokenizer is not None
    assert model.tokenizer.text(made.prompt) == "user: The dog\nassistant:"
    assert made.text == "".join(event.text for event in model.chat("The dog", max_new_tokens=5))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            [1, tiny.VOCABULARY],
            f"the token {tiny.VOCABULARY}, but the model's vocabulary has the ids 0 to 303",
        ),
        ([1] * tiny.CONTEXT, f"the prompt has {tiny.CONTEXT} tokens, but the model's context holds 96"),
        ("", "the prompt has no token"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_wrong_prompts_leave_the_model_usable(
    model: LanguageModel, plain: tiny.Plain, prompt: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        model.generate(prompt)
    assert model.generate(PROMPT, max_new_tokens=3).ids == plain.greedy(PROMPT, 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((0, 3), "GroupQueryAttention would end"), ((1, 0), "total_sequence_length must be positive")],
)
def test_a_step_of_no_tokens_ends_no_rank(
    model: LanguageModel, plain: tiny.Plain, shape: tuple[int, ...], message: str
) -> None:
    ids = {"input_ids": np.zeros(shape, np.int64)}
    assert isinstance(model.decoder, StatefulDecoder) and isinstance(model.decoder.later.group, Group)
    group = model.decoder.later.group
    with group.session() as session, pytest.raises(PredictError, match=message):
        session.predict(ids)
    given = [spec for spec in group.inputs if spec.name != "input_ids"]
    empty = {}
    for spec in given:
        fixed = [dim if isinstance(dim, int) else 0 for dim in spec.shape[1:]]
        empty[spec.name] = np.zeros((shape[0], *fixed), spec.dtype)
    with pytest.raises(PredictError, match=message):
        group.predict({**ids, **empty})
    assert model.generate(PROMPT, max_new_tokens=3).ids == plain.greedy(PROMPT, 3)


@pytest.mark.parametrize("before", [0, 2])
def test_a_mask_reaches_no_further_than_its_sequence(model: LanguageModel, before: int) -> None:
    # Attention over a buffer would read what lies behind: another sequence's, or nothing at all.
    ids = {"input_ids": np.array([[5, 6]])}
    assert isinstance(model.decoder, StatefulDecoder) and isinstance(model.decoder.later.group, Group)
    with model.decoder.later.group.session() as session:
        for _ in range(before):
            session.predict({"input_ids": np.array([[5]])})
        message = f"'attention_mask' has 9 positions, but with this step the sequence has {before + 2}"
        with pytest.raises(PredictError, match=message):
            session.predict({**ids, "attention_mask": np.ones((1, 9), np.int64)})
        masked = session.predict({**ids, "attention_mask": np.ones((1, before + 2), np.int64)})
        session.rewind(before)
        assert np.array_equal(session.predict(ids)["logits"], masked["logits"])


def test_ctrl_c_in_the_middle_leaves_the_model_usable(model: LanguageModel, plain: tiny.Plain) -> None:
    assert isinstance(model.decoder, StatefulDecoder)
    made = model.generate(PROMPT, max_new_tokens=80, ignore_eos=True)
    next(made)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in made:
            time.sleep(0.01)
        time.sleep(5)
    made.close()
    assert model.generate(PROMPT, max_new_tokens=5).ids == plain.greedy(PROMPT, 5)


def test_a_slow_reader_is_waited_for(model: LanguageModel, plain: tiny.Plain) -> None:
    """Two texts at once do not mix."""
    first, second = (model.generate(PROMPT[k:], max_new_tokens=6) for k in range(2))
    found: tuple[list[int], list[int]] = ([], [])
    for one, two in zip(first, second, strict=True):
        time.sleep(0.05)
        for kept, event in zip(found, (one, two), strict=True):
            kept.extend([event.id] if hasattr(event, "id") else [])
    assert found == (plain.greedy(PROMPT, 6), plain.greedy(PROMPT[1:], 6))


def test_a_killed_rank_ends_the_stream_with_the_first_cause(folder: Path) -> None:
    with launcher.start(folder / "model.onnx", ranks=2, launcher="local", threads=1) as group:
        decoder = StatefulDecoder(program_of(group), context=tiny.CONTEXT)
        streams = [launcher.generate(decoder, PROMPT, max_new_tokens=80, samples=k) for k in (1, 2)]
        for made in streams:
            next(made)
        os.kill(group.stats[1].pid, signal.SIGKILL)
        for made in streams:
            with pytest.raises(RankFailedError, match=r"rank 1 on host .*SIGKILL"):
                made.finish()
            with pytest.raises(StopIteration):
                next(made)


def test_a_generation_by_path_ends_its_ranks(folder: Path, run_script: Runner) -> None:
    """When it is closed early, and where the script is interrupted in the middle."""
    script = run_script(
        """
        import sys
        import time
        import launcher
        folder = sys.argv[1]
        options = dict(ranks=2, launcher="local", threads=1, max_new_tokens=60, ignore_eos=True)
        with launcher.generate(folder, [5, 6], **options) as made:
            next(made)
        made = launcher.generate(folder, [5, 6], **options)
        for event in made:
            print("1", flush=True)
            if made.tokens == 3:
                time.sleep(60)
        """,
        str(folder),
        SHARDRUN_CACHE=str(folder.parent / "cache"),
    )
    assert script.message() == 1
    script.signal_group(signal.SIGINT)
    code, _, errors = script.end(30)
    assert code != 0 and "KeyboardInterrupt" in errors
