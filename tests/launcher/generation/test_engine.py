"""Many texts at once: each is the one that it would be alone, whatever else is under way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launcher
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.engine import CHUNK, SHORTEST_PREFIX, Engine
from launcher.generation.model import LanguageModel
from launcher.generation.resident import ResidentDecoder, decoder_of
from launcher.generation.sample import Done, Token
from launcher.generation.stateful import program_of
from launcher.generation.streams import EngineFullError, EngineLimits, Stream
from ranks.common.tensors import TensorSpec
from tests.launcher.generation import tiny
from tests.launcher.generation.table import VOCABULARY, TableDecoder, TableSequence
from tests.ranks.state_models import FORMS
from tests.ranks.state_models import VOCABULARY as SMALL
from tests.ranks.threads import until

RANDOM = np.random.default_rng(1)
PROMPTS = [RANDOM.integers(1, SMALL, count).tolist() for count in (5, 23, 1, 12, 31, 8)]
MANNERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "seed": 4},
    {"samples": 3, "top_p": 0.95, "seed": 5, "repetition_penalty": 1.2},
    {"logprobs": 2, "stop_ids": (7, 8, 9)},
    {"chunk": 4},
    {"temperature": 0.9, "top_k": 5, "seed": 6, "chunk": 7},
]
WAIT = 20


@pytest.fixture(scope="module", params=["buffered", "joined"])
def decoder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ResidentDecoder]:
    path = tmp_path_factory.mktemp("engine") / "model.onnx"
    FORMS[request.param](path)
    with launcher.start(path, ranks=2, launcher="local", threads=1) as group:
        made = decoder_of(program_of(group))
        assert isinstance(made, ResidentDecoder)
        yield made


def slowly(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The decoder, whose texts go on for some time."""
    real = decoder.scores_many
    monkeypatch.setattr(type(decoder), "runs", None)

    def scores_many(sequences: Any, ids: Any, wants: Any) -> Any:
        time.sleep(0.05)
        return real(sequences, ids, wants)

    monkeypatch.setattr(decoder, "scores_many", scores_many)
    return decoder


def alone(decoder: Any, prompt: list[int], **options: Any) -> Any:
    return LanguageModel(decoder).generate(prompt, **options).finish()


def texts(completions: Any) -> list[Any]:
    return [(item.sample, item.ids, item.reason) for item in completions]


@pytest.mark.parametrize("sequences", [3, 8])
def test_texts_are_those_of_each_prompt_alone(decoder: ResidentDecoder, sequences: int) -> None:
    """Prompts of all lengths and options, that join and leave whenever they end, so that rows differ."""
    asked = [
        (prompt, {**manner, "max_new_tokens": 4 + 9 * (number % 3)})
        for number, (prompt, manner) in enumerate(zip(PROMPTS, MANNERS, strict=True))
    ]
    with LanguageModel(decoder).engine(sequences=sequences) as engine:
        streams = [engine.submit(prompt, **options) for prompt, options in asked]
        found = [stream.finish() for stream in streams]
    for (prompt, options), completions in zip(asked, found, strict=True):
        want = alone(decoder, prompt, **options)
        assert texts(completions) == texts(want)
        for one, other in zip(completions, want, strict=True):
            assert np.allclose(one.logprobs or [], other.logprobs or [], atol=1e-4)


def test_greedy_tokens_are_those_of_plain_onnx_runtime(model: LanguageModel, plain: tiny.Plain) -> None:
    prompts = [[5, 66, 7, 123, 9, 40, 41], [3], list(range(20, 50)), [200, 100]]
    with model.engine() as engine:
        streams = [engine.submit(prompt, max_new_tokens=20, ignore_eos=True) for prompt in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert stream.finish()[0].ids == plain.greedy(prompt, 20)
    assert engine.steps < 20 * len(prompts)


def test_events_and_texts_are_those_of_generate(model: LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3, "stop": ("e",)}
    with model.engine() as engine:
        streams = [engine.submit(text, **options) for text in ("The quick", "A dog")]
        events = [list(stream) for stream in streams]
        assert [len(stream.completions) for stream in streams] == [1, 1]
    for text, found in zip(("The quick", "A dog"), events, strict=True):
        assert found == list(model.generate(text, **options))
        assert isinstance(found[-1], Done) and all(isinstance(event, Token) for event in found[:-1])


@pytest.mark.parametrize("before", [True, False], ids=["one after another", "at once"])
def test_a_beginning_that_prompts_share_is_read_once(decoder: ResidentDecoder, before: bool) -> None:
    system = RANDOM.integers(1, SMALL, 40).tolist()
    prompts = [[*system, *PROMPTS[number]] for number in range(3)]
    with LanguageModel(decoder).engine() as engine:
        streams = []
        for prompt in [*prompts, prompts[0]]:
            streams.append(engine.submit(prompt, max_new_tokens=6))
            if before:
                streams[-1].finish()
        for prompt, stream in zip(prompts, streams, strict=False):
            assert texts(stream.finish()) == texts(alone(decoder, prompt, max_new_tokens=6))
        assert texts(streams[3].finish()) == texts(streams[0].completions)
        assert engine.reused >= 2 * len(system) + len(prompts[0]) - 1
        # What differs early, or is short, is read.
        reused = engine.reused
        for prompt in ([1, *system], system[: SHORTEST_PREFIX - 1]):
            assert texts(engine.submit(prompt, max_new_tokens=3).finish()) == texts(
                alone(decoder, prompt, max_new_tokens=3)
            )
        assert engine.reused == reused


def test_prefixes_that_are_long_unused_go() -> None:
    decoder = TableDecoder()
    prompts = [RANDOM.integers(0, VOCABULARY, SHORTEST_PREFIX + 4).tolist() for _ in range(3)]
    with Engine(decoder, limits=EngineLimits(prefixes=2)) as engine:
        for prompt in (*prompts[:2], prompts[0], prompts[2]):
            engine.submit(prompt, max_new_tokens=1).finish()
        assert engine.reused == len(prompts[0]) - 1
        for prompt, more in ((prompts[0], True), (prompts[1], False)):
            before = engine.reused
            engine.submit(prompt, max_new_tokens=1).finish()
            assert (engine.reused > before) == more
        until(lambda: decoder.open == 2)
    assert decoder.open == 0


def test_recurrent_state_reuses_whole_prompts_only() -> None:
    decoder = TableDecoder()
    decoder.rewinds = False
    system = RANDOM.integers(0, VOCABULARY, SHORTEST_PREFIX + 4).tolist()
    with Engine(decoder) as engine:
        for prompt, reused in ((system, 0), (system[:-1], 0), ([*system, 3], len(system))):
            before = engine.reused
            found = engine.submit(prompt, max_new_tokens=5).finish()
            assert found[0].ids == alone(TableDecoder(), prompt, max_new_tokens=5)[0].ids
            assert engine.reused - before == reused


class Gate(TableDecoder):
    """A table that computes a step only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Semaphore(0)
        self.most = 0
        self.wrong: BaseException | None = None
        self.at = -1

    def step_many(self, sequences: Any, ids: Any) -> Any:
        self.most = max(self.most, len(sequences))
        assert self.may.acquire(timeout=WAIT)
        return super().step_many(sequences, ids)

    def sequence(self, inputs: Any = None) -> TableSequence:
        return _Bad(self)


class _Bad(TableSequence):
    def step(self, ids: Any, *, every: bool = False) -> Any:
        assert isinstance(self.decoder, Gate)
        if self.decoder.wrong is not None and self.decoder.at in ids:
            raise self.decoder.wrong
        return super().step(ids, every=every)

    def fork(self) -> TableSequence:
        return _Bad(self.decoder, self.ids)


def test_limits_make_requests_wait_in_their_order() -> None:
    decoder = Gate()
    limits = EngineLimits(sequences=3, positions=40, waiting=3, prefixes=0)
    with Engine(decoder, limits=limits) as engine:
        with pytest.raises(ConfigError, match="may need 41 positions, but the engine has room for 40"):
            engine.submit([1] * 31, max_new_tokens=10)
        with pytest.raises(ConfigError, match="4 samples are asked for, but the engine works on 3"):
            engine.submit([1], max_new_tokens=2, samples=4)
        with pytest.raises(ConfigError, match="beams and speculate"):
            engine.submit([1], max_new_tokens=2, beams=2)
        with pytest.raises(ConfigError, match="holds the token 40"):
            engine.submit([VOCABULARY])
        first = engine.submit([1] * 10, max_new_tokens=10)
        until(lambda: decoder.most == 1)
        second = engine.submit([2], max_new_tokens=7, samples=2, temperature=1.0)
        third = engine.submit([3] * 10, max_new_tokens=11)
        fourth = engine.submit([4], max_new_tokens=2)  # has room, but not its turn
        with pytest.raises(EngineFullError, match=r"^3 requests waiting already: try again later"):
            engine.submit([5], max_new_tokens=2)
        for _ in range(80):
            decoder.may.release()
        found = [stream.finish() for stream in (first, second, third, fourth)]
        assert [len(item[0].ids) for item in found] == [10, 7, 11, 2] and len(found[1]) == 2
        assert decoder.most == 3
        assert second.pace.began < third.pace.began < fourth.pace.began
        assert third.pace.began >= min(first.pace.last, second.pace.last)
    assert decoder.open == 0


def test_one_that_waits_is_one_request() -> None:
    decoder = Gate()
    with Engine(decoder, limits=EngineLimits(sequences=1, waiting=1, prefixes=0)) as engine:
        engine.submit([1], max_new_tokens=3)
        until(lambda: decoder.most == 1)
        engine.submit([2], max_new_tokens=3)
        with pytest.raises(EngineFullError, match=r"^1 request waiting already: try again later\.$"):
            engine.submit([3], max_new_tokens=3)
        for _ in range(20):
            decoder.may.release()


def test_clients_take_turns_and_priorities_go_first() -> None:
    decoder = Gate()
    with Engine(decoder, limits=EngineLimits(sequences=1, prefixes=0)) as engine:
        first = engine.submit([1], max_new_tokens=3)
        until(lambda: decoder.most == 1)
        asked = [("a", 1), ("a", 1), ("a", 1), ("b", 1), ("a", 0), ("c", 1)]
        streams = [
            engine.submit([2], max_new_tokens=2, client=client, priority=priority)
            for client, priority in asked
        ]
        gone = engine.submit([3], max_new_tokens=2, client="d")
        gone.cancel()
        for _ in range(40):
            decoder.may.release()
        for stream in (first, *streams):
            stream.finish()
        begun = sorted(range(len(asked)), key=lambda at: streams[at].pace.began)
        assert begun == [4, 0, 3, 5, 1, 2]
        assert not gone.pace.began and gone.finish() == []
    assert decoder.open == 0


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"sequences": 0}, "'sequences': expected a whole number from 1 up, found 0"),
        ({"positions": 0}, "'positions': expected"),
        ({"waiting": True}, "'waiting': expected"),
        ({"prefixes": -1}, "'prefixes': expected a whole number from 0 up"),
        ({"prefixes": 1.5}, "found 1.5"),
        ({"sequence": 3}, "there is no limit 'sequence' of an engine"),
    ],
)
def test_limits_under_which_nothing_could_be_done(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LanguageModel(TableDecoder()).engine(**limits)


def test_cancelled_while_it_waits_reads_and_generates() -> None:
    decoder = Gate()
    with Engine(decoder, limits=EngineLimits(sequences=2, prefixes=0)) as engine:
        good = engine.submit([1, 2], max_new_tokens=8)
        generating = engine.submit([3, 4], max_new_tokens=500)
        waiting = engine.submit([5, 6], max_new_tokens=500)
        later = engine.submit([7, 8], max_new_tokens=3)
        until(lambda: decoder.most >= 1)
        waiting.cancel()
        waiting.cancel()
        assert waiting.finish() == [] and list(waiting) == []
        decoder.may.release()
        next(generating)
        with generating:
            pass
        with pytest.raises(StopIteration):
            next(generating)
        for _ in range(40):
            decoder.may.release()
        assert len(good.finish()[0].ids) == 8 and len(later.finish()[0].ids) == 3
        assert good.completions[0].ids == alone(TableDecoder(), [1, 2], max_new_tokens=8)[0].ids
        # In the middle of a long prompt, of which a piece is read in each round.
        other = engine.submit([1, 2], max_new_tokens=100)
        long = engine.submit([9] * 100, max_new_tokens=3, chunk=1)
        steps = engine.steps
        for _ in range(5):
            decoder.may.release()
        until(lambda: engine.steps >= steps + 5 and long.pace.began)
        long.cancel()
        for _ in range(120):
            decoder.may.release()
        assert len(other.finish()[0].ids) == 100 and long.finish() == [] and not long.pace.first
        until(lambda: decoder.open == 0)


def test_a_reader_that_waits_is_woken_by_cancel() -> None:
    decoder = Gate()
    with Engine(decoder) as engine:
        stream = engine.submit([1], max_new_tokens=50)
        next(stream)
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(stream.finish()))
        reader.start()
        stream.cancel()
        reader.join(WAIT)
        assert found == [[]]
        decoder.may.release(5)
    assert decoder.open == 0


@pytest.mark.parametrize("error", [ShardrunError("no memory left"), ValueError("odd"), MemoryError("none")])
@pytest.mark.parametrize("where", ["prompt", "text"])
def test_a_request_that_fails_ends_alone(error: Exception, where: str) -> None:
    decoder = Gate()
    want = alone(TableDecoder(), [3, 17], max_new_tokens=12)[0].ids
    decoder.wrong, decoder.at = error, 39 if where == "prompt" else want[4]
    decoder.may.release(200)
    others = [[number] for number in range(38) if number not in want]
    goods = {
        tuple(prompt): expected
        for prompt in others
        if decoder.at not in (expected := alone(TableDecoder(), prompt, max_new_tokens=9)[0].ids)
    }
    chosen = list(goods)[:3]
    assert chosen
    with Engine(decoder, limits=EngineLimits(sequences=6)) as engine:
        streams = [engine.submit(list(prompt), max_new_tokens=9) for prompt in chosen]
        bad = engine.submit([39, 39] if where == "prompt" else [3, 17], max_new_tokens=12)
        streams += [engine.submit(list(prompt), max_new_tokens=9) for prompt in chosen]
        with pytest.raises(type(error), match=str(error)):
            bad.finish()
        with pytest.raises(StopIteration):
            next(bad)
        for prompt, stream in zip([*chosen, *chosen], streams, strict=True):
            assert stream.finish()[0].ids == goods[prompt]
        until(lambda: decoder.open == 0)


def test_requests_from_many_threads(decoder: ResidentDecoder) -> None:
    wrong: list[Any] = []
    with LanguageModel(decoder).engine(sequences=4) as engine:

        def work(number: int) -> None:
            try:
                for prompt in (PROMPTS[number], PROMPTS[-number]):
                    found = engine.submit(prompt, max_new_tokens=7, seed=2, temperature=1.1).finish()
                    want = alone(decoder, prompt, max_new_tokens=7, seed=2, temperature=1.1)
                    assert texts(found) == texts(want)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        # The decoder is free for others meanwhile.
        assert len(alone(decoder, PROMPTS[0], max_new_tokens=9, samples=3, seed=1)) == 3
        for thread in threads:
            thread.join(WAIT)
    assert wrong == []


def test_a_slow_reader_holds_up_nobody(decoder: ResidentDecoder) -> None:
    with LanguageModel(decoder).engine() as engine:
        slow = engine.submit(PROMPTS[0], max_new_tokens=10)
        quick = engine.submit(PROMPTS[1], max_new_tokens=20)
        assert len(quick.finish()[0].ids) == 20
        until(lambda: slow.pace.last)
        assert len([event for event in slow if isinstance(event, Token)]) == 10


def test_close_ends_texts_under_way_and_those_that_wait() -> None:
    decoder = Gate()
    engine = Engine(decoder, limits=EngineLimits(sequences=1))
    under_way, waits, cancelled = (engine.submit([number] * 20, max_new_tokens=500) for number in range(3))
    until(lambda: decoder.most == 1)
    cancelled.cancel()
    decoder.may.release(3)
    engine.close()
    engine.close()
    for stream in (under_way, waits):
        with pytest.raises(LaunchError, match="The engine was closed before the text ended"):
            stream.finish()
    assert cancelled.finish() == [] and decoder.open == 0
    with pytest.raises(LaunchError, match="This engine is closed: start another one"):
        engine.submit([1])


def test_long_prompts_are_read_in_pieces() -> None:
    table = TableDecoder()
    with Engine(table) as engine:
        long = engine.submit([1, 2] * CHUNK, max_new_tokens=2)
        assert len(long.finish()[0].ids) == 2
    assert table.longest == CHUNK


def test_a_killed_rank_ends_every_stream_with_the_first_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launcher.start(folder / "model.onnx", ranks=2, launcher="local", threads=1) as group:
        engine = LanguageModel(slowly(decoder_of(program_of(group)), monkeypatch)).engine(sequences=2)
        streams: list[Stream] = [engine.submit([5, 6, number], max_new_tokens=80) for number in range(4)]
        next(streams[0])
        os.kill(group.stats[1].pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(RankFailedError, match=r"rank 1 on host .*SIGKILL"):
                stream.finish()
            with pytest.raises(StopIteration):
                next(stream)
        with pytest.raises(RankFailedError, match=r"rank 1 on host .*SIGKILL"):
            engine.submit([1])
        engine.close()
    assert not [thread for thread in threading.enumerate() if thread is engine._thread]


def test_a_group_that_closes_ends_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launcher.start(folder / "model.onnx", ranks=1, launcher="local", threads=1) as group:
        engine = LanguageModel(slowly(decoder_of(program_of(group)), monkeypatch)).engine()
        stream = engine.submit([5, 6], max_new_tokens=80)
        next(stream)
    with pytest.raises(ShardrunError, match=r"closed|ended"):
        stream.finish()
    engine.close()


class Encoded(TableDecoder):
    """A table whose tokens move by what an encoder was given."""

    encoder_inputs = (TensorSpec("features", np.dtype(np.int64), (1,)),)

    def __init__(self) -> None:
        super().__init__()
        self.encoder_inputs = type(self).encoder_inputs

    def sequence(self, inputs: Any = None) -> TableSequence:
        return _Moved(self, int(inputs["features"][0]))


class _Moved(TableSequence):
    def __init__(self, decoder: TableDecoder, by: int, ids: Any = ()) -> None:
        super().__init__(decoder, ids)
        self.by = by

    def step(self, ids: Any, *, every: bool = False) -> Any:
        return np.roll(super().step(ids, every=every), self.by, axis=-1)

    def fork(self) -> TableSequence:
        return _Moved(self.decoder, self.by, self.ids)


def test_sequences_of_an_encoder_share_no_beginning() -> None:
    decoder = Encoded()
    prompt = RANDOM.integers(0, VOCABULARY, SHORTEST_PREFIX + 8).tolist()
    with Engine(decoder) as engine:
        given = [{"features": np.array([by])} for by in (1, 5, 1)]
        streams = [engine.submit(prompt, max_new_tokens=9, inputs=inputs) for inputs in given]
        found = [stream.finish()[0].ids for stream in streams]
        with pytest.raises(ConfigError, match="takes the array 'features'"):
            engine.submit(prompt, max_new_tokens=9)
    for inputs, ids in zip(given, found, strict=True):
        assert ids == LanguageModel(Encoded()).generate(prompt, max_new_tokens=9, inputs=inputs).ids
    assert found[0] == found[2] != found[1] and engine.reused == 0 and decoder.open == 0


def test_a_text_alone_is_run_ahead_until_another_comes(
    decoder: ResidentDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks choose its tokens by themselves; the texts are those of single steps."""
    runs: list[int] = []
    real = type(decoder.host).run  # type: ignore[attr-defined]

    def run(self: Any, number: int, tensors: Any, report: Any) -> Any:
        runs.append(report["most"])
        return real(self, number, tensors, report)

    monkeypatch.setattr(type(decoder.host), "run", run)
    options: dict[str, Any] = {"temperature": 0.8, "seed": 3, "ignore_eos": True}
    with Engine(decoder) as engine:
        first = engine.submit(PROMPTS[0], max_new_tokens=200, **options)
        for _ in range(8):
            next(first)
        assert runs
        count = len(runs)
        others = [engine.submit(prompt, max_new_tokens=9, **options) for prompt in PROMPTS[1:3]]
        found = [stream.finish()[0].ids for stream in others]
        found.append(first.finish()[0].ids)
        assert len(runs) > count  # alone again
        cancelled = engine.submit(PROMPTS[0], max_new_tokens=200, **options)
        next(cancelled)
        cancelled.cancel()
        found.append(engine.submit(PROMPTS[3], max_new_tokens=9, logprobs=1, **options).finish()[0].ids)
    monkeypatch.setattr(type(decoder), "runs", None)
    with Engine(decoder) as engine:
        asked = ((PROMPTS[1], 9), (PROMPTS[2], 9), (PROMPTS[0], 200), (PROMPTS[3], 9))
        want = [engine.submit(ids, max_new_tokens=n, **options).finish()[0].ids for ids, n in asked]
    assert found == want
