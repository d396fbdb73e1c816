"""How prompts and files are counted and timed, and what is said of those with which something is wrong."""

from __future__ import annotations

import errno
import json
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.sample import Completion, Done, Token
from launcher.group.requests import PredictError
from launcher.tasks import answering, batch, results
from launcher.tasks.answering import Answering, Timing, _described, _harmless, _stream
from launcher.tasks.batch import AHEAD_BYTES, Asked, Batch, InTurn, _run, _source, _summary
from launcher.tasks.listing import Listing
from launcher.tasks.pace import Pace
from launcher.tasks.prompts import Prompt
from ranks.talk import area

UNUSED: Any = None


def test_times_are_summed_up() -> None:
    total = Timing()
    assert total.rate is None and total.text() == "0 tokens; prompt: 0 tokens in 0 ms"
    total.add(Timing(3, 5, 0.25, 4, 2.0))
    total.add(Timing(1, 1, 0.25, 0, 0.0))
    assert total == Timing(4, 6, 0.5, 4, 2.0) and total.rate == 2.0
    assert total.text() == "6 tokens; prompt: 4 tokens in 500 ms, 2 tokens/s"
    assert Timing(1, 1, 0.1).text() == "1 token; prompt: 1 token in 100 ms"
    assert Timing(later_tokens=0, later_seconds=1.0).rate is None
    total.add(Timing(search_seconds=2.0))
    assert total.text() == "6 tokens; prompt: 4 tokens; 2.00 s in all"


class Generation:
    """A generation whose events come after these seconds each."""

    def __init__(self, *events: tuple[Any, float], clock: Any, has_text: bool = True, **options: Any) -> None:
        self.prompt, self.tokens, self.has_text = [1, 2, 3], 0, has_text
        self.options = SimpleNamespace(**{"beams": None, "samples": 1, **options})
        self._events, self._clock = events, clock

    def __iter__(self) -> Any:
        for event, seconds in self._events:
            self._clock.now += seconds
            self.tokens += isinstance(event, Token)
            yield event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(now=0.0)
    made.perf_counter = lambda: made.now
    monkeypatch.setattr(answering, "time", made)
    return made


def done(sample: int = 0, text: str = "", **more: Any) -> Done:
    return Done(sample, text, Completion(sample, [7, 8], more.pop("whole", text), "length", **more))


def test_the_first_token_counts_for_the_prompt(clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    events = [(Token(0, 1, "a"), 1.0), (Token(0, 2, ""), 2.0), (Token(0, 3, "b"), 3.0), (done(text="c"), 0.5)]
    timing = _stream(Generation(*events, clock=clock), None)  # type: ignore[arg-type]
    assert timing == Timing(3, 3, 1.0, 2, 5.5) and capsys.readouterr().out == "abc\n"
    timing = _stream(Generation(*events, clock=clock, beams=2), None)  # type: ignore[arg-type]
    assert timing == Timing(3, 3, search_seconds=6.5)


def test_without_a_tokenizer_ids_are_shown(clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    events = [(Token(0, 7, ""), 1.0), (Token(0, 8, ""), 1.0), (done(whole=None), 0.0)]
    _stream(Generation(*events, clock=clock, has_text=False), None)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "7 8 \n"
    events = [(done(1, whole="b"), 0.0), (done(0, whole=None), 0.0)]
    _stream(Generation(*events, clock=clock, samples=2), None)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "7 8\nb\n"


def test_several_texts_are_shown_in_their_order(clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each when it has ended; where one never does, those after it at the end."""
    events = [(Token(0, 1, "x"), 0.0), *((done(number, whole=str(number)), 0.0) for number in (2, 0, 4, 1))]
    _stream(Generation(*events, clock=clock, samples=5), None)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "0\n1\n2\n4\n"


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert _harmless("a\tb\x1b[31m") == "a\tb\\x1b[31m"


def test_what_is_said_of_a_text() -> None:
    plain = Completion(0, [1], "x", "stop")
    assert _described(plain) == {"text": "x", "ids": [1], "reason": "stop"}
    found = _described(Completion(0, [1], None, "end", [-0.5], [((1, -0.5), (2, -1.5))], 0.0))
    assert found["logprobs"] == [-0.5] and found["top"] == [[[1, -0.5], [2, -1.5]]] and found["score"] == 0.0


def answers(
    *, keep_going: bool = True, lines: bool = False, quiet: bool = False, file: Any = None
) -> Answering:
    task: Any = SimpleNamespace(prompts=SimpleNamespace(keep_going=keep_going), lines=lines, quiet=quiet)
    return Answering(task, file, Pace("prompts", None, quiet=True))


def test_a_wrong_prompt_is_said_once_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, error = Prompt("p.txt, line 3", "hi"), ConfigError("too long")
    to = answers(lines=True)
    to.wrong(prompt, error)
    to.wrong(prompt, ConfigError("p.txt, line 3: too long"))
    found = capsys.readouterr()
    assert found.err == "shardrun: skipped: p.txt, line 3: too long\n" * 2 and to.skipped == 2
    assert json.loads(found.out.splitlines()[0]) == {"prompt": "hi", "error": "too long"}
    with pytest.raises(ConfigError, match=r"^2 prompts of 5 skipped, as said above$"):
        to.say(5, "text")
    assert capsys.readouterr().err == "shardrun: 5 prompts, text; 2 skipped\n"
    for strict, given in ((answers(keep_going=False), prompt), (answers(), None)):
        with pytest.raises(ConfigError, match=r"^too long$"):
            strict.wrong(given, error)
        assert strict.skipped == 0


def test_what_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    file: Any = SimpleNamespace(before=2, path="a.jsonl")
    for to, prompts in (
        (answers(), 1),
        (answers(), 2),
        (answers(), 0),
        (answers(file=file), 0),
        (answers(quiet=True), 2),
    ):
        to.say(prompts, "text")
    assert capsys.readouterr().err.splitlines() == [
        "shardrun: text", "shardrun: 2 prompts, text",
        "shardrun: 0 prompts, text; 2 answered before; wrote a.jsonl",
    ]  # fmt: skip


def a_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, **options: Any) -> Batch:
    """A run of files each of which holds what it is asked with."""
    made = object.__new__(Batch)
    for name in names:
        (tmp_path / name).touch()
    made._job = SimpleNamespace(**{"resume": False, "keep_going": True, "outputs": tmp_path, **options})  # type: ignore[assignment]
    made._listing = Listing(tmp_path / "out", [names], [str(tmp_path)])
    made.pace, made.skipped, made._error = Pace("files", len(names), quiet=True), 0, None
    made._marks = results.Marks("m", [])
    monkeypatch.setattr(made, "_read", lambda path: {"x": np.zeros(3, np.int8)})
    return made


class Model:
    """What is asked: answers at once, or raises for files of some numbers."""

    def __init__(self, *outcomes: Any, state: str = "ready") -> None:
        self.state: Any = state
        self.outcomes, self.asked = list(outcomes), 0

    def submit(self, feeds: Any) -> Future[Any]:
        self.asked += 1
        outcome = self.outcomes.pop(0) if self.outcomes else {"y": np.ones(1)}
        future: Future[Any] = Future()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return future


@pytest.mark.parametrize(
    ("keep_going", "outcome", "state", "written", "skipped", "raised"),
    [
        (True, PredictError("index 9"), "ready", "ac", 1, None),
        (False, PredictError("index 9"), "ready", "a", 0, PredictError),
        (False, ConfigError("wrong"), "ready", "a", 0, ConfigError),
        (True, RankFailedError("killed"), "ready", "ac", 1, None),  # it died beside this file twice
        (True, RankFailedError("killed"), "failed", "a", 0, RankFailedError),
        (True, LaunchError("closed"), "closed", "a", 0, LaunchError),
        (True, RankFailedError("killed"), "restarting", "ac", 1, None),
    ],
)
def test_files_with_which_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep_going: bool,
    outcome: Exception, state: str, written: str, skipped: int, raised: type[Exception] | None,
) -> None:  # fmt: skip
    made = a_batch(monkeypatch, tmp_path, "a.npy", "b.npy", "c.npy", keep_going=keep_going)
    model = Model({"y": np.ones(1)}, outcome, state=state)
    if raised is None:
        made.run(model)
    else:
        with pytest.raises(raised):
            made.run(model)
    out = tmp_path / "out"
    if keep_going and raised is None:
        assert sorted(path.stem for path in out.iterdir()) == list(written)
    assert made.skipped == skipped
    assert capsys.readouterr().err.count(f"shardrun: skipped: {tmp_path}/b.npy: ") == skipped


@pytest.mark.parametrize(
    ("number", "ends"), [(errno.ENOSPC, True), (errno.EACCES, True), (errno.ENAMETOOLONG, False)]
)
def test_what_prevents_any_file_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, ends: bool
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, "reason")

    monkeypatch.setattr(results, "save", fails)
    made = a_batch(monkeypatch, tmp_path, "a.npy", "b.npy")
    if ends:
        with pytest.raises(ConfigError, match="cannot write the outputs: reason"):
            made.run(Model())
    else:
        made.run(Model())
        assert made.skipped == 2


@pytest.mark.parametrize(
    ("count", "size", "full"),
    [
        (area.SLOTS - 1, 1, False), (area.SLOTS, 1, True),
        (1, AHEAD_BYTES - 1, False), (1, AHEAD_BYTES, True), (2, AHEAD_BYTES // 2, True),
    ],
)  # fmt: skip
def test_how_many_files_are_read_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int, size: int, full: bool
) -> None:
    asked = deque(Asked(UNUSED, b"", size, Future()) for _ in range(count))
    assert a_batch(monkeypatch, tmp_path)._is_full(asked) is full


@pytest.mark.parametrize(
    ("path", "source"), [("/a", "/a"), ("./a", "./a"), ("a=b.npy", "./a=b.npy"), ("../a", "./../a")]
)
def test_no_part_of_a_path_is_the_name_of_an_input(path: str, source: str) -> None:
    assert _source(path) == source


def test_a_model_that_computes_at_once() -> None:
    led: Any = SimpleNamespace(ended=False, predict=lambda feeds: {"y": feeds["x"]})
    turn = InTurn(led)
    assert turn.state == "ready" and turn.submit({"x": UNUSED}).result() == {"y": UNUSED}

    def fails(feeds: object) -> None:
        raise ShardrunError("no")

    led.ended, led.predict = True, fails
    assert turn.state == "failed" and isinstance(turn.submit({}).exception(), ShardrunError)


def test_what_is_said_of_all_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = a_batch(monkeypatch, tmp_path, "a.npy", "b.npy", "c.npy")
    pace = SimpleNamespace(done=2, total=3, before=1, seconds=2.0, rate=0.5)
    made.pace, made.skipped = pace, 1  # type: ignore[assignment]
    job: Any = SimpleNamespace(outputs="out")
    assert _summary(made, job) == "2 of 3 files are done, 1 of them before, 1 skipped, 2.00 s, 0.5 files/s"
    pace.done, made.skipped = 1, 0
    assert _summary(made, job) == "1 of 3 files are done, 1 of them before, 2.00 s"
    monkeypatch.setattr(batch, "Batch", lambda *_: made)
    monkeypatch.setattr(made, "run", lambda asks: setattr(made, "skipped", 2))
    made.pace = Pace("files", 3, quiet=True)
    opened: Any = SimpleNamespace(ranks=2)
    with pytest.raises(ConfigError, match=r"^2 inputs of 3 skipped, as said above$"):
        _run(job, opened, made._listing, UNUSED, "json", lambda: 4)
    found = json.loads(capsys.readouterr().out)
    del found["seconds"]
    assert found == {
        "files": 3, "done": 0, "before": 0, "skipped": 2, "ranks": 2, "restarts": 4, "written": "out"
    }  # fmt: skip


def test_the_first_error_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though what was asked with it fails too."""
    made = a_batch(monkeypatch, tmp_path, "a.npy", "b.npy", "c.npy", keep_going=False)
    with pytest.raises(PredictError, match=r"a\.npy: one$"):
        made.run(Model(PredictError("one"), PredictError("two")))
    assert [path.stem for path in (tmp_path / "out").iterdir()] == ["c"]  # what was asked before is written
