"""Tokens that the ranks choose by themselves: those of plain ONNX Runtime, and of steps one by one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import launcher
from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.generation.engine import Engine
from launcher.generation.generate import AHEAD, Generation
from launcher.generation.model import LanguageModel
from launcher.generation.resident import ResidentDecoder, ResidentSequence, decoder_of
from launcher.generation.stateful import program_of
from ranks.tokens.chooser import Chooser
from ranks.tokens.options import SamplingOptions
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import parse_mesh
from tests.launcher.generation import tiny

PROMPT = [5, 66, 7, 123, 9, 40, 41]


class Counted:
    """Counts what a decoder asks of its ranks."""

    def __init__(self, decoder: ResidentDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.runs = 0
        host = type(decoder.host)
        step, run = host.step, host.run  # type: ignore[attr-defined]

        def counted_step(*arguments: Any) -> Any:
            self.steps += 1
            return step(*arguments)

        def counted_run(*arguments: Any) -> Any:
            self.runs += 1
            return run(*arguments)

        monkeypatch.setattr(host, "step", counted_step)
        monkeypatch.setattr(host, "run", counted_run)


@pytest.fixture
def decoder(model: LanguageModel) -> ResidentDecoder:
    assert isinstance(model.decoder, ResidentDecoder)
    return model.decoder


@pytest.fixture
def counted(decoder: ResidentDecoder, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(decoder, monkeypatch)


@pytest.fixture
def sequences(decoder: ResidentDecoder, monkeypatch: pytest.MonkeyPatch) -> list[ResidentSequence]:
    """All that are begun."""
    made: list[ResidentSequence] = []
    real = decoder.sequence

    def sequence(inputs: Any = None) -> Any:
        made.append(real(inputs))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(decoder, "sequence", sequence)
    return made


def test_greedy_tokens_are_those_of_plain_onnx_runtime(
    model: LanguageModel, plain: tiny.Plain, counted: Counted
) -> None:
    assert model.generate(PROMPT, max_new_tokens=80, ignore_eos=True).ids == plain.greedy(PROMPT, 80)
    assert counted.steps == 1 and 1 <= counted.runs <= -(-79 // AHEAD)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"temperature": 0, "no_repeat_ngram": 2, "suppressed": [7, 8]},
        {"temperature": 0, "logit_bias": {3: 2.5, 4: -1e4}},
        {"temperature": 0, "forced_last": [17]},
        {"temperature": 1.0, "samples": 2},
        {"temperature": 1.0, "stop": ["e"]},
    ],
    ids=str,
)
def test_the_same_tokens_as_by_single_steps(
    model: LanguageModel, counted: Counted, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    given = {"max_new_tokens": 40, "ignore_eos": "stop" not in options, "seed": 11, **options}
    found = [(item.ids, item.text, item.reason) for item in model.generate(PROMPT, **given).finish()]
    assert counted.runs or options.get("samples") == 2
    runs = counted.runs
    monkeypatch.setattr(ResidentSequence, "follows", False)
    assert found == [(item.ids, item.text, item.reason) for item in model.generate(PROMPT, **given).finish()]
    assert counted.runs == runs


def test_a_token_that_ends_the_text_ends_the_run(
    model: LanguageModel, plain: tiny.Plain, sequences: list[ResidentSequence], counted: Counted
) -> None:
    whole = plain.greedy(PROMPT, 60)
    place = next(k for k in range(5, 60) if whole[k] not in whole[:k])
    found = model.generate(PROMPT, max_new_tokens=60, ignore_eos=True, stop_ids=[whole[place]]).finish()[0]
    assert found.ids == whole[: place + 1] and found.reason == "end"
    assert sequences[0].length == len(PROMPT) + place and 1 <= counted.runs <= -(-place // AHEAD)


def test_log_probabilities_come_by_single_steps(
    model: LanguageModel, plain: tiny.Plain, counted: Counted
) -> None:
    found = model.generate(PROMPT, max_new_tokens=6, logprobs=2).finish()[0]
    assert counted.runs == 0 and found.ids == plain.greedy(PROMPT, 6)
    assert found.logprobs is not None and len(found.logprobs) == 6


def test_ranks_run_ahead_by_a_few_tokens_only(
    model: LanguageModel, plain: tiny.Plain, sequences: list[ResidentSequence]
) -> None:
    want = plain.greedy(PROMPT, 80)
    with model.generate(PROMPT, max_new_tokens=80, ignore_eos=True) as made:
        got = [next(made).id for _ in range(3)]  # type: ignore[union-attr]
        time.sleep(0.5)  # the ranks have made all the steps that they were told to
        run = sequences[0]._run_of
        assert run is not None and got == want[:3] and len(run.tokens) <= AHEAD - 2  # type: ignore[attr-defined]
        with pytest.raises(ShardrunError, match="is read on by the ranks"):
            sequences[0].step(np.array([1]))
    assert sequences[0].closed
    assert model.generate(PROMPT, max_new_tokens=5).ids == want[:5]


def test_an_ended_run_leaves_the_sequence_where_its_reader_is(
    decoder: ResidentDecoder, plain: tiny.Plain
) -> None:
    want = plain.greedy(PROMPT, 20)
    chooser = Chooser(SamplingOptions(), decoder.vocabulary, np.array(PROMPT), [])
    sequence = decoder.sequence()
    sequence.step(np.array(PROMPT))
    assert isinstance(sequence, ResidentSequence) and sequence.follows
    chooser.read(want[0])
    tokens = sequence.follow(chooser, 15, 8)
    assert [next(tokens) for _ in range(4)] == want[1:5]
    tokens.close()
    assert sequence.length == len(PROMPT) + 4
    logits, whole = sequence.step(np.array(want[4:6])), plain.logits([*PROMPT, *want[:6]])
    assert np.abs(logits - whole[-1:]).max() < 1e-4 * np.abs(whole).max()
    sequence.close()


def test_a_sequence_goes_on_after_a_token_that_cannot_be_chosen(
    decoder: ResidentDecoder, plain: tiny.Plain
) -> None:
    only = tuple(k for k in range(tiny.VOCABULARY) if k not in {8, 10, 11})
    options = SamplingOptions(suppressed=only, no_repeat_ngram=1)
    chooser = Chooser(options, decoder.vocabulary, np.array(PROMPT), [])
    sequence = decoder.sequence()
    first = chooser.choose(sequence.step(np.array(PROMPT))[0])
    chooser.read(first)
    assert isinstance(sequence, ResidentSequence)
    found = []
    with pytest.raises(ShardrunError, match="not finite"):
        for token in sequence.follow(chooser, 9, 9):
            chooser.read(token)
            found.append(token)
    read = [*PROMPT, first, *found[:-1]]
    assert len(found) == 2 and sequence.length == len(read)
    logits, whole = sequence.step(np.array([17])), plain.logits([*read, 17])
    assert np.abs(logits - whole[-1:]).max() < 1e-4 * np.abs(whole).max()
    sequence.close()


def test_other_requests_come_in_between(model: LanguageModel, plain: tiny.Plain, counted: Counted) -> None:
    """Other texts, and other threads' requests to the same ranks."""
    wants = [plain.greedy(PROMPT[k:], 70) for k in range(3)]
    texts = [model.generate(PROMPT[k:], max_new_tokens=70, ignore_eos=True) for k in range(3)]
    found: list[list[int]] = [[], [], []]
    wrong: list[object] = []

    def read(number: int) -> None:
        try:
            found[number] = texts[number].ids
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=read, args=(2,))
    thread.start()
    for one, two in zip(texts[0], texts[1], strict=True):
        for kept, event in zip(found, (one, two), strict=False):
            kept.extend([event.id] if hasattr(event, "id") else [])
    thread.join(60)
    assert wrong == [] and found == wants


def test_a_token_that_cannot_be_chosen(model: LanguageModel, plain: tiny.Plain, counted: Counted) -> None:
    """Rank 0 alone finds it out; the group is still good."""
    only = [k for k in range(tiny.VOCABULARY) if k not in {8, 10, 11}]
    made = model.generate(
        PROMPT, suppressed=only, no_repeat_ngram=1, max_new_tokens=9, ignore_eos=True, temperature=0
    )
    with pytest.raises(ShardrunError, match="not finite"):
        made.finish()
    assert made.tokens == 3 and counted.runs == 1
    assert model.generate(PROMPT, max_new_tokens=5).ids == plain.greedy(PROMPT, 5)


def _begin(made: Generation, count: int) -> Iterator[int]:
    for _ in range(count):
        yield next(made).id  # type: ignore[union-attr]


def test_a_step_that_fails_in_the_middle(folder: Path, tmp_path: Path, plain: tiny.Plain) -> None:
    """The model has rotary positions for so many tokens only, and nothing says so."""
    with launcher.start(folder / "model.onnx", ranks=2, launcher="local", threads=1) as group:
        long = (PROMPT * 14)[: tiny.CONTEXT - 10]
        made = group.generate(long, max_new_tokens=60)
        want = plain.greedy(long, 9)
        got = list(_begin(made, 9))
        with pytest.raises(launcher.PredictError):
            list(made)
        assert got == want and made.tokens >= 9
        assert group.generate(PROMPT, max_new_tokens=5).ids == plain.greedy(PROMPT, 5)
        # A rank that is lost in the middle of a run.
        streams = [group.generate(PROMPT, max_new_tokens=80) for _ in range(2)]
        for stream in streams:
            assert list(_begin(stream, 2)) == plain.greedy(PROMPT, 2)
        os.kill(group.stats[1].pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(RankFailedError, match=r"rank 1 on host .*SIGKILL"):
                stream.finish()
            with pytest.raises(StopIteration):
                next(stream)


def test_ctrl_c_while_a_token_is_waited_for(
    model: LanguageModel, plain: tiny.Plain, decoder: ResidentDecoder
) -> None:
    group: Any = decoder.later.group
    made = model.generate(PROMPT, max_new_tokens=80, ignore_eos=True)
    next(made)
    os.kill(group.stats[1].pid, signal.SIGSTOP)
    try:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        threading.Timer(0.6, lambda: os.kill(group.stats[1].pid, signal.SIGCONT)).start()
        with pytest.raises(KeyboardInterrupt):
            made.finish()
    finally:
        os.kill(group.stats[1].pid, signal.SIGCONT)
    made.close()
    assert model.generate(PROMPT, max_new_tokens=5).ids == plain.greedy(PROMPT, 5)


def test_a_group_that_is_closed_by_another_thread(folder: Path) -> None:
    group = launcher.start(folder / "model.onnx", ranks=2, launcher="local", threads=1)
    pid, errors = group.stats[1].pid, []
    made = group.generate(PROMPT, max_new_tokens=80)
    next(made)

    def read() -> None:
        try:
            made.finish()
        except LaunchError as error:
            errors.append(str(error))

    os.kill(pid, signal.SIGSTOP)  # what comes is waited for
    threads = [threading.Thread(target=read), threading.Thread(target=group.close)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    for thread in threads:
        thread.join(20)
    assert errors == ["This group was closed: start another one."]
    assert not any(thread.is_alive() for thread in threads)
    made.close()


@pytest.mark.parametrize(("ranks", "starter", "mesh"), [(2, "local", "pipeline=2"), (2, "mpirun", None)])
def test_stages_and_ranks_of_mpirun(
    folder: Path, plain: tiny.Plain, ranks: int, starter: str, mesh: str | None
) -> None:
    options = SliceOptions(mesh=parse_mesh(mesh)) if mesh else None
    path = folder / "model.onnx"
    with launcher.start(path, ranks=ranks, launcher=starter, threads=1, options=options) as group:
        decoder = decoder_of(program_of(group))
        assert isinstance(decoder, ResidentDecoder) and decoder.runs is not None
        want = plain.greedy(PROMPT, 60)
        assert LanguageModel(decoder).generate(PROMPT, max_new_tokens=60).ids == want
        made = LanguageModel(decoder).generate(PROMPT, max_new_tokens=60)
        assert list(_begin(made, 5)) == want[:5]
        made.close()
        assert LanguageModel(decoder).generate(PROMPT, max_new_tokens=60).ids == want


RECURRENT = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[1, n] input_ids, float[1, 1, 16] state) => (float[1, n, 200] logits, float[1, 1, 16] stateN)
  <int64[1] second = {1}> {
  e = Gather(table, input_ids)
  x = Transpose<perm = [1, 0, 2]>(e)
  y, stateN = GRU<hidden_size = 16>(x, w, r, , , state)
  q = Squeeze(y, second)
  t = Transpose<perm = [1, 0, 2]>(q)
  logits = MatMul(t, head)
}"""


def test_recurrent_texts_go_on_when_others_come(tmp_path: Path) -> None:
    """Their state cannot forget what the ranks have read beyond the reader."""
    model, random = onnx.parser.parse_model(RECURRENT), np.random.default_rng(0)
    for name, shape in {"table": (200, 16), "w": (1, 48, 16), "r": (1, 48, 16), "head": (16, 200)}.items():
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def greedy(prompt: list[int], count: int) -> list[int]:
        ids: list[int] = []
        state = np.zeros((1, 1, 16), np.float32)
        for _ in range(count):
            given = {"input_ids": np.array([ids[-1:] or prompt]), "state": state}
            logits, state = plain.run(None, given)
            ids.append(int(logits[0, -1].argmax()))
        return ids

    with launcher.start(path, ranks=1, launcher="local", threads=1) as group:
        decoder = decoder_of(program_of(group))
        assert isinstance(decoder, ResidentDecoder) and decoder.runs is not None and not decoder.rewinds
        with Engine(decoder) as engine:
            streams = [engine.submit(PROMPT, max_new_tokens=2000)]
            for k in range(20):
                next(streams[0])
                streams.append(engine.submit(PROMPT[k % 4 :], max_new_tokens=3))
                streams[-1].finish()
            found = [stream.finish()[0].ids for stream in streams]
        assert found == [greedy(PROMPT, 2000), *(greedy(PROMPT[k % 4 :], 3) for k in range(20))]
        # No more than was chosen by then comes after the first.
        want = greedy(PROMPT, 9)
        chooser, sequence = Chooser(SamplingOptions(), 200, np.array(PROMPT), []), decoder.sequence()
        sequence.step(np.array(PROMPT))
        assert isinstance(sequence, ResidentSequence)
        chooser.read(want[0])
        ids = list(sequence.follow(chooser, 2000, 2000, lambda: False))
        assert ids == greedy(PROMPT, 1 + len(ids))[1:] and len(ids) < 1999
        assert not sequence.closed and sequence.length == len(PROMPT) + len(ids)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 5, "seed": 3}], ids=str)
def test_ranks_say_where_the_time_of_tokens_goes(
    model: LanguageModel, decoder: ResidentDecoder, options: dict[str, Any]
) -> None:
    group = decoder.later.group
    assert isinstance(group, launcher.Group)
    made = model.generate(PROMPT, max_new_tokens=60, ignore_eos=True, **options)
    next(made)
    before, start = group.spent, time.perf_counter()
    made.finish()
    after, whole = group.spent, time.perf_counter() - start
    assert before.answered < after.answered
    ran, segments, talked, waited, chose = (
        getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds")
        for name in ("run", "segment", "communication", "waiting", "choosing")
    )
    assert segments > 0 and chose > 0 and 0 < waited < talked
    assert segments + talked + chose < ran < whole
