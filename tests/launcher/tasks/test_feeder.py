"""Prompts on their way to an engine, and to another one where its ranks were lost."""

from __future__ import annotations

import codecs
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ConfigError, RankFailedError
from launcher.generation.options import GenerateOptions
from launcher.generation.resident import ResidentDecoder
from launcher.tasks.batched_prompts import BATCH, Feeder, batch_of, timed
from launcher.tasks.prompts import Prompt, Prompts
from tests.ranks.threads import until


class Engine:
    """Takes what it is given, unless its ranks are lost."""

    limits = SimpleNamespace(sequences=8)

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.given: list[tuple[object, bool]] = []

    def submit(self, prompt: object, options: object, *, special: bool = True) -> Any:
        if self.lost:
            raise RankFailedError("rank 0 was killed")
        if prompt == "wrong":
            raise ConfigError("too long")
        self.given.append((prompt, special))
        return SimpleNamespace(prompt=prompt)


MODEL: Any = SimpleNamespace(text_of=lambda messages: f"<s>{messages[0]}")


def feeder(engine: Any, prompts: Iterator[Prompt], **more: bool) -> Feeder:
    options: Any = None
    return Feeder(MODEL, engine, prompts, options, **more)


def test_what_a_prompt_is_submitted_as() -> None:
    """A chat template writes special tokens itself."""
    engine = Engine()
    prompts = [Prompt("a", text="x"), Prompt("b", ids=[1]), Prompt("c", messages=["hi"])]  # type: ignore[list-item]
    assert [one.number for one in feeder(engine, iter(prompts)).each()] == [0, 1, 2]
    assert engine.given == [("x", True), ([1], True), ("<s>hi", False)]


def test_all_that_waits_moves_to_another_engine_in_its_order() -> None:
    come: queue.SimpleQueue[Prompt | None] = queue.SimpleQueue()
    first, second, third = Engine(lost=True), Engine(lost=True), Engine()
    one = feeder(first, iter(come.get, None))

    def bring(*texts: str) -> None:
        before = one._asked.qsize()
        for text in texts:
            come.put(Prompt(text, text=text))
        until(lambda: one._asked.qsize() == before + len(texts))

    bring("a", "b", "c")
    given = one.each()
    asked = next(given)
    assert asked.prompt.text == "a" and asked.stream is None and asked.lost is not None
    asked = one.move(second, asked)  # type: ignore[arg-type]
    bring("d", "e")
    asked = one.move(third, asked)  # type: ignore[arg-type]
    assert asked.lost is None and asked.stream is not None
    assert [prompt for prompt, _ in third.given] == ["a", "b", "c", "d", "e"]
    come.put(None)  # type: ignore[arg-type]
    assert [item.prompt.text for item in given] == ["b", "c", "d", "e"]


def test_what_is_wrong_with_a_prompt() -> None:
    prompts = [Prompt("line 1", text="x"), Prompt("line 2", text="wrong"), Prompt("line 3", text="y")]
    given = feeder(Engine(), iter(prompts)).each()
    assert next(given).prompt.text == "x"
    with pytest.raises(ConfigError, match=r"^line 2: too long$"):
        next(given)
    found = list(feeder(Engine(), iter(prompts), keep_going=True).each())
    assert [str(item.fault) for item in found] == ["None", "line 2: too long", "None"]


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    """As editors of Windows write it. Anywhere else it is text."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"first\n\n" + codecs.BOM_UTF8 + b"second\n")
    assert [prompt.text for prompt in Prompts(file=str(path))] == ["first", "\ufeffsecond"]
    path.write_bytes(codecs.BOM_UTF8 + b'{"ids": [1, 2]}\n')
    assert [prompt.ids for prompt in Prompts(file=str(path))] == [[1, 2]]


def test_what_was_read_and_made_is_counted() -> None:
    """Of prompts that were answered; the time is that from the first one's turn to the last token."""
    turns = {"ab": (10.0, 11.0), "cde": (9.0, 14.5), "f": (12.0, 13.0)}

    class Paced(Engine):
        """Its streams have come to their end."""

        def submit(self, prompt: object, options: object, *, special: bool = True) -> Any:
            stream = super().submit(prompt, options, special=special)
            began, last = turns[str(prompt)]
            stream.pace, stream.tokens = SimpleNamespace(began=began, last=last), 10 * len(str(prompt))
            return stream

    prompts = [Prompt(str(n), text=text) for n, text in enumerate(("ab", "wrong", "cde", "f"))]
    shown: list[Any] = []
    one = feeder(Paced(lost=True), iter(prompts), keep_going=True)
    found = timed(one, lambda asked: shown.append((asked.prompt.text, asked.fault is not None)), Paced)
    assert shown == [("ab", False), ("wrong", True), ("cde", False), ("f", False)]
    assert found == (4, 6, 60, 5.5)
    assert timed(feeder(Paced(), iter(())), shown.append, Paced) == (0, 0, 0, 0.0)
    with pytest.raises(RankFailedError):
        timed(feeder(Paced(lost=True), iter(prompts[:1])), shown.append, lambda: None)


def test_how_many_texts_are_generated_at_once() -> None:
    class Resident(ResidentDecoder):
        """Ranks keep the state of its texts."""

        batches, encoder_inputs = True, ()  # type: ignore[assignment]

        def __init__(self) -> None:
            """Nothing is computed."""

    def size(decoder: Any, asked: int | None = None, **given: Any) -> int:
        model: Any = SimpleNamespace(manner=SimpleNamespace(defaults=None), decoder=decoder)
        return batch_of(model, GenerateOptions(**given), asked)

    plain = SimpleNamespace(encoder_inputs=(), batches=True)
    assert (size(plain), size(Resident())) == (1, BATCH) and BATCH > 1
    assert size(plain, 4) == size(Resident(), 4) == 4
    assert size(plain, 2, samples=6) == 6 and size(Resident(), 1, samples=6) == 1
    assert size(Resident(), 4, beams=2) == size(Resident(), 4, speculate=2) == 1
    assert size(SimpleNamespace(encoder_inputs=("x",)), 4) == 1
