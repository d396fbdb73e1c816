"""A model whose tokens a smaller one guesses: what ranks, logs and folders each of the two gets."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.common.logs import Logs
from launcher.generation.options import GenerateOptions
from launcher.generation.scoring import Scores
from launcher.generation.speculation import Draft, Guess, _settle
from launcher.group import language
from launcher.job.job import Job
from launcher.tasks import generation
from launcher.tasks.prompts import Prompts
from tests.launcher.processes import wait_until

MODEL, DRAFT = Path("large"), Path("small")


@dataclass
class Group:
    """One that starts no rank."""

    path: Path
    how: dict[str, Any]
    state: str = "ready"


@dataclass(frozen=True)
class Folder:
    """As much of a model's folder as starting looks at."""

    path: Path

    encoder = None

    @property
    def parts(self) -> dict[str, Path]:
        return {"decoder": self.path / "model.onnx"}

    def name_of(self, path: Path) -> str:
        return path.stem


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The groups that were started, with what each was asked."""
    made: list[Group] = []

    @contextlib.contextmanager
    def assemble(folder: Folder, start: Any) -> Iterator[Any]:
        with start(folder.parts["decoder"]) as program:
            yield SimpleNamespace(
                decoder=program, manner=None, tokenizer=None, template=None, draft=None, folder=folder
            )

    @contextlib.contextmanager
    def start(path: Path, **how: Any) -> Iterator[Group]:
        made.append(Group(path, how))
        yield made[-1]

    for module in (language, generation):
        monkeypatch.setattr(module, "read_folder", lambda path, texts=None: Folder(path))
        monkeypatch.setattr(module, "assemble", assemble)
        monkeypatch.setattr(module, "program_of", lambda group: group)
    monkeypatch.setattr(language, "start_group", start)
    return made


def test_a_draft_has_one_rank_and_logs_of_its_own(begun: list[Group], tmp_path: Path) -> None:
    logs = Logs(log_dir=tmp_path, tee=(0, 1))
    model = language.load_language_model(MODEL, draft=DRAFT, ranks=2, logs=logs)
    assert [(one.path.parent, one.how["ranks"]) for one in begun] == [(MODEL, 2), (DRAFT, 1)]
    assert [(one.how["logs"].log_dir, one.how["logs"].tee) for one in begun] == [
        (tmp_path / "model", (0, 1)), (tmp_path / "draft-model", (0,))
    ]  # fmt: skip
    assert (model.decoder, model.draft) == (begun[0], begun[1])
    begun.clear()
    language.load_language_model(MODEL, logs=logs)
    assert [(one.how["ranks"], one.how["logs"]) for one in begun] == [(1, logs)]


def test_a_model_that_nobody_has_ends_in_a_thread_of_its_own(
    begun: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever drops it may hold what the end of its ranks waits for."""
    ended: list[int] = []

    @contextlib.contextmanager
    def start(path: Path, **how: Any) -> Iterator[Group]:
        try:
            yield Group(path, how)
        finally:
            ended.append(threading.get_ident())

    monkeypatch.setattr(language, "start_group", start)
    model = language.load_language_model(MODEL)
    del model
    gc.collect()
    assert wait_until(lambda: len(ended) == 1, 20)
    assert threading.get_ident() not in ended
    language.load_language_model(MODEL).close()
    assert ended[1:] == [threading.get_ident()]


def test_a_command_goes_on_only_where_both_are_there(
    begun: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    @contextlib.contextmanager
    def opened(job: Job, ranks: int) -> Iterator[Any]:
        jobs.append(job)
        yield SimpleNamespace(manifest=SimpleNamespace(ranks=[]), ranks=ranks)

    @contextlib.contextmanager
    def start(job: Job, model: Any, update: object) -> Iterator[Group]:
        assert job.model is not None
        begun.append(Group(job.model, {"ranks": model.ranks, "log_dir": job.log_dir, "tee": job.tee}))
        yield begun[-1]

    found: list[Any] = []

    def answer(model: Any, task: object, again: Any) -> None:
        assert model.draft == begun[1]
        for states in (("ready", "ready"), ("ready", "failed"), ("closed", "ready"), ("restarting", "ready")):
            for group, state in zip(begun, states, strict=True):
                group.state = state
            found.append(again())

    monkeypatch.setattr(generation, "opened", opened)
    monkeypatch.setattr(generation, "start_group", start)
    monkeypatch.setattr(generation, "answer_all", answer)
    monkeypatch.setattr(generation, "read", lambda job, task: Folder(MODEL))
    task = generation.Task(MODEL, GenerateOptions(), Prompts(texts=("x",)), draft=DRAFT)
    job = replace(Job(model=MODEL), ranks=2, log_dir=tmp_path, tee=(0, 1), restart="on-failure:3")
    generation.generate_group(job, task)
    assert [one.how for one in begun] == [
        {"ranks": 2, "log_dir": tmp_path / "model", "tee": (0, 1)},
        {"ranks": 1, "log_dir": tmp_path / "draft-model", "tee": (0,)},
    ]
    assert [one.sums for one in jobs] == ["auto", None]
    assert [one is not None for one in found] == [True, False, False, True]
    assert found[0].decoder == begun[0] and found[0].draft == begun[1]


def test_what_is_wrong_with_a_draft_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    checked: list[Path | None] = []

    def read(path: Path, texts: Path | None = None) -> Folder:
        asked.append(path)
        return Folder(path)

    monkeypatch.setattr(generation, "read_folder", read)
    monkeypatch.setattr(generation, "read_texts", lambda folder: None)
    monkeypatch.setattr(Job, "check", lambda self: checked.append(self.model))
    task = generation.Task(MODEL, GenerateOptions(), Prompts(file="-"), draft=DRAFT)
    assert generation.read(Job(model=MODEL), task) == Folder(MODEL)
    assert asked == [MODEL, DRAFT] and checked == [MODEL / "model.onnx"]


def test_a_draft_reads_its_prompt_in_parts() -> None:
    """As the model itself does, which bounds memory; and only what it has not read, or had read wrong."""
    read: list[list[int]] = []

    class Reading:
        """A sequence whose likeliest token is always 3."""

        def rewind(self, length: int) -> None:
            read.append([-length])

        def step(self, ids: Any, *, every: bool = False) -> Any:
            read.append(ids.tolist())
            return np.eye(8, dtype=np.float32)[[3] * len(ids)] if every else np.eye(8, dtype=np.float32)[[3]]

    decoder: Any = SimpleNamespace(sequence=Reading, vocabulary=8, context=9)
    sample: Any = SimpleNamespace(options=GenerateOptions(temperature=0.0))
    draft = Draft(decoder, sample, np.array([1]), 2)
    assert [guess.id for guess in draft.guess([1, 2, 4, 5, 6], 2)] == [3, 3]
    assert read == [[0], [1, 2], [4, 5], [6], [3]]
    read.clear()
    assert len(draft.guess([1, 2, 4, 5, 6, 3, 7], 9)) == 2  # no more than fit
    assert read[:2] == [[-6], [7]]
    assert draft.guess(list(range(9)), 1) == []


def test_a_guess_changes_no_probability() -> None:
    """Where guesses are drawn by other probabilities, what comes is drawn by the model's own all the same."""
    wanted, guessed = np.array([0.5, 0.35, 0.15]), np.array([0.15, 0.25, 0.6])
    options = GenerateOptions(temperature=1.0).sampling
    row, count, accepted = Scores(np.log(wanted).astype(np.float32)), np.zeros(3), 0
    drawn = np.random.default_rng(0).choice(3, 1000, p=guessed)
    for seed, token in enumerate(drawn.tolist()):
        sample: Any = SimpleNamespace(
            options=SimpleNamespace(sampling=options), seed=seed, number=0, ids=[],
            penalties=SimpleNamespace(apply=lambda values, ids: values),
        )  # fmt: skip
        found, right = _settle(sample, row, Guess(token, guessed))
        count[found] += 1
        accepted += right
        assert not right or found == token
    np.testing.assert_allclose(count / len(drawn), wanted, atol=0.05)
    assert abs(accepted / len(drawn) - np.minimum(wanted, guessed).sum()) < 0.05
